"""The same layers in torch, as well as torch can do them: what the plugin loop is timed against.

bfloat16 throughout, norms and softmax of the router in float32, queries, keys and values in one
product, scaled_dot_product_attention over a cache of exactly the context's length. Experts in
three forms: `gather` reads the weights of each row's choice (compiled: fused into the product, as
gpt-fast does), `grouped` sorts the choices and calls torch's grouped matrix product, `all` runs
every expert on every row. Each is run in one of MODES; `tuned` is compiled with Inductor's
coordinate descent, which gpt-fast turns on for products with few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_runtime.plugins.loop import rotary_tables
from trt_runtime.plugins.sizes import TalkerSizes

FORMS = ("gather", "grouped", "all")
#: As Python calls it, captured as a CUDA graph, compiled layer by layer and captured, tuned too.
MODES = ("eager", "graph", "compiled", "tuned")


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def _swiglu(both: Tensor) -> Tensor:
    return F.silu(both[..., 0::2]) * both[..., 1::2]


def _routed(
    sizes: TalkerSizes, form: str, x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor
) -> Tensor:
    """x: (rows, hidden); gate_up: (experts, 2 width, hidden); down: (experts, hidden, width)."""
    experts = sizes.experts
    assert experts is not None
    rows, hidden = x.shape
    shares, chosen = (x @ router.T).float().softmax(-1).topk(experts.chosen, -1)
    if experts.normalized:
        shares = shares / shares.sum(-1, keepdim=True)
    shares = shares.to(x.dtype)
    if form == "gather":
        both = (gate_up[chosen] * x[:, None, None, :]).sum(-1)
        each = (down[chosen] * _swiglu(both)[:, :, None, :]).sum(-1)
        return (each * shares[..., None]).sum(1)
    if form == "grouped":
        order = chosen.flatten().argsort(stable=True)
        counts = (chosen.flatten()[:, None] == torch.arange(experts.count, device=x.device)).sum(0)
        ends = counts.cumsum(0).to(torch.int32)
        both = torch._grouped_mm(x[order // experts.chosen], gate_up.transpose(1, 2), offs=ends)
        each = torch._grouped_mm(_swiglu(both), down.transpose(1, 2), offs=ends)
        each = each * shares.flatten()[order][:, None]
        return torch.empty_like(each).index_copy(0, order, each).view(rows, -1, hidden).sum(1)
    weights = torch.zeros(rows, experts.count, dtype=x.dtype, device=x.device)
    weights = weights.scatter(1, chosen, shares)
    both = torch.matmul(x[None], gate_up.transpose(1, 2))
    each = torch.bmm(_swiglu(both) * weights.T[..., None], down.transpose(1, 2))
    return each.sum(0)


def _layer(
    sizes: TalkerSizes, form: str, x: Tensor, cosine: Tensor, sine: Tensor,
    key_cache: Tensor, value_cache: Tensor, attention_norm: Tensor, qkv_weight: Tensor,
    qkv_bias: Tensor | None, out: Tensor, mlp_norm: Tensor, router: Tensor | None,
    gate_up: Tensor, down: Tensor, shared_gate_up: Tensor, shared_down: Tensor,
) -> Tensor:  # fmt: skip
    """x: (rows, hidden) bfloat16, at the last position of the caches (rows, kv, context, dim)."""
    rows, last = x.shape[0], key_cache.shape[2] - 1
    qkv = F.linear(_norm(x, attention_norm, sizes.rms_eps), qkv_weight, qkv_bias)
    heads = qkv.view(rows, -1, 1, sizes.head_dim)
    query, key, value = heads.split([sizes.heads, sizes.kv_heads, sizes.kv_heads], 1)

    def rotate(y: Tensor) -> Tensor:
        first, second = y.float().chunk(2, -1)
        return (y.float() * cosine + torch.cat((second, first), -1) * sine).to(y.dtype)

    key_cache[:, :, last:] = rotate(key)
    value_cache[:, :, last:] = value
    attended = F.scaled_dot_product_attention(
        rotate(query), key_cache, value_cache, enable_gqa=True
    )
    x = x + F.linear(attended.reshape(rows, -1), out)
    normed = _norm(x, mlp_norm, sizes.rms_eps)
    y = F.linear(_swiglu(F.linear(normed, shared_gate_up)), shared_down)
    if router is not None:
        y = y + _routed(sizes, form, normed, router, gate_up, down)
    return x + y


class Peer:
    """A decode step of all layers, of `rows` rows at position context - 1. Call `run` for a step.

    hidden: (rows, hidden) bfloat16, what the last step gave.
    """

    def __init__(
        self, sizes: TalkerSizes, weights: Mapping[str, Tensor], shared: Mapping[str, Tensor],
        inputs: Tensor, context: int, *, form: str, mode: str,
    ) -> None:  # fmt: skip
        """shared: of each layer the down projection of all shared experts, side by side."""
        rows, device = inputs.shape[0], inputs.device
        cosine, sine = (table[-1] for table in rotary_tables(sizes, context, device))
        shape = (sizes.layers, rows, sizes.kv_heads, context, sizes.head_dim)
        caches = [torch.randn(shape, device=device).bfloat16() for _ in range(2)]
        routed = sizes.routed_experts

        def layer(x: Tensor, *arguments: Tensor | None) -> Tensor:
            return _layer(sizes, form, x, *arguments)  # type: ignore[arg-type]

        one: Callable[..., Tensor] = layer
        if mode in ("compiled", "tuned"):
            options = {"coordinate_descent_tuning": mode == "tuned"}
            one = torch.compile(layer, dynamic=False, options=options)

        def step() -> Tensor:
            x = inputs.bfloat16()
            for number in range(sizes.layers):
                at = f"layers.{number}."
                gate_up, down = weights[at + "gate_up"], weights[at + "down"]
                bias = weights[at + "qkv_bias"].bfloat16() if sizes.qkv_bias else None
                x = one(
                    x, cosine, sine, caches[0][number], caches[1][number],
                    weights[at + "attention_norm"], weights[at + "qkv"], bias, weights[at + "out"],
                    weights[at + "mlp_norm"], weights.get(at + "router"),
                    gate_up[:routed], down[:routed],
                    gate_up[routed:].flatten(0, 1), shared[at + "down"],
                )  # fmt: skip
            return _norm(x, weights["norm"], sizes.rms_eps)

        self.run: Callable[[], object] = step
        self.hidden = step()
        if mode != "eager":
            step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.hidden = step()
            self.run = graph.replay


def shared_down(sizes: TalkerSizes, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of each layer (hidden, intermediate): the shared experts' down projections side by side."""
    found = {}
    for number in range(sizes.layers):
        at = f"layers.{number}.down"
        parts = weights[at][sizes.routed_experts :]
        found[at] = parts.transpose(0, 1).reshape(sizes.hidden, -1).contiguous()
    return found
