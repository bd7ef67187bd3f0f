"""Inputs for Polygraphy's own commands on any graph of a bundle: a data loader script.

    polygraphy run GRAPH.onnx --onnxrt \\
        --data-loader-script $(python -m engines.polygraphy_data):load_data

Polygraphy would draw positions past the cache and counts that no call has. The graph is the first
file that the command line names with .onnx, or that of the environment variable MING_TRT_GRAPH;
MING_TRT_SLOTS and MING_TRT_SEED choose the number of slots and other numbers. With the bundle's
manifest beside it the counts are a whole call's. Run as a module, it prints where it lies.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from engines.graph_file import ELEMENT_TYPES
from engines.graph_inputs import SLOTS, graph_inputs
from trt_runtime.contract import TensorSpec
from trt_runtime.errors import FolderError, UserError
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import MANIFEST, read_manifest

GRAPH, SLOTS_VARIABLE, SEED = "MING_TRT_GRAPH", "MING_TRT_SLOTS", "MING_TRT_SEED"


def load_data() -> Iterator[dict[str, np.ndarray]]:
    """Two feeds: the middle of a request, and its first call.

    Raises UserError where no graph is named, or one that cannot be read.
    """
    path = graph_path()
    slots, seed = _number(SLOTS_VARIABLE, SLOTS, 1), _number(SEED, 0, 0)
    tensors, geometry = tensors_of(path, slots), geometry_beside(path)
    for first_call in (False, True):
        yield graph_inputs(tensors, geometry, seed=seed, first_call=first_call)


def graph_path() -> Path:
    """The graph that the environment, or else the command line, names."""
    named = os.environ.get(GRAPH) or next((a for a in sys.argv[1:] if a.endswith(".onnx")), "")
    if named and Path(named).is_file():
        return Path(named)
    raise UserError(
        "There is no graph to make inputs for",
        expected=f"a file that ends in .onnx on the command line, or in {GRAPH}",
        found=named or "neither",
        do=f"set {GRAPH} to the graph's file",
    )


def tensors_of(path: Path, slots: int) -> list[TensorSpec]:
    """The graph's inputs, every free axis as long as there are slots."""
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except Exception as error:  # protobuf's own class, which onnx does not name
        raise UserError(
            f"{path} cannot be read",
            expected="an ONNX model",
            found=str(error),
            do="name a graph of a bundle",
        ) from error
    stored = {tensor.name for tensor in graph.initializer}
    found = []
    for value in graph.input:
        if value.name not in stored:
            kind = value.type.tensor_type
            shape = tuple(d.dim_value if d.HasField("dim_value") else slots for d in kind.shape.dim)
            found.append(TensorSpec(value.name, ELEMENT_TYPES[kind.elem_type], shape))
    return found


def geometry_beside(path: Path) -> Geometry | None:
    """That of the folder's manifest; None for a graph that stands alone, as a reduced one does."""
    if not (path.parent / MANIFEST).is_file():
        return None
    try:
        manifest = read_manifest(path.parent)
    except FolderError:
        return None
    listed = any(entry.file == path.name for entry in manifest.graphs.values())
    return manifest.geometry if listed else None


def _number(variable: str, default: int, least: int) -> int:
    text = os.environ.get(variable)
    if not text:
        return default
    if text.isdecimal() and int(text) >= least:
        return int(text)
    raise UserError(
        f"{variable} cannot be used",
        expected=f"a whole number of {least} or more",
        found=repr(text),
        do=f"leave it out for {default}",
    )


if __name__ == "__main__":
    sys.stdout.write(f"{Path(__file__).resolve()}\n")
