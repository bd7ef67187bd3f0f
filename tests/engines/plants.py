"""Mistakes planted in copies of bundles: what a comparison must find."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from engines.stored_dtypes import numpy_dtype
from trt_runtime.manifest import MANIFEST, StoredTensor, read_manifest, sha256_of


def copied(bundle: Path, place: Path) -> Path:
    shutil.copytree(bundle, place)
    return place


def relist(folder: Path) -> None:
    """Makes the manifest agree again with files that were changed."""
    manifest = read_manifest(folder)
    files = {
        name: ((folder / name).stat().st_size, sha256_of(folder / name)) for name in manifest.files
    }
    text = replace(manifest, files=files).to_json()
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def parameters(bundle: Path) -> dict[str, StoredTensor]:
    """Every stored parameter of every component, by name."""
    found: dict[str, StoredTensor] = {}
    for graph in read_manifest(bundle).graphs.values():
        found |= graph.initializers
    return found


def values_of(folder: Path, tensor: StoredTensor) -> np.ndarray:
    raw = np.fromfile(folder / tensor.file, np.uint8, tensor.bytes, offset=tensor.offset)
    return raw.view(numpy_dtype(tensor.dtype)).copy()


def plant(folder: Path, tensor: StoredTensor, change: Callable[[np.ndarray], np.ndarray]) -> int:
    """Changes a stored tensor, float32 in and out; returns how many of its numbers are others."""
    before = values_of(folder, tensor)
    after = change(before.astype(np.float32)).astype(before.dtype)
    with (folder / tensor.file).open("r+b") as file:
        file.seek(tensor.offset)
        file.write(after.view(np.uint8).tobytes())
    relist(folder)
    return int((before != after).sum())


def norms(bundle: Path, graph: str) -> list[int]:
    """The rms_norm chains of a graph: the index of each first node, a square."""
    nodes = _load(bundle, graph).graph.node
    return [
        index
        for index, node in enumerate(nodes[:-4])
        if [n.op_type for n in nodes[index : index + 5]]
        == ["Pow", "ReduceMean", "Add", "Sqrt", "Div"]
    ]


def plant_float16_norm(folder: Path, graph: str, start: int) -> list[str]:
    """Computes a norm, from the square to the quotient, in float16; the names of its nodes."""
    model = _load(folder, graph)
    nodes = list(model.graph.node)
    chain = nodes[start : start + 5]
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    low: dict[str, str] = {}
    new: list[onnx.NodeProto] = []
    for node in chain:
        for position, name in enumerate(node.input):
            exponent_or_axes = name in stored and stored[name].data_type != TensorProto.FLOAT
            if exponent_or_axes:
                continue
            if name not in low:
                low[name] = f"{name}.float16"
                new.append(
                    helper.make_node(
                        "Cast", [name], [low[name]], f"{name}.to_float16", to=TensorProto.FLOAT16
                    )
                )
            node.input[position] = low[name]
        low[node.output[0]] = f"{node.output[0]}.float16"
        wide = node.output[0]
        node.output[0] = low[wide]
        new.append(node)
    new.append(helper.make_node("Cast", [low[wide]], [wide], f"{wide}.to_float32", to=1))
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:start], *new, *nodes[start + 5 :]])
    (folder / f"{graph}.onnx").write_bytes(model.SerializeToString())
    relist(folder)
    return [node.name for node in new]


def _load(folder: Path, graph: str) -> onnx.ModelProto:
    return onnx.load(folder / f"{graph}.onnx", load_external_data=False)
