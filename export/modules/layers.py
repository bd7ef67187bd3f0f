"""The small pieces that every component is made of."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn


def parameter(*shape: int) -> nn.Parameter:
    """An uninitialised float32 parameter; its pages cost no memory until weights are loaded."""
    return nn.Parameter(torch.empty(*shape), requires_grad=False)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang & Sennrich 2019)."""
    # A quotient by the root, not a product with its inverse: the form that runtimes fuse.
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), written out because runtimes fuse this form."""
    return x * torch.sigmoid(x)


def constant(values: np.ndarray) -> Tensor:
    """A constant of the graph, computed by NumPy while tracing: its arithmetic is not traced."""
    return torch.from_numpy(np.ascontiguousarray(values))
