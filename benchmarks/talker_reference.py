"""A talker in plain float32 torch, and random weights for it: what the kernels are held against."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from trt_runtime.plugins.sizes import TalkerSizes
from trt_runtime.transformer_sizes import ExpertSizes

DENSE = TalkerSizes(
    hidden=896, layers=24, heads=14, kv_heads=2, head_dim=64, intermediate=4864,
    rope_theta=1e6, rms_eps=1e-6, qkv_bias=True,
)  # fmt: skip
EXPERTS = TalkerSizes(
    hidden=2048, layers=28, heads=16, kv_heads=4, head_dim=128, intermediate=2816,
    rope_theta=6e5, rms_eps=1e-6, qkv_bias=False,
    experts=ExpertSizes(count=64, chosen=6, intermediate=1408, normalized=True),
)  # fmt: skip
SMALL_DENSE = TalkerSizes(
    hidden=96, layers=2, heads=6, kv_heads=2, head_dim=16, intermediate=160,
    rope_theta=1e4, rms_eps=1e-6, qkv_bias=True,
)  # fmt: skip
SMALL_EXPERTS = TalkerSizes(
    hidden=64, layers=2, heads=4, kv_heads=2, head_dim=32, intermediate=64,
    rope_theta=1e4, rms_eps=1e-5, qkv_bias=False,
    experts=ExpertSizes(count=12, chosen=3, intermediate=32, normalized=True),
)  # fmt: skip


def random_weights(
    sizes: TalkerSizes, seed: int, device: torch.device | str
) -> Iterator[tuple[str, Tensor]]:
    """The kernels' tensors, random: activations keep their size from layer to layer."""
    from trt_runtime.plugins.layout import FLOAT32, kernel_tensors

    generator = torch.Generator(device).manual_seed(seed)
    for tensor in kernel_tensors(sizes):
        kind = tensor.name.rsplit(".", 1)[-1]
        kwargs = {"generator": generator, "device": device}
        if kind.endswith("norm"):
            value = 1 + 0.1 * torch.randn(tensor.shape, **kwargs)
        elif kind == "qkv_bias":
            value = 0.5 * torch.randn(tensor.shape, **kwargs)
        else:
            deviation = tensor.shape[-1] ** -0.5 * {"gate_up": 1.5, "router": 2.0}.get(kind, 1.0)
            value = torch.empty(tensor.shape, dtype=torch.bfloat16, device=device)
            value.normal_(0.0, deviation, generator=generator)
        yield tensor.name, value.float() if tensor.dtype == FLOAT32 else value


def reference(
    sizes: TalkerSizes, weights: Mapping[str, Tensor], x: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """All positions at once. x: (T, hidden) float32 -> hidden (T, hidden), choices of each layer.

    weights: the kernels' tensors; each is raised to float32 when its turn comes. A choice is
    (T, chosen) int64, ascending.
    """
    length, group = x.shape[0], sizes.heads // sizes.kv_heads
    powers = torch.tensor(
        [math.pow(sizes.rope_theta, 2 * i / sizes.head_dim) for i in range(sizes.head_dim // 2)]
    )
    angles = torch.arange(length).float().unsqueeze(-1) * (1 / powers)
    cosine, sine = (torch.cat((f, f), -1).to(x) for f in (angles.cos(), angles.sin()))
    mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
    choices = []

    def rotate(value: Tensor) -> Tensor:
        first, second = value.chunk(2, -1)
        return value * cosine + torch.cat((-second, first), -1) * sine

    for layer in range(sizes.layers):
        at = f"layers.{layer}."
        qkv = (
            _norm(x, weights[at + "attention_norm"], sizes.rms_eps) @ weights[at + "qkv"].float().T
        )
        if sizes.qkv_bias:
            qkv = qkv + weights[at + "qkv_bias"]
        heads = qkv.view(length, -1, sizes.head_dim).transpose(0, 1)
        query, key, value = heads.split([sizes.heads, sizes.kv_heads, sizes.kv_heads])
        query, key = rotate(query), rotate(key).repeat_interleave(group, 0)
        scores = query @ key.transpose(1, 2) * sizes.head_dim**-0.5
        scores = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        attended = scores @ value.repeat_interleave(group, 0)
        attended = attended.transpose(0, 1).reshape(length, -1)
        x = x + attended @ weights[at + "out"].float().T
        x, chosen = feed_forward(sizes, weights, at, x)
        if chosen is not None:
            choices.append(chosen)
    return _norm(x, weights["norm"], sizes.rms_eps), choices


def feed_forward(
    sizes: TalkerSizes, weights: Mapping[str, Tensor], at: str, x: Tensor
) -> tuple[Tensor, Tensor | None]:
    """A layer's second half. x: (T, hidden) float32 -> the same, and the experts chosen."""
    normed = _norm(x, weights[at + "mlp_norm"], sizes.rms_eps)

    def expert(rows: Tensor, number: int) -> Tensor:
        both = rows @ weights[at + "gate_up"][number].float().T
        gate, up = both[:, 0::2], both[:, 1::2]
        return (gate * torch.sigmoid(gate) * up) @ weights[at + "down"][number].float().T

    y = sum(expert(normed, sizes.routed_experts + place) for place in range(sizes.shared_experts))
    if sizes.experts is None:
        return x + y, None
    logits = normed @ weights[at + "router"].float().T
    shares, chosen = logits.softmax(-1).topk(sizes.experts.chosen, -1)
    if sizes.experts.normalized:
        shares = shares / shares.sum(-1, keepdim=True)
    for number in chosen.unique().tolist():
        row, place = torch.where(chosen == number)
        y[row] += expert(normed[row], number) * shares[row, place].unsqueeze(-1)
    return x + y, chosen.sort(-1).values


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight
