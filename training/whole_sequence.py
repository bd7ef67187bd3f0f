"""The exporter's modules over whole sequences, batched and differentiable.

The modules themselves run one request at a time against caches; training runs many utterances at
once. Same parameters, same arithmetic: tests hold the two equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import cast

import torch
from torch import Tensor, nn

from export.modules.audio_decoder import AudioDecoder
from export.modules.audio_encoder import LEAST_DEVIATION, AudioEncoder
from export.modules.flow import (
    RMS_EPS,
    TIME_FREQUENCIES,
    Aggregator,
    Flow,
    FlowBlock,
    FlowTransformer,
)
from export.modules.layers import rms_norm, silu
from export.modules.transformer import CausalTransformer, TransformerLayer, rotate

_TIME_FREQUENCIES = tuple(TIME_FREQUENCIES.tolist())


@cache
def _on(device: torch.device, values: tuple[float, ...]) -> Tensor:
    """A constant on a device, sent there once: a captured step copies nothing from the host."""
    return torch.tensor(values, device=device)


@cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function, fullgraph=True, dynamic=False)


def compiled(function: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """`function` compiled where that pays: for training on a GPU."""
    return _compiled(function) if device.type == "cuda" and torch.is_grad_enabled() else function


def start(module: nn.Module, generator: torch.Generator) -> None:
    """Random values for every parameter, and gradients for them."""
    for name, parameter in module.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        with torch.no_grad():
            if parameter.dim() == 1:
                parameter.fill_(1.0 if leaf.endswith("norm") else 0.0)
            else:
                rows = 1 if leaf in ("class_token", "table") else parameter.shape[-2]
                scale = 0.02 if leaf == "table" else 1 / math.sqrt(rows)
                if leaf in ("out_weight", "down_weight"):
                    scale *= 0.5
                values = torch.randn(parameter.shape, generator=generator) * scale
                parameter.copy_(values)
        parameter.requires_grad_(leaf not in ("inverse_frequencies", "window"))


def block(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    mask: Tensor | None,
    weights: Sequence[Tensor],
    heads: int,
    kv_heads: int,
    eps: float,
) -> Tensor:
    """One layer of a causal stack as a pure function, so that it is compiled once for all layers.

    x: (batch, T, hidden). mask: (T, T) bool, True where a query sees a key; None is causal.
    """
    attention_norm, qkv_weight, qkv_bias, out_weight, mlp_norm, gate_up_weight, down_weight = (
        weights
    )
    batch, tokens, _ = x.shape
    size = out_weight.shape[0] // heads
    qkv = rms_norm(x, attention_norm, eps) @ qkv_weight + qkv_bias
    query, key, value = qkv.split([heads * size, kv_heads * size, kv_heads * size], dim=-1)
    query = rotate(query.view(batch, tokens, heads, size).transpose(1, 2), cos, sin)
    key = rotate(key.view(batch, tokens, kv_heads, size).transpose(1, 2), cos, sin)
    value = value.view(batch, tokens, kv_heads, size).transpose(1, 2)
    key = key.repeat_interleave(heads // kv_heads, 1)
    value = value.repeat_interleave(heads // kv_heads, 1)
    dtype = value.dtype
    attended = nn.functional.scaled_dot_product_attention(
        query.to(dtype), key.to(dtype), value, attn_mask=mask, is_causal=mask is None
    )
    x = x + attended.transpose(1, 2).reshape(batch, tokens, -1) @ out_weight
    gate, up = (rms_norm(x, mlp_norm, eps) @ gate_up_weight).chunk(2, dim=-1)
    return x + (silu(gate) * up) @ down_weight


def stack(module: CausalTransformer, x: Tensor) -> Tensor:
    """x: (batch, T, hidden) from position 0, to the hidden states after the final norm."""
    x = x.float()
    positions = torch.arange(x.shape[1], device=x.device)
    frequencies = _on(x.device, tuple(module.inverse_frequencies.tolist()))
    angles = positions.float().unsqueeze(-1) * frequencies
    angles = torch.cat((angles, angles), -1)
    cos, sin = angles.cos(), angles.sin()
    s, run = module.sizes, compiled(block, x.device)
    distance = positions.unsqueeze(-1) - positions
    for index, inner in enumerate(module.layers):
        window = s.window[index]
        mask = None if window is None else (distance >= 0) & (distance <= window)
        one = cast(TransformerLayer, inner)
        weights = (
            one.attention_norm, one.qkv_weight, one.qkv_bias, one.out_weight, one.mlp_norm,
            one.gate_up_weight, one.down_weight,
        )  # fmt: skip
        x = run(x, cos, sin, mask, weights, s.heads, s.kv_heads, s.rms_eps)
    return rms_norm(x, module.norm, s.rms_eps)


def encode(module: AudioEncoder, wave: Tensor) -> tuple[Tensor, Tensor]:
    """wave: (batch, samples), whole latents, to mean and std (batch, latents, latent_dim)."""
    g = module.geometry
    batch = wave.shape[0]
    frames = wave.view(batch, -1, g.encoder_hop) @ module.wave_weight
    hidden = stack(module.frames, frames @ module.frame_weight + module.frame_bias)
    grouped = hidden.view(batch, -1, g.frames_per_latent, hidden.shape[-1])
    count = grouped.shape[1]
    assert module.latents is not None
    classes = module.class_token.unsqueeze(0).expand(batch, count, 1, -1)
    row = torch.cat((grouped, classes.to(grouped.dtype)), 2)
    row = stack(module.latents, row.view(batch, count * (g.frames_per_latent + 1), -1))
    hidden = row.view(batch, count, g.frames_per_latent + 1, -1)[:, :, -1]
    mean, scale = (hidden @ module.latent_weight + module.latent_bias).chunk(2, dim=-1)
    return mean, nn.functional.softplus(scale) + LEAST_DEVIATION


def decode(module: AudioDecoder, latents: Tensor) -> Tensor:
    """latents: (batch, T, latent_dim) to audio (batch, T * frames_per_latent * hop_length)."""
    g = module.geometry
    embedded = latents @ module.latent_weight + module.latent_bias
    frames = nn.functional.interpolate(
        embedded.float().transpose(1, 2), scale_factor=g.frames_per_latent, mode="linear"
    ).transpose(1, 2)
    hidden = stack(module, frames)
    spectrum = (hidden @ module.head_weight + module.head_bias).float()
    count = spectrum.shape[1]
    bins = g.n_fft // 2 + 1
    log_magnitude, phase = spectrum.split(bins, dim=-1)
    magnitude = torch.clamp(log_magnitude.exp(), max=100.0)
    pieces = torch.fft.irfft(torch.polar(magnitude, phase), n=g.n_fft) * module.window
    audio = _overlap_add(pieces, g.hop_length)
    weight = _overlap_add(module.window.square().expand(1, count, -1), g.hop_length)
    trim = (g.n_fft - g.hop_length) // 2
    return (audio / weight.clamp(min=1e-11))[:, trim:-trim]


def _overlap_add(frames: Tensor, hop: int) -> Tensor:
    batch, count, size = frames.shape
    total = (count - 1) * hop + size
    return nn.functional.fold(frames.transpose(1, 2), (1, total), (1, size), stride=(1, hop)).view(
        batch, total
    )


def transform(module: FlowTransformer, tokens: Tensor, last: int) -> Tensor:
    """tokens: (n, L, hidden) to (n, last, output), or (n, L, output) where `last` is 0."""
    tokens = tokens.float()
    angles = torch.arange(tokens.shape[1], device=tokens.device).float().unsqueeze(-1)
    angles = (angles * module.inverse_frequencies).repeat_interleave(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    run = compiled(flow_block, tokens.device)
    for one in cast(Sequence[FlowBlock], module.blocks):
        weights = (
            one.attention_norm, one.qkv_weight, one.qkv_bias, one.out_weight, one.out_bias,
            one.mlp_norm, one.up_weight, one.up_bias, one.down_weight, one.down_bias,
        )  # fmt: skip
        tokens = run(tokens, cos, sin, weights, module.sizes.heads)
    tokens = tokens[:, -last:]
    return rms_norm(tokens, module.final_norm, RMS_EPS) @ module.final_weight + module.final_bias


def flow_block(
    x: Tensor, cos: Tensor, sin: Tensor, weights: Sequence[Tensor], heads: int
) -> Tensor:
    """One block of the flow as a pure function. x: (n, L, hidden)."""
    (
        attention_norm, qkv_weight, qkv_bias, out_weight, out_bias,
        mlp_norm, up_weight, up_bias, down_weight, down_bias,
    ) = weights  # fmt: skip
    rows, length, width = x.shape
    qkv = rms_norm(x, attention_norm, RMS_EPS) @ qkv_weight + qkv_bias
    query, key, value = (
        part.view(rows, length, heads, width // heads).transpose(1, 2)
        for part in qkv.chunk(3, dim=-1)
    )
    dtype = value.dtype
    attended = nn.functional.scaled_dot_product_attention(
        _rotate_pairs(query, cos, sin).to(dtype), _rotate_pairs(key, cos, sin).to(dtype), value
    )
    x = x + (attended.transpose(1, 2).reshape(rows, length, width) @ out_weight + out_bias)
    up = rms_norm(x, mlp_norm, RMS_EPS) @ up_weight + up_bias
    return x + (nn.functional.gelu(up, approximate="tanh") @ down_weight + down_bias)


def _rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return x * cos + torch.stack((-odd, even), -1).flatten(-2) * sin


def velocity(
    module: Flow, latents: Tensor, time: Tensor, hidden: Tensor, history: Tensor
) -> Tensor:
    """Unguided velocity. latents: (n, patch, latent_dim); time: (n,); hidden: (n, talker_hidden);
    history: (n, history, latent_dim)."""
    angles = (1000.0 * time).unsqueeze(-1) * _on(time.device, _TIME_FREQUENCIES)
    features = torch.cat((angles.sin(), angles.cos()), -1)
    token = silu(features @ module.time_in_weight + module.time_in_bias)
    token = token @ module.time_out_weight + module.time_out_bias
    first = token + hidden @ module.condition_weight + module.condition_bias
    rest = module.embed(torch.cat((history, latents), dim=1))
    tokens = torch.cat((first.unsqueeze(1).to(rest.dtype), rest), dim=1)
    return transform(module, tokens, latents.shape[1])


def aggregate(module: Aggregator, patches: Tensor) -> Tensor:
    """patches: (n, patch, latent_dim) to talker embeddings (n, talker_hidden)."""
    classes = module.class_token.unsqueeze(0).expand(patches.shape[0], -1, -1)
    embedded = module.embed(patches)
    tokens = torch.cat((classes.to(embedded.dtype), embedded), dim=1)
    return transform(module, tokens, 0)[:, 0]
