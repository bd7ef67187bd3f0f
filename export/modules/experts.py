"""A transformer layer whose feed-forward half is a mixture of experts, and the operator it calls.

Router without bias, softmax over all experts in float32, the chosen ones' weights divided by their
sum where the config says so, and one SwiGLU that every row shares, as wide as all shared experts
together (facts: Bailing MoE).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from export.modules.layers import parameter, rms_norm, silu
from export.modules.transformer import TransformerLayer
from export.sizes import TransformerSizes


@torch.library.custom_op("ming_trt::mixture_of_experts", mutates_args=())
def mixture_of_experts(
    x: Tensor, router_logits: Tensor, gate_up: Tensor, down: Tensor, chosen: int, normalized: bool
) -> Tensor:
    """MixtureOfExperts of :mod:`trt_runtime.operators`, expert by expert."""
    rows = x.reshape(-1, x.shape[-1])
    weights, experts = torch.softmax(router_logits, -1).topk(chosen, -1)
    if normalized:
        weights = weights / weights.sum(-1, keepdim=True)
    y = torch.zeros_like(rows)
    for expert in experts.unique().tolist():
        row, place = torch.where(experts == expert)
        both = rows[row] @ gate_up[expert].T
        inner = silu(both[:, 0::2]) * both[:, 1::2]
        given = (inner @ down[expert].T) * weights[row, place].unsqueeze(-1)
        y.index_add_(0, row, given.to(y.dtype))
    return y.view(x.shape)


@mixture_of_experts.register_fake
def _(
    x: Tensor, router_logits: Tensor, gate_up: Tensor, down: Tensor, chosen: int, normalized: bool
) -> Tensor:
    return torch.empty_like(x)


class ExpertLayer(TransformerLayer):
    """The attention of its parent; `sizes.intermediate` is the width of the shared expert."""

    def add_feed_forward(self, sizes: TransformerSizes) -> None:
        experts = sizes.experts
        assert experts is not None
        hidden = sizes.hidden
        self.router_weight = parameter(hidden, experts.count)
        self.experts_gate_up = parameter(experts.count, 2 * experts.intermediate, hidden)
        self.experts_down = parameter(experts.count, hidden, experts.intermediate)
        super().add_feed_forward(sizes)

    def feed_forward(self, x: Tensor) -> Tensor:
        s, experts = self.sizes, self.sizes.experts
        assert experts is not None
        normed = rms_norm(x, self.mlp_norm, s.rms_eps)
        routed = mixture_of_experts(
            normed,
            (normed @ self.router_weight).flatten(0, -2),
            self.experts_gate_up,
            self.experts_down,
            experts.chosen,
            experts.normalized,
        )
        return x + routed + self.swiglu(normed)


def layer_of(sizes: TransformerSizes) -> nn.Module:
    """The layer that a stack of these sizes is made of."""
    return TransformerLayer(sizes) if sizes.experts is None else ExpertLayer(sizes)
