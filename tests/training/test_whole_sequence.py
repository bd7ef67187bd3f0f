"""Training runs whole utterances in batches; the exporter's modules run one with caches: equal."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from export.modules.transformer import CausalTransformer
from training.codec import Codec, make_codec
from training.shape import sizes_of
from training.speech import PHONES
from training.talker import Voice, make_voice
from training.whole_sequence import aggregate, decode, encode, stack, velocity
from trt_runtime.geometry import Geometry

#: Both are float32; sums differ in their order over some hundred terms.
TOLERANCE = 2e-5


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


def caches(module: CausalTransformer) -> list[Tensor]:
    s = module.sizes
    return [
        zeros(1, s.kv_heads, length, s.head_dim)
        for length in module.cache_lengths
        for _ in range(2)
    ]


@pytest.fixture(scope="module", params=[(1, 1), (4, 32)], ids=["1-1", "4-32"])
def parts(request: pytest.FixtureRequest) -> tuple[Codec, Voice, Geometry]:
    sizes, geometry = sizes_of(*request.param)
    return (
        make_codec(sizes, geometry, 3),
        make_voice(sizes, geometry, len(PHONES), 4),
        geometry,
    )


@torch.no_grad()
def test_the_talker(parts: tuple[Codec, Voice, Geometry]) -> None:
    talker = parts[1].talker
    x = random(2, 9, talker.sizes.hidden)
    whole = stack(talker, x)
    for row in range(2):
        state, made = caches(talker), []
        for index in range(9):
            out, state = talker(x[row : row + 1, index : index + 1], torch.tensor([index]), state)
            made.append(out)
        assert relative(whole[row : row + 1], torch.cat(made, 1)) < TOLERANCE


@torch.no_grad()
def test_the_flow_and_the_aggregator(parts: tuple[Codec, Voice, Geometry]) -> None:
    _, voice, g = parts
    latents, history = random(3, g.patch, g.latent_dim), random(3, g.history, g.latent_dim, seed=1)
    hidden, time = random(3, g.talker_hidden, seed=2), torch.tensor([0.0, 0.3, 0.9])
    ours = velocity(voice.flow, latents, time, hidden, history)
    embedded = aggregate(voice.aggregator, latents)
    for i in range(3):
        one = slice(i, i + 1)
        theirs = voice.flow.velocity(
            latents[one], time[one], hidden[one].unsqueeze(1), history[one], torch.zeros(1)
        )
        assert relative(ours[one], theirs) < TOLERANCE
        assert relative(embedded[one], voice.aggregator(latents[one])[:, 0]) < TOLERANCE


@torch.no_grad()
def test_the_audio_encoder(parts: tuple[Codec, Voice, Geometry]) -> None:
    codec, _, g = parts
    encoder = codec.encoder
    calls, size = 3, g.encoder_latents * g.samples_per_latent
    wave = 0.1 * random(2, calls * size)
    mean, std = encode(encoder, wave)
    assert encoder.latents is not None
    for row in range(2):
        state = [*caches(encoder.frames), *caches(encoder.latents)]
        for call in range(calls):
            piece = wave[row : row + 1, call * size : (call + 1) * size]
            before, frames = call * g.encoder_latents, g.encoder_latents * g.frames_per_latent
            out = encoder(piece, torch.tensor([before]), torch.tensor([frames]), *state)
            place = (slice(row, row + 1), slice(before, before + g.encoder_latents))
            assert relative(mean[place], out[0]) < TOLERANCE
            assert relative(std[place], out[1]) < TOLERANCE
            state = list(out[2:])


@torch.no_grad()
def test_the_audio_decoder(parts: tuple[Codec, Voice, Geometry]) -> None:
    """Whole against patch by patch, up to what the last call holds back."""
    codec, _, g = parts
    decoder = codec.decoder
    patches = -(-8 // g.patch)
    latents = random(1, patches * g.patch, g.latent_dim)
    whole = decode(decoder, latents)
    state = [zeros(1, 1, g.decoder_hidden), zeros(1, g.overlap), zeros(1, g.overlap)]
    state += caches(decoder)
    made = []
    for index in range(patches):
        last = index == patches - 1
        out = decoder.decode(
            latents[:, index * g.patch : (index + 1) * g.patch], torch.tensor([index * g.patch]),
            torch.tensor([g.patch]), torch.tensor([last]), *state,
        )  # fmt: skip
        state = list(out[1:])
        # The first call has no frames held back before it: its audio begins with their silence.
        start = g.lookahead_frames * g.hop_length if index == 0 else 0
        end = (
            g.patch * g.samples_per_latent + (g.overlap + g.lookahead_frames * g.hop_length) * last
        )
        made.append(out[0][:, start : end if last else g.patch * g.samples_per_latent])
    audio = torch.cat(made, 1)
    trim = (g.n_fft - g.hop_length) // 2
    count = min(audio.shape[1] - trim, whole.shape[1])
    assert count >= (patches * g.patch - 1) * g.samples_per_latent
    assert relative(audio[:, trim : trim + count], whole[:, :count]) < TOLERANCE
