"""Muon for matrices, Adam for the rest, with a learning rate that is a tensor on the device.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/): momentum whose matrices are
made nearly orthogonal by Newton-Schulz iterations. Matrices of one shape are one batch, so that a
step is few kernels; updates have the root mean square of AdamW's (Liu et al. 2025,
arXiv:2502.16982), so that both share one learning rate.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MOMENTUM = 0.95
_WEIGHT_DECAY = 0.01


def orthogonal(matrices: Tensor) -> Tensor:
    """(n, rows, columns) to matrices with the same singular vectors and singular values near 1."""
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    # bfloat16 where it is fast: the iterations need few digits.
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Optimizer:
    """Clips the gradients' norm at 1 and steps. `rate`: () float32 on the device, the caller's.

    `matrices` are trained by Muon, `others` by Adam without weight decay. Everything it keeps is in
    `state()`, tensors by name, which `load()` takes back.
    """

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        others: Sequence[nn.Parameter],
        betas: tuple[float, float],
    ) -> None:
        device = [*matrices, *others][0].device
        self.rate = torch.zeros((), device=device)
        self._all = [*matrices, *others]
        groups: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for matrix in matrices:
            groups[tuple(matrix.shape)].append(matrix)
        self._groups = list(groups.values())
        self._momenta = [torch.zeros((len(g), *g[0].shape), device=device) for g in self._groups]
        self._betas = betas
        self._others: list[Tensor] = list(others)
        self._means = [torch.zeros_like(p) for p in self._others]
        self._squares = [torch.zeros_like(p) for p in self._others]
        self._steps = torch.zeros((), device=device)

    def zero(self) -> None:
        for parameter in self._all:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        gradients = [p.grad for p in self._all if p.grad is not None]
        assert len(gradients) == len(self._all), "a parameter that the loss does not depend on"
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (1 / (norm + 1e-6)).clamp(max=1.0))
        for parameters, momentum in zip(self._groups, self._momenta, strict=True):
            self._muon(parameters, momentum)
        if self._others:
            self._adam()

    def _muon(self, parameters: list[Tensor], momentum: Tensor) -> None:
        gradient = torch.stack([p.grad for p in parameters if p.grad is not None])
        momentum.mul_(_MOMENTUM).add_(gradient, alpha=1 - _MOMENTUM)
        update = orthogonal(gradient.lerp(momentum, _MOMENTUM))
        scale = 0.2 * math.sqrt(max(update.shape[-2:]))
        updates: list[Any] = list((update * (-scale * self.rate)).unbind(0))
        torch._foreach_mul_(parameters, 1 - _WEIGHT_DECAY * self.rate)
        torch._foreach_add_(parameters, updates)

    def _adam(self) -> None:
        first, second = self._betas
        gradients = [p.grad for p in self._others if p.grad is not None]
        self._steps.add_(1)
        torch._foreach_lerp_(self._means, gradients, 1 - first)
        torch._foreach_mul_(self._squares, second)
        torch._foreach_addcmul_(self._squares, gradients, gradients, 1 - second)
        root = torch._foreach_sqrt(self._squares)
        torch._foreach_div_(root, (1 - second**self._steps).sqrt())
        torch._foreach_add_(root, 1e-8)
        updates: Any = torch._foreach_div(self._means, root)
        torch._foreach_mul_(updates, -self.rate / (1 - first**self._steps))
        torch._foreach_add_(self._others, updates)

    def state(self) -> dict[str, Tensor]:
        named = {"steps": self._steps}
        for kind in ("momenta", "means", "squares"):
            for index, value in enumerate(getattr(self, f"_{kind}")):
                named[f"{kind}.{index}"] = value
        return named

    def load(self, state: dict[str, Tensor]) -> None:
        for name, value in self.state().items():
            value.copy_(state[name])


def optimizer_of(module: nn.Module, betas: tuple[float, float], muon: bool = True) -> Optimizer:
    """Muon for what multiplies hidden states; Adam for tables, vectors and what meets the data."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            inner = parameter.dim() == 2 and (".layers." in name or ".blocks." in name)
            (matrices if inner and muon else others).append(parameter)
    return Optimizer(matrices, others, betas)
