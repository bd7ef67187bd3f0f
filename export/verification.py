"""Is an exported graph valid, and does it compute what the torch module computes?

The graph as it will be shipped, read back from disk with its stored weights, is run once by ONNX's
own reference evaluator (NumPy), next to the torch module with the same weights.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn

from export.graphs import GraphSource, example_inputs
from export.sizes import ModelSizes
from trt_runtime.contract import Geometry
from trt_runtime.errors import MingError
from trt_runtime.manifest import StoredTensor

log = logging.getLogger(__name__)

#: Largest relative error (max |a - b| / max |b|) between two float32 evaluations of one graph that
#: differ in the order of their sums; wrong arithmetic is off by orders of magnitude more.
TOLERANCE = 1e-4

#: Float32 copies of the weights that a run holds: torch's, the evaluator's, one in between.
_COPIES = 3


def verify(
    path: Path,
    source: GraphSource,
    sizes: ModelSizes,
    geometry: Geometry,
    weights: Mapping[str, StoredTensor],
) -> float | None:
    """The relative error of the graph at `path` against its torch module.

    None where the weights do not fit into half of the free memory: then only the form is checked.
    Raises MingError where the form is wrong or the error exceeds :data:`TOLERANCE`.
    """
    onnx.checker.check_model(path, full_check=True)
    needed = _COPIES * 4 * sum(int(np.prod(tensor.shape)) for tensor in weights.values())
    free = _free_memory()
    if free is not None and needed > free // 2:
        log.warning(
            "%s: form checked, values not compared: that needs %.1f GB and %.1f GB are free",
            source.spec.name,
            needed / 1e9,
            free / 1e9,
        )
        return None
    module = source.make(sizes, geometry).eval()
    load_weights(module, weights, path.parent)
    inputs = example_inputs(source.spec, geometry)
    with torch.no_grad():
        expected = module(*inputs)
    if isinstance(expected, torch.Tensor):
        expected = (expected,)
    arrays = {
        tensor.name: value.numpy() for tensor, value in zip(source.spec.inputs, inputs, strict=True)
    }
    found = ReferenceEvaluator(str(path)).run(None, arrays)
    errors = {
        tensor.name: relative_error(np.asarray(actual), wanted.numpy())
        for tensor, actual, wanted in zip(source.spec.outputs, found, expected, strict=True)
    }
    worst = max(errors, key=lambda name: errors[name])
    if not errors[worst] <= TOLERANCE:
        raise MingError(
            f"graph {source.spec.name} differs from its torch module: relative error "
            f"{errors[worst]:.2e} in {worst}, more than {TOLERANCE:.0e}"
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


def _free_memory() -> int | None:
    """Bytes that can be had without swapping, where the system says so (Linux)."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
