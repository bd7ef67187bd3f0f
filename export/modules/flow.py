"""The flow: a diffusion transformer without AdaLN, its Euler step, and the tail of a step.

Sequence of one evaluation: [time + condition | history | noised patch], bidirectional attention
with interleaved rotary embedding; time enters only through the first token. Classifier-free
guidance runs a second row whose condition is zero (Ho & Salimans 2022); flow matching as in Lipman
et al. 2022, with the reference's unequal time grid.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from export.modules.layers import constant, parameter, rms_norm, silu
from export.sizes import TIME_FEATURES, FlowTransformerSizes

RMS_EPS = 1e-6
# exp of a float32 exponent, as in the reference; by the C library in float64 and then rounded, so
# that the constant does not depend on the processor that exports.
TIME_FREQUENCIES = np.array(
    [
        math.exp(np.float32(i) * np.float32(-math.log(10000) / (TIME_FEATURES // 2 - 1)))
        for i in range(TIME_FEATURES // 2)
    ],
    np.float32,
)


class FlowBlock(nn.Module):
    def __init__(self, sizes: FlowTransformerSizes) -> None:
        super().__init__()
        self.sizes = sizes
        width = sizes.hidden
        self.attention_norm = parameter(width)
        self.qkv_weight = parameter(width, 3 * width)
        self.qkv_bias = parameter(3 * width)
        self.out_weight = parameter(width, width)
        self.out_bias = parameter(width)
        self.mlp_norm = parameter(width)
        self.up_weight = parameter(width, sizes.feed_forward)
        self.up_bias = parameter(sizes.feed_forward)
        self.down_weight = parameter(sizes.feed_forward, width)
        self.down_bias = parameter(width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, keep: slice) -> Tensor:
        """x: (rows, L, hidden) to (rows, kept, hidden).

        Only the positions of `keep` are carried on: the last block need not compute the others.
        """
        _, length, width = x.shape
        heads = self.sizes.heads
        qkv = rms_norm(x, self.attention_norm, RMS_EPS) @ self.qkv_weight + self.qkv_bias
        query, key, value = (
            part.view(-1, length, heads, width // heads).transpose(1, 2)
            for part in qkv.chunk(3, dim=-1)
        )
        query, key = rotate_pairs(query, cos, sin), rotate_pairs(key, cos, sin)
        query, x = query[:, :, keep], x[:, keep]
        scores = (query * (width // heads) ** -0.5) @ key.transpose(-1, -2)
        attended = (torch.softmax(scores, -1) @ value).transpose(1, 2)
        attended = attended.reshape(-1, x.shape[1], width)
        x = x + (attended @ self.out_weight + self.out_bias)
        up = rms_norm(x, self.mlp_norm, RMS_EPS) @ self.up_weight + self.up_bias
        up = nn.functional.gelu(up, approximate="tanh")
        return x + (up @ self.down_weight + self.down_bias)


class FlowTransformer(nn.Module):
    """Blocks, final norm and linear: shared by the DiT and the aggregator."""

    def __init__(self, sizes: FlowTransformerSizes, latent_dim: int, output: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.latent_weight = parameter(latent_dim, sizes.hidden)
        self.latent_bias = parameter(sizes.hidden)
        self.inverse_frequencies = parameter(sizes.hidden // sizes.heads // 2)
        self.blocks = nn.ModuleList(FlowBlock(sizes) for _ in range(sizes.depth))
        self.final_norm = parameter(sizes.hidden)
        self.final_weight = parameter(sizes.hidden, output)
        self.final_bias = parameter(output)

    def embed(self, latents: Tensor) -> Tensor:
        """latents: (rows, L, latent_dim) to tokens (rows, L, hidden)."""
        return latents @ self.latent_weight + self.latent_bias

    def transform(self, tokens: Tensor, keep: slice) -> Tensor:
        """tokens: (rows, L, hidden) to (rows, kept, output)."""
        angles = torch.arange(tokens.shape[1]).float().unsqueeze(-1) * self.inverse_frequencies
        angles = angles.repeat_interleave(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        for index, module in enumerate(self.blocks):
            last = index == len(self.blocks) - 1
            tokens = cast(FlowBlock, module)(tokens, cos, sin, keep if last else slice(None))
        return rms_norm(tokens, self.final_norm, RMS_EPS) @ self.final_weight + self.final_bias


class Flow(FlowTransformer):
    """The DiT: velocity of the patch at one time, both guidance rows."""

    def __init__(self, sizes: FlowTransformerSizes, latent_dim: int, talker_hidden: int) -> None:
        super().__init__(sizes, latent_dim, latent_dim)
        self.time_in_weight = parameter(TIME_FEATURES, sizes.hidden)
        self.time_in_bias = parameter(sizes.hidden)
        self.time_out_weight = parameter(sizes.hidden, sizes.hidden)
        self.time_out_bias = parameter(sizes.hidden)
        self.condition_weight = parameter(talker_hidden, sizes.hidden)
        self.condition_bias = parameter(sizes.hidden)

    def velocity(
        self, latents: Tensor, time: Tensor, hidden: Tensor, history: Tensor, guidance: Tensor
    ) -> Tensor:
        """Guided velocity (slots, patch, latent_dim): c + guidance * (c - u).

        latents: (slots, patch, latent_dim); time: (1,) in 0..1; hidden: (slots, 1, talker_hidden);
        history: (slots, history, latent_dim); guidance: (slots,).
        """
        _, patch, latent_dim = latents.shape
        time_token = silu(time_features(time) @ self.time_in_weight + self.time_in_bias)
        time_token = time_token @ self.time_out_weight + self.time_out_bias
        # Zeros by a product: no shape is computed for the number of slots, which a captured CUDA
        # graph could not hold.
        condition = torch.cat((hidden, hidden * 0.0))
        first = time_token + (condition @ self.condition_weight + self.condition_bias)
        # History and patch are the same in both rows: embed them once.
        rest = self.embed(torch.cat((history, latents), dim=1))
        tokens = torch.cat((first, torch.cat((rest, rest))), dim=1)
        output = self.transform(tokens, slice(-patch, None)).view(2, -1, patch, latent_dim)
        conditioned, unconditioned = output[0], output[1]
        return conditioned + guidance.view(-1, 1, 1) * (conditioned - unconditioned)


class Aggregator(FlowTransformer):
    """A patch to the talker's next input embedding: the output at a learned class token."""

    def __init__(self, sizes: FlowTransformerSizes, latent_dim: int, talker_hidden: int) -> None:
        super().__init__(sizes, latent_dim, talker_hidden)
        self.class_token = parameter(1, sizes.hidden)

    def forward(self, patch: Tensor) -> Tensor:
        """patch: (slots, patch, latent_dim) to (slots, 1, talker_hidden)."""
        embedded = self.embed(patch)
        first = self.class_token + embedded[:, :1] * 0.0
        return self.transform(torch.cat((first, embedded), dim=1), slice(0, 1))


