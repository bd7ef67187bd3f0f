"""Is an exported graph valid, and does it compute what the torch module computes?

The graph as it will be shipped, read back from disk with its stored weights, is run once by ONNX's
own reference evaluator (NumPy), next to the torch module with the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

from export.free_memory import (
    DEFAULT_MEMORY,
    free_memory,
    free_to_compare,
    memory_to_compare,
)
from export.graphs import GraphSource, example_inputs
from export.sizes import ModelSizes
from trt_runtime.contract import GraphSpec
from trt_runtime.errors import MingError
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import StoredTensor

#: Largest relative error (max |a - b| / max |b|) between two float32 evaluations of one graph that
#: differ in the order of their sums; wrong arithmetic is off by orders of magnitude more.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Comparison:
    """`error` is the largest relative error that was found; None where `skipped` says why not."""

    error: float | None = None
    skipped: str = ""

    def __str__(self) -> str:
        if self.error is None:
            return f"values NOT compared: {self.skipped}"
        return f"relative error {self.error:.1e}"


def verify(
    path: Path,
    source: GraphSource,
    sizes: ModelSizes,
    geometry: Geometry,
    weights: Mapping[str, StoredTensor],
    *,
    values: bool = True,
    memory: int = DEFAULT_MEMORY,
) -> Comparison:
    """How the graph at `path` compares with its torch module, at each of its example inputs.

    Only the form is checked without `values`, and where they would take more than `memory` bytes or
    memory is short. Raises MingError where the form is wrong or an error exceeds
    :data:`TOLERANCE`.
    """
    onnx.checker.check_model(path, full_check=True)
    if not values:
        return Comparison(skipped="not asked for (--no-values)")
    if skipped := no_room_to_compare(weights, memory):
        return Comparison(skipped=skipped)
    examples = example_inputs(source.spec, geometry)
    # One after the other: each has float32 copies of the weights.
    expected = _run_module(source.make(sizes, geometry).eval(), weights, path.parent, examples)
    evaluator = ReferenceEvaluator(str(path))
    return Comparison(
        max(
            _compare(evaluator, source.spec, inputs, outputs)
            for inputs, outputs in zip(examples, expected, strict=True)
        )
    )


def no_room_to_compare(weights: Mapping[str, StoredTensor], memory: int) -> str:
    """Why a graph with these weights cannot be compared within `memory` bytes; "" where it can."""
    parameters = sum(math.prod(tensor.shape) for tensor in weights.values())
    peak = memory_to_compare(parameters)
    if peak > memory:
        return f"needs {peak / 1e9:.1f} GB, --memory allows {memory / 1e9:.1f} GB"
    needed = free_to_compare(parameters)
    free = free_memory()
    if free is not None and needed > free:
        return f"needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB free"
    return ""


def _run_module(
    module: nn.Module,
    weights: Mapping[str, StoredTensor],
    folder: Path,
    examples: Sequence[tuple[Tensor, ...]],
) -> list[tuple[Tensor, ...]]:
    """The module's outputs at each example, with its weights from the files in `folder`."""
    load_weights(module, weights, folder)
    with torch.no_grad():
        found = [module(*inputs) for inputs in examples]
    return [(outputs,) if isinstance(outputs, Tensor) else outputs for outputs in found]


def _compare(
    evaluator: ReferenceEvaluator,
    spec: GraphSpec,
    inputs: tuple[Tensor, ...],
    expected: tuple[Tensor, ...],
) -> float:
    """The largest relative error of an output at one point; MingError where it is too large."""
    arrays = {tensor.name: value.numpy() for tensor, value in zip(spec.inputs, inputs, strict=True)}
    found = evaluator.run(None, arrays)
    errors = {
        tensor.name: relative_error(np.asarray(actual), wanted.numpy())
        for tensor, actual, wanted in zip(spec.outputs, found, expected, strict=True)
    }
    worst = max(errors, key=lambda name: errors[name])
    if not errors[worst] <= TOLERANCE:
        raise MingError(
            f"graph {spec.name} differs from its torch module: relative error "
            f"{errors[worst]:.2e} in {worst}, more than {TOLERANCE:.0e}; nothing was written. "
            "Please report it with the versions of torch and onnx"
        )
    return errors[worst]


def relative_error(actual: np.ndarray, reference: np.ndarray) -> float:
    """max |actual - reference| / max |reference|; infinite for other shapes or NaN."""
    if actual.shape != reference.shape:
        return float("inf")
    difference = np.abs(actual.astype(np.float64) - reference).max(initial=0.0)
    scale = np.abs(reference).max(initial=0.0)
    if not np.isfinite(difference):
        return float("inf")
    return float(difference / scale) if scale else float(difference)


def load_weights(module: nn.Module, weights: Mapping[str, StoredTensor], folder: Path) -> None:
    """Fills the module's parameters from the stored weights, as float32."""
    for name, parameter in module.named_parameters():
        stored = weights[name]
        dtype = getattr(torch, stored.dtype)
        values = torch.from_file(
            str(folder / stored.file),
            shared=False,
            size=(stored.offset + stored.bytes) // dtype.itemsize,
            dtype=dtype,
        )[stored.offset // dtype.itemsize :]
        parameter.data.copy_(values.view(stored.shape))
