"""The rows of a manifest: graphs, components and where their tensors lie, to JSON and back.

Reading is strict: KeyError, TypeError, ValueError, AttributeError or IndexError where a value is
missing or not of its kind, which :mod:`trt_runtime.manifest` turns into one error of the folder's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trt_runtime.contract import TensorSpec
from trt_runtime.raw_tensors import DTYPE_BYTES
from trt_runtime.transformer_sizes import TransformerSizes

MANIFEST = "manifest.json"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class StoredTensor:
    """Where an initialiser lies: `bytes` bytes from `offset` of `file`, row-major little-endian."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


@dataclass(frozen=True)
class GraphEntry:
    """One graph as the manifest has it: its file, its tensors, its state and its initialisers.

    `initializers` lists only those kept outside the graph's own file.
    """

    file: str
    component: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    state: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()
    initializers: Mapping[str, StoredTensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ComponentEntry:
    """What a folder says of a component beside its graphs.

    `sizes`: of a talker, what its graphs know and their shapes do not tell. In an engine folder
    `backend` names what runs the component, `tensors` are those of a backend without graphs.
    `profiles`: of a component that is one engine, (slots, tokens) of each of its optimisation
    profiles in the engine's order; (1, 1) is that of graphs without slots. `operators` says what
    became of each plugin operator.
    """

    sizes: TransformerSizes | None = None
    backend: str = ""
    tensors: Mapping[str, StoredTensor] = field(default_factory=dict)
    profiles: tuple[tuple[int, int], ...] = ()
    operators: Mapping[str, str] = field(default_factory=dict)


def graph_to_json(graph: GraphEntry) -> dict[str, Any]:
    def tensors(specs: Iterable[TensorSpec]) -> list[list[Any]]:
        return [[spec.name, spec.dtype, spec.axes] for spec in specs]

    return {
        "file": graph.file,
        "component": graph.component,
        "inputs": tensors(graph.inputs),
        "outputs": tensors(graph.outputs),
        "state": list(graph.state),
        "in_place": list(graph.in_place),
        "initializers": _tensors_to_json(graph.initializers),
    }


def graph_from_json(data: dict[str, Any]) -> GraphEntry:
    def tensors(rows: list[Any]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec.of_axes(text(n), text(d), _axes(s)) for n, d, s in rows)

    return GraphEntry(
        file=plain_name(data["file"]),
        component=text(data["component"]),
        inputs=tensors(data["inputs"]),
        outputs=tensors(data["outputs"]),
        state=tuple(text(name) for name in data["state"]),
        in_place=tuple(text(name) for name in data["in_place"]),
        initializers=_tensors_from_json(data["initializers"]),
    )


def component_to_json(component: ComponentEntry) -> dict[str, Any]:
    return {
        "sizes": None if component.sizes is None else component.sizes.to_json(),
        "backend": component.backend,
        "tensors": _tensors_to_json(component.tensors),
        "profiles": [list(profile) for profile in component.profiles],
        "operators": dict(component.operators),
    }


def component_from_json(data: dict[str, Any]) -> ComponentEntry:
    sizes = data["sizes"]
    return ComponentEntry(
        sizes=None if sizes is None else TransformerSizes.from_json(sizes),
        backend=text(data["backend"]),
        tensors=_tensors_from_json(data["tensors"]),
        profiles=tuple(_profile(profile) for profile in data["profiles"]),
        operators={text(n): text(form) for n, form in data["operators"].items()},
    )


def _tensors_to_json(tensors: Mapping[str, StoredTensor]) -> dict[str, list[Any]]:
    return {n: [t.file, t.dtype, list(t.shape), t.offset, t.bytes] for n, t in tensors.items()}


def _tensors_from_json(data: dict[str, Any]) -> dict[str, StoredTensor]:
    return {
        text(name): StoredTensor(
            plain_name(file), text(dtype), _shape(shape), whole(offset), whole(size)
        )
        for name, (file, dtype, shape, offset, size) in data.items()
    }


def check_tensors(
    owner: str, tensors: Mapping[str, StoredTensor], files: Mapping[str, tuple[int, str]]
) -> None:
    """Raises ValueError where a tensor of `owner` does not lie inside one of `files`."""
    for name, tensor in tensors.items():
        what = f"tensor {name} of {owner}"
        if tensor.file not in files:
            raise ValueError(f"{what} uses {tensor.file}, which files does not list")
        if tensor.offset + tensor.bytes > files[tensor.file][0]:
            raise ValueError(f"{what} ends past {tensor.file}")
        if tensor.bytes != DTYPE_BYTES.get(tensor.dtype, 0) * math.prod(tensor.shape):
            raise ValueError(f"{what} has a wrong size")
        if tensor.offset % DTYPE_BYTES[tensor.dtype]:
            raise ValueError(f"{what} begins inside an element")


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a shape")
    return tuple(whole(size) for size in value)


def _profile(value: Any) -> tuple[int, int]:
    slots, tokens = _shape(value)
    if not (slots and tokens):
        raise ValueError(f"{value!r} is no profile: (slots, tokens)")
    return slots, tokens


def _axes(value: Any) -> list[int | str]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a shape")
    return [size if isinstance(size, str) else whole(size) for size in value]


def is_plain_name(name: str) -> bool:
    """Whether a file of this name lies in the folder itself, on every system and in every shell."""
    return _PLAIN_NAME.fullmatch(name) is not None


def plain_name(value: Any) -> str:
    """A file name that cannot leave the folder."""
    if not isinstance(value, str) or not is_plain_name(value) or value == MANIFEST:
        raise ValueError(f"{value!r} is not a plain file name")
    return value
