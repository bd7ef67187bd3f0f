"""Stored numbers compared by content: what differs is named, even where no probe touches it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engines.comparison.sides import CHECKPOINT, Side
from engines.graph_file import all_tensors, read_graph
from engines.stored_dtypes import numpy_dtype
from trt_runtime.manifest import BUNDLE, SPEAKER_ENCODER, TOKENIZER, Manifest, StoredTensor
from trt_runtime.raw_tensors import read_chunks

#: Between the name of a graph and that of a tensor in its file.
IN_GRAPH = "/"


@dataclass(frozen=True)
class Numbers:
    """One stored tensor: its form, and a pass over its elements as flat arrays."""

    dtype: str
    shape: tuple[int, ...]
    parts: Callable[[], Iterator[np.ndarray]]

    def digest(self) -> str:
        whole = hashlib.sha256()
        for part in self.parts():
            whole.update(part.view(np.uint8).data)
        return whole.hexdigest()


def side_by_side(a: Numbers, b: Numbers) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Both tensors side by side as float64, a few megabytes at a time, however each is cut."""
    parts = [(part for part in side.parts() if len(part)) for side in (a, b)]
    rest = [np.zeros(0), np.zeros(0)]
    while True:
        for index, part in enumerate(parts):
            if not len(rest[index]):
                rest[index] = next(part, rest[index])
        count = min(map(len, rest))
        if not count:
            return
        x, y = (values[:count].astype(np.float64) for values in rest)
        yield x, y
        rest = [values[count:] for values in rest]


@dataclass(frozen=True)
class TensorDifference:
    """A tensor whose contents differ: how many numbers, and the relative error of all of them.

    `form` says how dtype or shape differ, and is "" where they do not.
    """

    name: str
    component: str
    numbers: int
    differing: int
    error: float
    form: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def comparable(sides: tuple[Side, Side]) -> bool:
    """Whether both sides store parameters under the same names: bundles and checkpoints do."""
    return all(side.kind != "engines" for side in sides)


def differing_tensors(sides: tuple[Side, Side]) -> list[TensorDifference]:
    """Every stored tensor that the sides do not have alike, parameters first.

    Constants inside the files of graphs too, where both are bundles; those that only one has are no
    numbers to compare, but the work of another exporter.
    """
    a, b = (_parameters(side) for side in sides)
    found = [_difference(name, a.get(name), b.get(name)) for name in {**a, **b}]
    if all(side.kind == "bundle" for side in sides):
        a, b = (_constants(side) for side in sides)
        found += [_difference(name, a[name], b[name]) for name in a if name in b]
    return [difference for difference in found if difference is not None]


def differing_files(sides: tuple[Side, Side]) -> list[str]:
    """The files beside the graphs that decide what is said, and that two folders have not alike."""
    a, b = (side.manifest for side in sides)
    if a is None or b is None:
        return []
    names = (TOKENIZER, SPEAKER_ENCODER)
    return [name for name in names if a.files.get(name) != b.files.get(name)]


def component_of(name: str) -> str:
    """The component that a parameter is of, or the graph that a constant is in."""
    return name.split(IN_GRAPH)[0].split(".")[0]


def _difference(name: str, a: Numbers | None, b: Numbers | None) -> TensorDifference | None:
    component = component_of(name)
    if a is None or b is None:
        there = b if a is None else a
        assert there is not None
        count = int(np.prod(there.shape))
        form = f"only in {'B' if a is None else 'A'}"
        return TensorDifference(name, component, count, count, float("inf"), form)
    count = int(np.prod(a.shape))
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        form = f"{a.dtype} {list(a.shape)} and {b.dtype} {list(b.shape)}"
        if a.shape != b.shape:
            return TensorDifference(name, component, count, count, float("inf"), form)
    else:
        form = ""
        if a.digest() == b.digest():
            return None
    differing, largest, scale = 0, 0.0, 0.0
    for x, y in side_by_side(a, b):
        # NaN is unequal to itself; in both it is no difference.
        differing += int((~((x == y) | (np.isnan(x) & np.isnan(y)))).sum())
        difference = np.abs(y - x)
        largest = max(largest, float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0)))
        scale = max(scale, float(np.nan_to_num(np.abs(x)).max(initial=0.0)))
    if not differing:
        # The same numbers in another form, or -0 for 0.
        return None
    error = largest / scale if scale else float("inf")
    return TensorDifference(name, component, count, differing, error, form)


def _parameters(side: Side) -> dict[str, Numbers]:
    if side.kind == CHECKPOINT:
        return _of_checkpoint(side.checkpoint)
    assert side.manifest is not None
    stored: dict[str, StoredTensor] = {}
    for graph in side.manifest.graphs.values():
        stored |= graph.initializers
    return {name: _of_file(side.path, tensor) for name, tensor in stored.items()}


def _of_checkpoint(checkpoint: Any) -> dict[str, Numbers]:
    from export.weights import parameter_blocks, stored_dtype

    def numbers(row: Any) -> Numbers:
        return Numbers(
            stored_dtype(checkpoint, row), row.shape, lambda: parameter_blocks(checkpoint, row)
        )

    return {row.name: numbers(row) for row in checkpoint.parameters}


def _of_file(folder: Path, tensor: StoredTensor) -> Numbers:
    dtype = numpy_dtype(tensor.dtype)

    def parts() -> Iterator[np.ndarray]:
        for chunk in read_chunks(folder / tensor.file, tensor.offset, tensor.bytes):
            yield np.frombuffer(chunk, np.uint8).view(dtype).copy()

    return Numbers(tensor.dtype, tensor.shape, parts)


def _constants(side: Side) -> dict[str, Numbers]:
    """The tensors in the files of graphs, by graph and name."""
    from onnx import TensorProto, numpy_helper

    manifest = side.manifest
    assert isinstance(manifest, Manifest)
    assert manifest.kind == BUNDLE
    found: dict[str, Numbers] = {}
    for graph, entry in manifest.graphs.items():
        for tensor in all_tensors(read_graph(side.path, entry)):
            if tensor.data_location == TensorProto.EXTERNAL or not tensor.name:
                continue
            array = np.ascontiguousarray(numpy_helper.to_array(tensor).reshape(-1))
            found[f"{graph}{IN_GRAPH}{tensor.name}"] = _of_array(array, tuple(tensor.dims))
    return found


def _of_array(array: np.ndarray, shape: tuple[int, ...]) -> Numbers:
    return Numbers(str(array.dtype), shape, lambda: iter((array,)))
