"""The causal transformer of Qwen2, with a cache of static length, as the audio tokenizer has it.

The talker is the same but for what attends (:mod:`export.modules.talker`).

Grouped-query attention with biases on query, key and value, half-split rotary embedding over the
whole head (Su et al. 2021), RMSNorm before each half, SwiGLU. A layer may have a sliding window;
its cache is then a ring. Source: Qwen2 technical report and the reference's use of it (facts).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from export.modules.layers import constant, parameter, rms_norm, silu
from export.sizes import TransformerSizes

#: Added to the score of a key that must not be seen. Finite: a query that sees no key (a frame
#: before the start, whose result nobody reads) then gives a number and not NaN.
HIDDEN_KEY = -1e9


class TransformerLayer(nn.Module):
    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.sizes = sizes
        width = sizes.heads * sizes.head_dim
        self.attention_norm = parameter(sizes.hidden)
        self.qkv_weight = parameter(sizes.hidden, width + 2 * sizes.kv_heads * sizes.head_dim)
        self.qkv_bias = (
            parameter(width + 2 * sizes.kv_heads * sizes.head_dim) if sizes.qkv_bias else None
        )
        self.out_weight = parameter(width, sizes.hidden)
        self.mlp_norm = parameter(sizes.hidden)
        self.add_feed_forward(sizes)

    def add_feed_forward(self, sizes: TransformerSizes) -> None:
        """Declares the parameters of the layer's second half."""
        self.gate_up_weight = parameter(sizes.hidden, 2 * sizes.intermediate)
        self.down_weight = parameter(sizes.intermediate, sizes.hidden)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The layer's second half, with its norm and its residual. x: (..., hidden)."""
        return x + self.swiglu(rms_norm(x, self.mlp_norm, self.sizes.rms_eps))

    def swiglu(self, normed: Tensor) -> Tensor:
        """normed: (..., hidden) through gate, up and down (Shazeer 2020, arXiv:2002.05202)."""
        gate, up = (normed @ self.gate_up_weight).chunk(2, dim=-1)
        return (silu(gate) * up) @ self.down_weight

    def queries_keys_values(self, x: Tensor) -> Tensor:
        """x: (..., hidden) to (..., (heads + 2 * kv_heads) * head_dim), after the layer's norm."""
        qkv = rms_norm(x, self.attention_norm, self.sizes.rms_eps) @ self.qkv_weight
        return qkv if self.qkv_bias is None else qkv + self.qkv_bias

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """The rest of the layer. x: (..., hidden); attended: (..., heads * head_dim)."""
        return self.feed_forward(x + attended @ self.out_weight)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
        mask: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One layer over T new positions.

        x: (1, T, hidden); cos, sin: (T, head_dim); slots: (T,) int64, where the new keys go;
        mask: (T, cache_length), 0 or HIDDEN_KEY; caches: (1, kv_heads, cache_length, head_dim).
        Returns x and both caches.
        """
        s = self.sizes
        tokens, group = x.shape[1], s.heads // s.kv_heads
        query, key, value = self.queries_keys_values(x).split(
            [s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim], dim=-1
        )
        query = rotate(query.view(1, tokens, s.heads, s.head_dim).transpose(1, 2), cos, sin)
        key = rotate(key.view(1, tokens, s.kv_heads, s.head_dim).transpose(1, 2), cos, sin)
        value = value.view(1, tokens, s.kv_heads, s.head_dim).transpose(1, 2)
        key_cache = write_slots(key_cache, slots, key)
        value_cache = write_slots(value_cache, slots, value)
        # Query heads of a group share a key head: fold the group into the rows, copy no key.
        query = query.reshape(1, s.kv_heads, group * tokens, s.head_dim) * s.head_dim**-0.5
        scores = query @ key_cache.transpose(-1, -2)
        scores = scores.view(1, s.kv_heads, group, tokens, -1) + mask
        weights = torch.softmax(scores, -1).view(1, s.kv_heads, group * tokens, -1)
        attended = (weights @ value_cache).view(1, s.heads, tokens, s.head_dim)
        attended = attended.transpose(1, 2).reshape(1, tokens, s.heads * s.head_dim)
        return self.after_attention(x, attended), key_cache, value_cache


class CausalTransformer(nn.Module):
    """All layers and the final norm. `cache_lengths[i]` is the length of layer i's caches.

    `layer` makes a layer of the sizes.
    """

    def __init__(
        self,
        sizes: TransformerSizes,
        cache_lengths: Sequence[int],
        layer: Callable[[TransformerSizes], nn.Module] = TransformerLayer,
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.cache_lengths = tuple(cache_lengths)
        self.layers = nn.ModuleList(layer(sizes) for _ in range(sizes.layers))
        self.norm = parameter(sizes.hidden)
        exponents = np.arange(0, sizes.head_dim, 2, dtype=np.float32) / np.float32(sizes.head_dim)
        # An array, not a buffer: no weight of a checkpoint. Powers in float64, then rounded: the
        # reference's float32 values, whatever the processor that exports.
        powers = [math.pow(sizes.rope_theta, exponent) for exponent in exponents.tolist()]
        self.inverse_frequencies = np.float32(1) / np.array(powers, np.float32)

    def forward(
        self, x: Tensor, position: Tensor, caches: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """x: (1, T, hidden) at positions `position` (1,) int64 and following.

        caches: key and value of layer 0, of layer 1, … Returns the hidden states after the final
        norm and the caches. Positions before 0 are allowed; no key of theirs is ever seen.
        """
        positions = position + torch.arange(x.shape[1], dtype=torch.int64)
        angles = positions.float().unsqueeze(-1) * constant(self.inverse_frequencies)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos(), angles.sin()
        kinds: dict[tuple[int, int | None], tuple[Tensor, Tensor]] = {}
        new_caches: list[Tensor] = []
        for index, module in enumerate(self.layers):
            layer = cast(TransformerLayer, module)
            kind = (self.cache_lengths[index], self.sizes.window[index])
            if kind not in kinds:
                kinds[kind] = slots_and_mask(positions, *kind)
            slots, mask = kinds[kind]
            x, key, value = layer(
                x, cos, sin, slots, mask, caches[2 * index], caches[2 * index + 1]
            )
            new_caches += [key, value]
        return rms_norm(x, self.norm, self.sizes.rms_eps), new_caches


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, half-split pairs. x: (1, heads, T, head_dim); cos, sin: (T, head_dim)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), -1) * sin


def write_slots(cache: Tensor, slots: Tensor, rows: Tensor) -> Tensor:
    """The cache (1, heads, length, dim) with `rows` (1, heads, T, dim) at `slots` (T,)."""
    heads = torch.arange(cache.shape[1], dtype=torch.int64).unsqueeze(-1)
    indices = (torch.zeros_like(heads), heads, slots.unsqueeze(0))
    return cache.index_put(indices, rows.squeeze(0).to(cache.dtype))


def slots_and_mask(positions: Tensor, length: int, window: int | None) -> tuple[Tensor, Tensor]:
    """Slots (T,) of a ring of `length` for `positions` (T,), and the mask (T, length).

    After the write slot s holds the latest position congruent to s: last - (last - s) mod length.
    A query sees keys from 0 up to itself, and with a window only the last `window` besides itself.
    """
    last = positions[-1:]
    keys = last - torch.remainder(last - torch.arange(length, dtype=torch.int64), length)
    distance = positions.unsqueeze(-1) - keys
    seen = (keys >= 0) & (distance >= 0)
    if window is not None:
        seen = seen & (distance <= window)
    mask = torch.where(seen, torch.tensor(0.0), torch.tensor(HIDDEN_KEY))
    return torch.remainder(positions, length), mask
