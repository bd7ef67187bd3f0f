"""The tables of the audio tokenizer, encoder and decoder: the same tensors in every family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from export.parameters import (
    Parameter,
    UnusedTensor,
    copied,
    linear,
    linear_weight,
    qwen2_stack,
)
from export.sizes import ENCODER_LAYERS_RUN, AudioSizes, TransformerSizes

_ENCODER, _DECODER = "audio.encoder.", "audio.decoder."

_NO_TOKENS = "waves and latents are fed as embeddings"
_NO_NORM = "stored, but the reference's encoder does not apply it"
_NOT_RUN = f"the reference runs only the encoder's first {ENCODER_LAYERS_RUN} layers"


def audio_components(audio: AudioSizes) -> Iterator[Parameter]:
    """Every parameter of the audio decoder and encoder."""
    yield from _decoder(audio)
    yield from _encoder(audio)


def audio_unused(audio: AudioSizes) -> Iterator[UnusedTensor]:
    """Every stored tensor of the audio tokenizer that nothing reads."""
    yield _token_table(f"{_DECODER}decoder.", audio.decoder)
    for name in ("norm.weight", "norm.bias"):
        yield UnusedTensor(_ENCODER + name, (audio.encoder.hidden,), _NO_NORM)
    yield _token_table(f"{_ENCODER}encoder.", audio.encoder)
    if audio.latent_aggregator is not None:
        yield _token_table(f"{_ENCODER}aggregator.", audio.latent_aggregator)
    # The same rows as a stack that is run, so that both always name the same tensors.
    prefix = f"{_ENCODER}encoder.layers."
    for parameter in qwen2_stack("", "", f"{_ENCODER}encoder.", audio.encoder):
        for name, shape in zip(parameter.sources, parameter.source_shapes, strict=True):
            layer = name.removeprefix(prefix).split(".")[0]
            if name.startswith(prefix) and int(layer) >= audio.encoder_layers_run:
                yield UnusedTensor(name, shape, _NOT_RUN)


def _decoder(audio: AudioSizes) -> Iterator[Parameter]:
    component, hidden = "audio_decoder", audio.decoder.hidden
    yield from linear(
        component, "audio_decoder.latent_", f"{_DECODER}fc1", audio.latent_dim, hidden
    )
    yield from qwen2_stack(component, "audio_decoder", f"{_DECODER}decoder.", audio.decoder)
    yield from linear(
        component, "audio_decoder.head_", f"{_DECODER}head.out", hidden, audio.n_fft + 2
    )
    yield copied(component, "audio_decoder.window", f"{_DECODER}head.istft.window", (audio.n_fft,))


def _encoder(audio: AudioSizes) -> Iterator[Parameter]:
    component, hidden = "audio_encoder", audio.encoder.hidden
    yield linear_weight(
        component, "audio_encoder.wave_weight", audio.encoder_hop, (f"{_ENCODER}fc1.weight", hidden)
    )
    yield from linear(component, "audio_encoder.frame_", f"{_ENCODER}fc2", hidden, hidden)
    run = replace(audio.encoder, layers=audio.encoder_layers_run)
    yield from qwen2_stack(component, "audio_encoder.frames", f"{_ENCODER}encoder.", run)
    if audio.latent_aggregator is not None:
        yield copied(component, "audio_encoder.class_token", f"{_ENCODER}cls_embed", (1, 1, hidden))
        yield from qwen2_stack(
            component, "audio_encoder.latents", f"{_ENCODER}aggregator.", audio.latent_aggregator
        )
    yield from linear(
        component, "audio_encoder.latent_", f"{_ENCODER}fc3", hidden, 2 * audio.latent_dim
    )


def _token_table(prefix: str, sizes: TransformerSizes) -> UnusedTensor:
    shape = (sizes.vocab_size, sizes.hidden)
    return UnusedTensor(f"{prefix}embed_tokens.weight", shape, _NO_TOKENS)
