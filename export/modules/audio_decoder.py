"""The audio decoder: latents to waveform, one patch a call, with everything carried as state.

Linear, linear upsampling over time, causal transformer, and a head whose output is the
log-magnitude and phase of a short-time Fourier transform (Vocos, Siuzdak 2023). Upsampling needs
the next latent for the second half of a latent's frames, so those frames wait one call; everything
else is causal. The inverse transform is written as two small matrix products (Cooley & Tukey 1965),
which every backend has, instead of an FFT operator, which few have.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from export.modules.layers import constant, parameter
from export.modules.transformer import CausalTransformer
from export.sizes import TransformerSizes
from trt_runtime.geometry import Geometry

LARGEST_MAGNITUDE = 100.0
SMALLEST_WINDOW_SUM = 1e-11


class AudioDecoder(CausalTransformer):
    def __init__(self, sizes: TransformerSizes, geometry: Geometry) -> None:
        super().__init__(sizes, geometry.decoder_cache_lengths)
        self.geometry = geometry
        self.latent_weight = parameter(geometry.latent_dim, sizes.hidden)
        self.latent_bias = parameter(sizes.hidden)
        self.head_weight = parameter(sizes.hidden, geometry.n_fft + 2)
        self.head_bias = parameter(geometry.n_fft + 2)
        self.window = parameter(geometry.n_fft)

    def decode(
        self,
        latents: Tensor,
        latents_before: Tensor,
        valid: Tensor,
        is_last: Tensor,
        previous_latent: Tensor,
        audio_overlap: Tensor,
        window_overlap: Tensor,
        *caches: Tensor,
    ) -> tuple[Tensor, ...]:
        """One call, as `contract.audio_decoder_spec` describes it.

        latents: (1, patch, latent_dim); latents_before, valid: (1,) int64; is_last: (1,) bool;
        previous_latent: (1, 1, hidden); audio_overlap, window_overlap: (1, overlap); caches: key
        and value of each layer, (1, kv_heads, cache length, head_dim).
        Returns audio (1, decoder_frames * hop_length + overlap), then the state in its order.
        """
        g = self.geometry
        held, per_latent = g.lookahead_frames, g.frames_per_latent
        embedded = latents @ self.latent_weight + self.latent_bias
        previous = torch.where(latents_before == 0, embedded[:, :1], previous_latent)
        frames = upsample(torch.cat((previous, embedded, embedded[:, -1:]), 1), g)
        position = latents_before * per_latent - held
        hidden, new_caches = self(frames, position, caches)
        spectrum = hidden @ self.head_weight + self.head_bias
        index = torch.arange(g.decoder_frames)
        final = valid * per_latent + torch.where(is_last, held, 0)
        counts = ((position + index >= 0) & (index < final)).float().view(1, -1, 1)
        audio = overlap_add(inverse_spectrum(spectrum, g.n_fft) * self.window * counts, g)
        weight = overlap_add(self.window.square() * counts, g)
        carried = g.decoder_frames * g.hop_length
        audio = audio + nn.functional.pad(audio_overlap, (0, carried))
        weight = weight + nn.functional.pad(window_overlap, (0, carried))
        # The next call's first frame starts where this call's final frames end.
        start = valid * (per_latent * g.hop_length) + torch.arange(g.overlap)
        return (
            audio / torch.where(weight > SMALLEST_WINDOW_SUM, weight, torch.tensor(1.0)),
            embedded.index_select(1, valid - 1),
            audio.index_select(1, start),
            weight.index_select(1, start),
            *new_caches,
        )


def upsample(latents: Tensor, g: Geometry) -> Tensor:
    """Linear interpolation over time, half-pixel centres (align_corners = False).

    latents: (1, patch + 2, hidden), the neighbours included; returns (1, decoder_frames, hidden),
    beginning with the frames of the previous latent that waited for this one.
    """
    frames = np.arange(g.decoder_frames) - g.lookahead_frames
    centres = (frames + 0.5) / g.frames_per_latent + 0.5
    left = np.floor(centres).astype(np.int64)
    right = np.minimum(left + 1, latents.shape[1] - 1)
    share = (centres - left).astype(np.float32)[:, None]
    return latents.index_select(1, constant(left)) * constant(1 - share) + latents.index_select(
        1, constant(right)
    ) * constant(share)


def inverse_spectrum(spectrum: Tensor, n_fft: int) -> Tensor:
    """(1, frames, n_fft + 2) of log-magnitudes then phases to (1, frames, n_fft) samples.

    The real inverse transform of length n = n1 * n2, x[a + n1 b] = Re sum_c E2[c, b] T[a, c]
    sum_d E1[a, d] X[c + n2 d], over the non-negative frequencies only, those that have a mirror
    image counted twice.
    """
    bins = n_fft // 2 + 1
    log_magnitude, phase = spectrum.split(bins, dim=-1)
    mirrored = np.full(bins, 2.0 / n_fft, np.float32)
    mirrored[[0, -1]] = 1.0 / n_fft
    magnitude = torch.clamp(log_magnitude.exp(), max=LARGEST_MAGNITUDE) * constant(mirrored)
    rows, columns = factors(n_fft)
    used = -(-bins // columns)
    x = torch.stack((magnitude * phase.cos(), magnitude * phase.sin()), 2)
    x = nn.functional.pad(x, (0, used * columns - bins))
    x = x.view(1, -1, 2 * used, columns)
    cos, sin = turns(rows, used, rows)
    x = constant(np.block([[cos, -sin], [sin, cos]])) @ x
    real, imaginary = x.split(rows, dim=2)
    cos, sin = turns(rows, columns, n_fft)
    real, imaginary = (
        real * constant(cos) - imaginary * constant(sin),
        real * constant(sin) + imaginary * constant(cos),
    )
    cos, sin = turns(columns, columns, columns)
    x = torch.cat((real, imaginary), -1) @ constant(np.concatenate((cos, -sin)))
    return x.transpose(2, 3).reshape(1, -1, n_fft)


def factors(n: int) -> tuple[int, int]:
    """The factor pair of n nearest to its square root, larger second."""
    first = next(f for f in range(math.isqrt(n), 0, -1) if n % f == 0)
    return first, n // first


def turns(rows: int, columns: int, period: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of 2 pi r c / period, (rows, columns) float32, computed in float64."""
    products = np.outer(np.arange(rows), np.arange(columns)) % period
    angles = products * (2 * math.pi / period)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def overlap_add(frames: Tensor, g: Geometry) -> Tensor:
    """(1, frames, n_fft) to (1, frames * hop + overlap): frame f starts at sample f * hop."""
    parts = g.n_fft // g.hop_length
    blocks = frames.view(1, -1, parts, g.hop_length)
    total = nn.functional.pad(blocks[:, :, 0], (0, 0, 0, parts - 1))
    for part in range(1, parts):
        total = total + nn.functional.pad(blocks[:, :, part], (0, 0, part, parts - 1 - part))
    return total.reshape(1, -1)
