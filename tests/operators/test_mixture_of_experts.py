"""One test of the operator, which every implementation of it must pass.

The reference is written from `trt_runtime/operators.py` in float64, row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from export.modules.experts import mixture_of_experts
from tests.operators.one_node import (
    Arrays,
    model_of,
    run_by_onnx,
    run_by_onnxruntime,
    with_kernel,
)
from trt_runtime.operators import MIXTURE_OF_EXPERTS

Implementation = Callable[[Arrays, int, bool], np.ndarray]

#: float32 sums over some ten to hundred terms, in another order.
TOLERANCE = 1e-5


def reference(a: Arrays, chosen: int, normalized: bool) -> np.ndarray:
    x, logits, gate_up, down = (np.asarray(v, np.float64) for v in a.values())
    rows = x.reshape(-1, x.shape[-1])
    y = np.zeros_like(rows)
    for row, (value, logit) in enumerate(zip(rows, logits, strict=True)):
        p = np.exp(logit - logit.max())
        p /= p.sum()
        experts = np.argsort(-p, kind="stable")[:chosen]
        total = p[experts].sum() if normalized else 1.0
        for expert in experts:
            both = gate_up[expert] @ value
            gate, up = both[0::2], both[1::2]
            y[row] += p[expert] / total * (down[expert] @ (gate / (1 + np.exp(-gate)) * up))
    return y.reshape(x.shape)


def model(a: Arrays, chosen: int, normalized: bool, **choice: Any) -> onnx.ModelProto:
    attributes = {"chosen": chosen, "normalized": int(normalized)}
    return model_of(MIXTURE_OF_EXPERTS, a, {"y": a["x"].shape}, attributes, **choice)


def torch_module(a: Arrays, chosen: int, normalized: bool) -> np.ndarray:
    tensors = [torch.from_numpy(value) for value in a.values()]
    return mixture_of_experts(*tensors, chosen, normalized).numpy()


def body_by_onnx(a: Arrays, chosen: int, normalized: bool) -> np.ndarray:
    return run_by_onnx(model(a, chosen, normalized), a)[0]


def body_by_onnxruntime(a: Arrays, chosen: int, normalized: bool) -> np.ndarray:
    return run_by_onnxruntime(model(a, chosen, normalized), a)[0]


def kernel_of_onnxruntime(a: Arrays, chosen: int, normalized: bool) -> np.ndarray:
    # Its kernel wants weights that are there when it loads.
    stored = model(a, chosen, normalized, constants=("gate_up", "down"))
    return run_by_onnxruntime(with_kernel(stored, "MoE"), a)[0]


IMPLEMENTATIONS: list[Implementation] = [
    torch_module, body_by_onnx, body_by_onnxruntime, kernel_of_onnxruntime,
]  # fmt: skip


def arrays(rows: tuple[int, ...], experts: int, hidden: int, width: int, seed: int) -> Arrays:
    g = np.random.default_rng(seed)

    def drawn(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (g.standard_normal(shape) * scale).astype(np.float32)

    return {
        "x": drawn(*rows, hidden),
        "router_logits": drawn(int(np.prod(rows)), experts, scale=2.0),
        "gate_up": drawn(experts, 2 * width, hidden, scale=hidden**-0.5),
        "down": drawn(experts, hidden, width, scale=width**-0.5),
    }


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(
    ("rows", "experts", "chosen", "hidden", "width"),
    [
        ((1, 1), 8, 2, 64, 32),
        ((1, 17), 8, 2, 64, 32),
        ((3, 5), 6, 6, 32, 48),
        ((1, 4), 64, 6, 64, 16),
        ((1, 3), 4, 1, 16, 8),
    ],
)
def test_it_means_the_same(
    implementation: Implementation, rows: tuple[int, ...], experts: int, chosen: int,
    hidden: int, width: int, normalized: bool,
) -> None:  # fmt: skip
    a = arrays(rows, experts, hidden, width, seed=experts + chosen)
    wanted = reference(a, chosen, normalized)
    made = implementation(a, chosen, normalized)
    assert made.shape == wanted.shape
    assert np.abs(made - wanted).max() / np.abs(wanted).max() < TOLERANCE


def test_rows_do_not_depend_on_their_neighbours() -> None:
    """The kernel: a row alone is the row among others."""
    a = arrays((1, 9), 8, 64, 32, seed=3)
    whole = kernel_of_onnxruntime(a, 2, True)
    for row in range(9):
        alone = {**a, "x": a["x"][:, row : row + 1]}
        alone["router_logits"] = a["router_logits"][row : row + 1]
        one = kernel_of_onnxruntime(alone, 2, True)
        np.testing.assert_allclose(one[:, 0], whole[:, row], rtol=0, atol=1e-5)
