"""The operator that a talker's layer attends by: rotary positions, static cache, groups of heads.

Its meaning is in :mod:`trt_runtime.operators`.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("ming_trt::cached_attention", mutates_args=())
def cached_attention(
    qkv: Tensor,
    position: Tensor,
    inverse_frequencies: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    heads: int,
    kv_heads: int,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """CachedAttention of :mod:`trt_runtime.operators`, slot by slot."""
    tokens, head_dim = qkv.shape[1], key_cache.shape[3]
    key_cache, value_cache = key_cache.clone(), value_cache.clone()
    attended = []
    for slot, start in enumerate(position.tolist()):
        positions = torch.arange(start, start + tokens)
        angles = positions.float().unsqueeze(-1) * inverse_frequencies
        rows = qkv[slot].view(tokens, heads + 2 * kv_heads, head_dim).transpose(0, 1)
        query, key, value = rows.split([heads, kv_heads, kv_heads])
        # Turned in float32, kept in what the caches are.
        key_cache[slot, :, positions] = _turned(key, angles).to(key_cache.dtype)
        value_cache[slot, :, positions] = value.to(value_cache.dtype)
        distance = positions.unsqueeze(-1) - torch.arange(start + tokens)
        seen = (distance >= 0) & (distance <= window)
        attended.append(
            torch.nn.functional.scaled_dot_product_attention(
                _turned(query, angles).unsqueeze(0),
                key_cache[slot : slot + 1, :, : start + tokens],
                value_cache[slot : slot + 1, :, : start + tokens],
                attn_mask=seen,
                enable_gqa=True,
            )
        )
    whole = torch.cat(attended).transpose(1, 2)
    return whole.reshape(*qkv.shape[:2], heads * head_dim), key_cache, value_cache


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    """x: (heads, tokens, head_dim) turned by angles (tokens, head_dim / 2)."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


@cached_attention.register_fake
def _(
    qkv: Tensor,
    position: Tensor,
    inverse_frequencies: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    heads: int,
    kv_heads: int,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    attended = qkv.new_empty((*qkv.shape[:2], heads * key_cache.shape[3]))
    return attended, torch.empty_like(key_cache), torch.empty_like(value_cache)
