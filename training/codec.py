"""Stage 1: the audio tokenizer, a causal autoencoder of 20 ms frames and 80 ms latents."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from export.modules.audio_decoder import AudioDecoder
from export.modules.audio_encoder import AudioEncoder
from export.sizes import ModelSizes
from training.optimizer import Optimizer
from training.whole_sequence import decode, encode, start
from trt_runtime.geometry import Geometry

#: Of 80 ms: crops of 1.92 s.
CROP_LATENTS = 24
BATCH = 64
#: Of the Kullback-Leibler divergence: .01 gives no better latents, and a worse voice (README.md).
KL_WEIGHT = 0.003
#: Mel bands are what recognisers hear, and their loss does not follow the noise of single bins.
MEL_WEIGHT = 2.0
PEAK_RATE = 1.5e-3
BETAS = (0.9, 0.95)
_ENCODED_TOGETHER = 96
_RESOLUTIONS = (256, 512, 1024, 2048)
_MEL_BANDS = {512: 40, 1024: 80, 2048: 128}


class Codec(nn.Module):
    """Both halves of the audio tokenizer, named as the exporter names them."""

    def __init__(self, sizes: ModelSizes, geometry: Geometry) -> None:
        super().__init__()
        self.audio_encoder = AudioEncoder(sizes.audio, geometry)
        self.audio_decoder = AudioDecoder(sizes.audio.decoder, geometry)

    @property
    def encoder(self) -> AudioEncoder:
        return self.audio_encoder

    @property
    def decoder(self) -> AudioDecoder:
        return self.audio_decoder


def make_codec(sizes: ModelSizes, geometry: Geometry, seed: int) -> Codec:
    """A codec of random values: quiet, near its mean, with a Hann window."""
    generator = torch.Generator().manual_seed(seed)
    codec = Codec(sizes, geometry)
    start(codec.encoder, generator)
    start(codec.decoder, generator)
    n_fft = geometry.n_fft
    with torch.no_grad():
        codec.encoder.latent_bias[sizes.audio.latent_dim :] = -2.0
        turns = 2 * math.pi * torch.arange(n_fft) / n_fft
        codec.decoder.window.copy_(0.5 - 0.5 * torch.cos(turns))
        codec.decoder.head_bias[: n_fft // 2 + 1] = -3.0
        codec.decoder.head_weight.mul_(0.3)
    return codec


class Spectra(nn.Module):
    """Differences of two waves in magnitude, its log and mel bands, at several resolutions."""

    def __init__(self, sample_rate: int, device: torch.device) -> None:
        super().__init__()
        self.windows = {n: torch.hann_window(n, device=device) for n in _RESOLUTIONS}
        self.mels = {
            n: torch.as_tensor(_mel_bank(sample_rate, n, bands), device=device)
            for n, bands in _MEL_BANDS.items()
        }

    def forward(self, made: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """made, wanted: (batch, samples) to the losses of bins and of mel bands, means of each."""
        bins = mels = made.new_zeros(())
        for n in _RESOLUTIONS:
            ours, theirs = self._magnitude(made, n), self._magnitude(wanted, n)
            log = (torch.log(ours + 1e-3) - torch.log(theirs + 1e-3)).abs().mean()
            bins = bins + log + 10 * (ours - theirs).abs().mean()
            if n in self.mels:
                heard, meant = (
                    torch.log(m.transpose(1, 2) @ self.mels[n] + 1e-3) for m in (ours, theirs)
                )
                mels = mels + (heard - meant).abs().mean()
        return bins / len(_RESOLUTIONS), mels / len(self.mels)

    def _magnitude(self, wave: Tensor, n: int) -> Tensor:
        spectrum = torch.stft(
            wave, n, n // 4, window=self.windows[n], return_complex=True, normalized=True
        )
        return torch.sqrt(spectrum.real.square() + spectrum.imag.square() + 1e-10)


def _mel_bank(sample_rate: int, n_fft: int, bands: int) -> np.ndarray:
    def mel(f: np.ndarray | float) -> np.ndarray:
        return 1127.0 * np.log1p(np.asarray(f) / 700.0)

    edges = np.linspace(mel(20.0), mel(sample_rate / 2), bands + 2)
    at = mel(np.arange(n_fft // 2 + 1) * sample_rate / n_fft)[:, None]
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (at - left) / (centre - left), (right - at) / (right - centre)
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


def codec_step(
    codec: Codec,
    audio: Tensor,
    optimizer: Optimizer,
    generator: torch.Generator,
    kl_weight: float = KL_WEIGHT,
    batch: int = BATCH,
) -> Callable[[], Tensor]:
    """One step on `batch` random crops of `audio`, (samples,) int16 on the training device.

    Returns the losses: of bins, of mel bands, and the Kullback-Leibler divergence.
    """
    g, device = codec.decoder.geometry, audio.device
    spectra = Spectra(g.sample_rate, device)
    size = CROP_LATENTS * g.samples_per_latent
    offsets = torch.arange(size, device=device)

    def step() -> Tensor:
        first = torch.randint(0, len(audio) - size, (batch,), device=device, generator=generator)
        wave = audio[first.unsqueeze(1) + offsets].float() / 32768
        noise = torch.randn((batch, CROP_LATENTS, g.latent_dim), device=device, generator=generator)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            mean, std = encode(codec.encoder, wave)
            made = decode(codec.decoder, mean + std * noise)
        mean, std = mean.float(), std.float()
        kl = 0.5 * (mean.square() + std.square() - 1 - 2 * std.log()).mean()
        bins, mels = spectra(made, wave)
        optimizer.zero()
        (bins + MEL_WEIGHT * mels + kl_weight * kl).backward()
        optimizer.step()
        return torch.stack((bins, mels, kl)).detach()

    return step


@torch.no_grad()
def reconstruction_error(codec: Codec, audio: Tensor) -> float:
    """The loss of mel bands over `audio`, (samples,) int16, encoded to means and decoded again."""
    g = codec.decoder.geometry
    spectra = Spectra(g.sample_rate, audio.device)
    size = CROP_LATENTS * g.samples_per_latent
    waves = audio[: len(audio) // size * size].view(-1, size).float() / 32768
    total = 0.0
    for wave in waves.split(BATCH):
        mean, _ = encode(codec.encoder, wave)
        total += len(wave) * float(spectra(decode(codec.decoder, mean), wave)[1])
    return total / len(waves)


@torch.no_grad()
def latents_of(codec: Codec, audio: Tensor, first: Tensor) -> Tensor:
    """Posterior means of utterances, each encoded alone, (all latents, latent_dim).

    audio: (samples,) int16; first: (utterances + 1,) int64 on the CPU, utterance i is latents
    first[i] to first[i + 1].
    """
    size = codec.encoder.geometry.samples_per_latent
    device, count = audio.device, first.diff()
    found = torch.zeros((int(first[-1]), codec.encoder.geometry.latent_dim), device=device)
    # Of similar length together. What a shorter one is padded with comes behind it, and the
    # encoder is causal.
    for chosen in count.argsort().split(_ENCODED_TOGETHER):
        longest = int(count[chosen].max())
        places = first[chosen].unsqueeze(1) + torch.arange(longest)
        real = places < first[chosen + 1].unsqueeze(1)
        samples = places.clamp(max=int(first[-1]) - 1).to(device).unsqueeze(-1) * size
        wave = audio[samples + torch.arange(size, device=device)].float().flatten(1) / 32768
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            mean, _ = encode(codec.encoder, wave)
        found[places[real].to(device)] = mean[real.to(device)].float()
    return found