class StopHead(nn.Module):
    def __init__(self, talker_hidden: int) -> None:
        super().__init__()
        self.weight = parameter(talker_hidden, 2)
        self.bias = parameter(2)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (slots, 1, talker_hidden) to the probability of a last patch, (slots,)."""
        return torch.softmax(hidden @ self.weight + self.bias, -1)[:, 0, 1]


def euler_step(
    latents: Tensor, velocity: Tensor, time_step: Tensor, noise: Tensor, noise_scale: Tensor
) -> Tensor:
    """latents + dt * v, plus noise_scale * sqrt(|dt|) * noise (Euler-Maruyama); all float32.

    latents, velocity, noise: (slots, patch, latent_dim); time_step: (1,); noise_scale: (slots,).
    """
    scale = (noise_scale * time_step.abs().sqrt()).view(-1, 1, 1)
    return latents + time_step * velocity + scale * noise


def time_features(time: Tensor) -> Tensor:
    """Sines then cosines of 1000 t at geometric frequencies. time: (1,) to (1, TIME_FEATURES)."""
    angles = (1000.0 * time).unsqueeze(-1) * constant(TIME_FREQUENCIES)
    return torch.cat((angles.sin(), angles.cos()), -1)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of interleaved pairs (0,1), (2,3), …; x: (rows, heads, L, head_dim).

    Each pair (a, b) becomes (-b, a) by a product with a constant matrix of 0 and ±1: exact, and
    one kernel where strided slices would be four.
    """
    size = x.shape[-1]
    even = np.arange(0, size, 2)
    swap = np.zeros((size, size), np.float32)
    swap[even + 1, even] = -1.0
    swap[even, even + 1] = 1.0
    return x * cos + (x @ constant(swap)) * sin
