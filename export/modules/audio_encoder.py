"""The audio encoder: a reference wave to the posterior of its latents, in calls of static length.

Frames of the wave go through two linear layers and a causal transformer. Behind the frames of each
latent stands a learned class token; a second causal transformer reads the row, and its outputs at
the class tokens are the latents' means and scales. Everything is causal, so that calls with caches
equal one call over the whole wave. The quirks are the reference's (facts, section 7): at most four
layers of the first transformer run, and frames beyond the wave are zeros after it, not before.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from export.modules.layers import parameter
from export.modules.transformer import CausalTransformer
from export.sizes import AudioSizes
from trt_runtime.geometry import Geometry

#: Added to softplus of the scale: the least standard deviation of a latent.
LEAST_DEVIATION = 1e-4


class AudioEncoder(nn.Module):
    def __init__(self, sizes: AudioSizes, geometry: Geometry) -> None:
        super().__init__()
        self.geometry = geometry
        hidden = sizes.encoder.hidden
        self.wave_weight = parameter(sizes.encoder_hop, hidden)
        self.frame_weight = parameter(hidden, hidden)
        self.frame_bias = parameter(hidden)
        self.frames = CausalTransformer(
            replace(sizes.encoder, layers=sizes.encoder_layers_run),
            geometry.encoder_frame_cache_lengths,
        )
        self.latents: CausalTransformer | None = None
        if sizes.latent_aggregator is not None:
            self.class_token = parameter(1, 1, hidden)
            self.latents = CausalTransformer(
                sizes.latent_aggregator, geometry.encoder_latent_cache_lengths
            )
        self.latent_weight = parameter(hidden, 2 * sizes.latent_dim)
        self.latent_bias = parameter(2 * sizes.latent_dim)

    def forward(
        self, wave: Tensor, latents_before: Tensor, valid_frames: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        """One call, as `contract.audio_encoder_spec` describes it.

        wave: (1, encoder_latents * frames_per_latent * encoder_hop); latents_before, valid_frames:
        (1,) int64; caches: key and value of each layer over frames, then over latents. Returns mean
        and standard deviation, both (1, encoder_latents, latent_dim), then the caches.
        """
        g = self.geometry
        per_latent, count = g.frames_per_latent, g.encoder_latents
        frames = wave.view(1, count * per_latent, g.encoder_hop) @ self.wave_weight
        frames = frames @ self.frame_weight + self.frame_bias
        split = 2 * len(g.encoder_frame_cache_lengths)
        hidden, new_caches = self.frames(frames, latents_before * per_latent, caches[:split])
        if self.latents is not None:
            real = (torch.arange(count * per_latent) < valid_frames).float().view(1, -1, 1)
            grouped = (hidden * real).view(1, count, per_latent, -1)
            classes = self.class_token.unsqueeze(0).expand(1, count, 1, -1)
            row = torch.cat((grouped, classes), 2).view(1, count * (per_latent + 1), -1)
            position = latents_before * (per_latent + 1)
            row, latent_caches = self.latents(row, position, caches[split:])
            hidden = row.view(1, count, per_latent + 1, -1)[:, :, -1]
            new_caches += latent_caches
        mean, scale = (hidden @ self.latent_weight + self.latent_bias).chunk(2, dim=-1)
        return mean, nn.functional.softplus(scale) + LEAST_DEVIATION, *new_caches
