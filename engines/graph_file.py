"""Reading the ONNX file of a graph, and checking it before a runtime opens what it refers to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto

from trt_runtime.contract import SLOTS, TensorSpec
from trt_runtime.errors import FolderError
from trt_runtime.manifest import GraphEntry, export_command
from trt_runtime.printable import printable
from trt_runtime.raw_tensors import DTYPE_BYTES

#: ONNX's number of an element type: its name as in a manifest.
ELEMENT_TYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.UINT8: "uint8",
    TensorProto.INT8: "int8",
    TensorProto.UINT16: "uint16",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.BOOL: "bool",
    TensorProto.FLOAT16: "float16",
    TensorProto.DOUBLE: "float64",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
    TensorProto.BFLOAT16: "bfloat16",
}


def _again(folder: Path) -> str:
    return f"make the bundle again: {export_command(folder)}"


class External(NamedTuple):
    """Where the data of a tensor lies outside the graph's file; no length: up to the file's end."""

    location: str
    offset: int
    length: int | None


def read_graph(folder: Path, entry: GraphEntry) -> onnx.ModelProto:
    """The graph's model without its external data; FolderError where it is not ONNX."""
    path = folder / entry.file
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
        if not model.HasField("graph") or not model.graph.output:
            raise DecodeError("it holds no graph with outputs")
    except DecodeError as error:
        raise FolderError(
            f"{path} is damaged",
            expected="an ONNX model",
            found=str(error),
            do=_again(folder),
        ) from error
    return model


def check_external_data(
    folder: Path, entry: GraphEntry, model: onnx.ModelProto, files: Mapping[str, tuple[int, str]]
) -> None:
    """Raises FolderError where a tensor's data lies outside the files that the manifest gives it.

    A runtime opens these paths as they are written in the graph, and a bundle may come from
    anywhere: only plain names of listed files that the manifest gives this graph pass.
    """
    path = folder / entry.file
    allowed = {tensor.file for tensor in entry.initializers.values()}

    def refuse(tensor: TensorProto, expected: str, found: str) -> FolderError:
        return FolderError(
            f"{path} has external data where it must not: tensor {tensor.name!r}",
            expected=expected,
            found=found,
            do=_again(folder),
        )

    for tensor in all_tensors(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        try:
            where = external_of(tensor)
            size = DTYPE_BYTES[ELEMENT_TYPES[tensor.data_type]]
        except (KeyError, ValueError) as error:
            raise refuse(tensor, "location, offset and length", f"{error!r}") from error
        if where.location not in allowed or where.location not in files:
            raise refuse(tensor, "a file that the manifest gives this graph", repr(where.location))
        if (folder / where.location).is_symlink():
            raise refuse(tensor, "a plain file", f"{where.location} is a symbolic link")
        wanted = size * math.prod(tensor.dims)
        length = wanted if where.length is None else where.length
        if length != wanted or min(tensor.dims, default=0) < 0:
            raise refuse(
                tensor, f"{wanted} bytes for shape {list(tensor.dims)}", f"length {length}"
            )
        end = where.offset + length
        file_size = min(files[where.location][0], (folder / where.location).stat().st_size)
        if where.offset < 0 or end > file_size:
            raise refuse(
                tensor,
                f"data inside the {file_size} bytes of {where.location}",
                f"offset {where.offset}, end {end}",
            )


def check_tensors(
    what: str, entry: GraphEntry, inputs: list[TensorSpec], outputs: list[TensorSpec], do: str
) -> None:
    """Raises FolderError where a graph's inputs or outputs are not those of its manifest entry."""
    for kind, wanted, found in (
        ("inputs", entry.inputs, inputs),
        ("outputs", entry.outputs, outputs),
    ):
        # By name: runtimes are free to list them in another order.
        missing = sorted(set(wanted) - set(found), key=str)
        extra = sorted(set(found) - set(wanted), key=str)
        if missing or extra:
            raise FolderError(
                f"{what} has other {kind} than the manifest says",
                expected=_listed(missing) or "no more than the manifest's",
                found=_listed(extra) or "nothing in their place",
                do=do,
            )


def check_graph(folder: Path, entry: GraphEntry, model: onnx.ModelProto) -> None:
    """Compares the tensors that the file declares with the manifest's; raises FolderError."""
    stored = {tensor.name for tensor in model.graph.initializer}
    check_tensors(
        str(folder / entry.file),
        entry,
        [_declared(info) for info in model.graph.input if info.name not in stored],
        [_declared(info) for info in model.graph.output],
        _again(folder),
    )


def retyped(entry: GraphEntry, model: onnx.ModelProto) -> GraphEntry:
    """The entry with the element types that the model's inputs and outputs have now."""
    types = {
        info.name: ELEMENT_TYPES[info.type.tensor_type.elem_type]
        for info in (*model.graph.input, *model.graph.output)
    }

    def typed(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(replace(spec, dtype=types[spec.name]) for spec in specs)

    return replace(entry, inputs=typed(entry.inputs), outputs=typed(entry.outputs))


def _declared(info: onnx.ValueInfoProto) -> TensorSpec:
    tensor = info.type.tensor_type
    name = ELEMENT_TYPES.get(tensor.elem_type, f"type {tensor.elem_type}")
    return tensor_of(
        info.name,
        name,
        [d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim],
    )


def tensor_of(name: str, dtype: str, axes: Sequence[int | str | None]) -> TensorSpec:
    """A tensor as a graph declares it; an axis that no contract has becomes -1, equal to none."""
    free = axes[:1] == [SLOTS]
    sizes = [size if isinstance(size, int) else -1 for size in axes]
    return TensorSpec.of_axes(name, dtype, [SLOTS, *sizes[1:]] if free else sizes)


def _listed(specs: list[TensorSpec]) -> str:
    return printable(", ".join(f"{spec.name} {spec.dtype} {spec.axes}" for spec in specs))


def external_of(tensor: TensorProto) -> External:
    """The external data entries of a tensor; KeyError or ValueError where they are not in order."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    length = entries.get("length")
    return External(
        entries["location"],
        int(entries.get("offset", "0")),
        None if length is None else int(length),
    )


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and those inside its nodes, outermost first."""
    yield graph
    for node in graph.node:
        yield from _graphs_of(node)


def _graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield from all_graphs(attribute.g)
        for inner in attribute.graphs:
            yield from all_graphs(inner)


def all_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Every stored tensor: initialisers, and those in attributes of nodes and functions."""
    nodes: list[onnx.NodeProto] = []
    graphs = list(all_graphs(model.graph))
    for function in model.functions:
        nodes.extend(function.node)
        for node in function.node:
            graphs.extend(_graphs_of(node))
    for graph in graphs:
        nodes.extend(graph.node)
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
            for sparse in attribute.sparse_tensors:
                yield from (sparse.values, sparse.indices)
