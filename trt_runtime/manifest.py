"""The manifest of a bundle or an engine folder: what is inside, and whether it may be used here.

A folder holds `manifest.json` and the files that it lists, nothing deeper. The manifest is read and
checked before any of those files is opened by a runtime.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trt_runtime.contract import TensorSpec
from trt_runtime.errors import FolderError
from trt_runtime.geometry import Geometry
from trt_runtime.printable import printable
from trt_runtime.raw_tensors import DTYPE_BYTES

MANIFEST = "manifest.json"
FORMAT_VERSION = 3
BUNDLE = "ming-trt-bundle"
ENGINES = "ming-trt-engines"
#: The tokenizer's file, in either kind of folder.
TOKENIZER = "tokenizer.json"
#: The speaker encoder's file, in either kind of folder; not every checkpoint has one.
SPEAKER_ENCODER = "speaker_encoder.onnx"

_EXPORT_OPTIONS = ("cache_length", "max_steps", "prefill_chunks", "max_reference_latents")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LARGEST_MANIFEST = 64 << 20


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
class Manifest:
    """The parsed `manifest.json`.

    `kind` is :data:`BUNDLE` or :data:`ENGINES`; `files` gives (bytes, SHA-256) by file name;
    `source` identifies the checkpoint; `target`, `machine`, `precision` and `build` say what an
    engine folder was built for and how (empty in a bundle).
    """

    kind: str
    family: str
    geometry: Geometry
    graphs: Mapping[str, GraphEntry]
    files: Mapping[str, tuple[int, str]]
    source: Mapping[str, Any]
    target: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    precision: Mapping[str, str] = field(default_factory=dict)
    build: Mapping[str, Any] = field(default_factory=dict)
    producer: Mapping[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """The file's text: sorted keys, so that equal manifests are equal bytes."""
        data = {
            "format": self.kind,
            "format_version": self.format_version,
            "family": self.family,
            "geometry": self.geometry.to_json(),
            "graphs": {name: _graph_to_json(graph) for name, graph in self.graphs.items()},
            "files": {n: {"bytes": size, "sha256": sha} for n, (size, sha) in self.files.items()},
            "source": self.source,
            "target": self.target,
            "machine": self.machine,
            "precision": self.precision,
            "build": self.build,
            "producer": self.producer,
        }
        return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _graph_to_json(graph: GraphEntry) -> dict[str, Any]:
    def tensors(specs: Iterable[TensorSpec]) -> list[list[Any]]:
        return [[spec.name, spec.dtype, spec.axes] for spec in specs]

    return {
        "file": graph.file,
        "component": graph.component,
        "inputs": tensors(graph.inputs),
        "outputs": tensors(graph.outputs),
        "state": list(graph.state),
        "in_place": list(graph.in_place),
        "initializers": {
            name: [t.file, t.dtype, list(t.shape), t.offset, t.bytes]
            for name, t in graph.initializers.items()
        },
    }


def read_manifest(folder: Path) -> Manifest:
    """The manifest of `folder`, checked for form; raises FolderError saying what is wrong."""
    path = folder / MANIFEST
    if not folder.exists():
        raise FolderError(
            f"No such folder: {folder}",
            expected="a bundle (python -m export) or an engine folder (build-engines)",
            do="check the path, or build one: build-engines CHECKPOINT --target cpu --out "
            + _quoted(str(folder)),
        )
    if not path.is_file():
        raise FolderError(
            f"{folder} holds no {MANIFEST}",
            expected="a bundle or an engine folder",
            found="a checkpoint"
            if (folder / "config.json").is_file()
            else "another kind of folder",
            do="build engines from it first: "
            f"build-engines {_quoted(str(folder))} --target cpu --out ENGINES",
        )
    try:
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise ValueError(f"{path.stat().st_size} bytes are too many for a manifest")
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise FolderError(
            f"{path} cannot be read",
            expected="JSON written by this project",
            found=str(error),
            do="build the folder again",
        ) from error
    return _parse(path, data)


def _parse(path: Path, data: dict[str, Any]) -> Manifest:
    kind, version = data.get("format"), data.get("format_version")
    if kind not in (BUNDLE, ENGINES):
        raise FolderError(
            f"{path} is not a manifest of this project",
            expected=f"format {BUNDLE} or {ENGINES}",
            found=f"format {kind!r}",
            do="point to a folder made by python -m export or build-engines",
        )
    if version != FORMAT_VERSION:
        redo = _rebuild(kind, data.get("target"), data.get("build"), path.parent)
        raise FolderError(
            f"{path} has another format version",
            expected=f"format version {FORMAT_VERSION}",
            found=f"format version {version!r}",
            do=f"build the folder again with this version: {redo}",
        )
    try:
        manifest = Manifest(
            kind=kind,
            family=_text(data["family"]),
            geometry=Geometry.from_json(data["geometry"]),
            graphs={_text(n): _graph_from_json(graph) for n, graph in data["graphs"].items()},
            files={
                _plain_name(name): (_whole(entry["bytes"]), _text(entry["sha256"]))
                for name, entry in data["files"].items()
            },
            source=dict(data["source"]),
            target=_text(data["target"]),
            machine=dict(data["machine"]),
            precision=dict(data["precision"]),
            build=dict(data["build"]),
            producer=dict(data["producer"]),
        )
        _check_references(manifest)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise FolderError(
            f"{path} is damaged",
            expected=f"every field of format version {FORMAT_VERSION}",
            found=f"{type(error).__name__}: {printable(str(error))}",
            do="build the folder again: "
            + _rebuild(kind, data.get("target"), data.get("build"), path.parent),
        ) from error
    return manifest


def rebuild_command(manifest: Manifest, folder: Path) -> str:
    """The command that makes `folder` again, quoted for a shell.

    A bundle does not say which checkpoint it came from, so that it is the same wherever it is made;
    an engine folder names its source and what was chosen, as far as its manifest has them.
    """
    return _rebuild(manifest.kind, manifest.target, manifest.build, folder)


def export_command(folder: Path) -> str:
    """The command that makes the bundle `folder`, quoted for a shell."""
    return f"python -m export CHECKPOINT {_quoted(str(folder))}"


def _quoted(word: str) -> str:
    return shlex.quote(printable(word))


def _rebuild(kind: str, target: Any, build: Any, folder: Path) -> str:
    """The same from fields that may be anything: the manifest may be damaged, or a stranger's."""
    if kind == BUNDLE:
        return export_command(folder)
    noted = build if isinstance(build, Mapping) else {}
    source, options = noted.get("source"), noted.get("export_options")
    # A leading dash would be read as an option.
    words = [
        "build-engines",
        source if isinstance(source, str) and source and source[0] != "-" else "SOURCE",
        "--target",
        target if isinstance(target, str) and target else "cpu",
    ]
    for name, value in options.items() if isinstance(options, Mapping) else ():
        if name in _EXPORT_OPTIONS:
            numbers = value if isinstance(value, list | tuple) else [value]
            words += ["--" + name.replace("_", "-"), ",".join(map(str, numbers))]
    return " ".join(map(_quoted, [*words, "--out", str(folder)]))


def _check_references(manifest: Manifest) -> None:
    for name, graph in manifest.graphs.items():
        for file in (graph.file, *(t.file for t in graph.initializers.values())):
            if file not in manifest.files:
                raise ValueError(f"graph {name} uses {file}, which files does not list")
        for tensor_name, tensor in graph.initializers.items():
            if tensor.offset + tensor.bytes > manifest.files[tensor.file][0]:
                raise ValueError(f"initialiser {tensor_name} of {name} ends past {tensor.file}")
            if tensor.bytes != DTYPE_BYTES.get(tensor.dtype, 0) * math.prod(tensor.shape):
                raise ValueError(f"initialiser {tensor_name} of {name} has a wrong size")
            if tensor.offset % DTYPE_BYTES[tensor.dtype]:
                raise ValueError(f"initialiser {tensor_name} of {name} begins inside an element")
        if not set(graph.in_place) <= set(graph.state) <= {spec.name for spec in graph.inputs}:
            raise ValueError(f"graph {name} names state that is not among its inputs")


def _graph_from_json(data: dict[str, Any]) -> GraphEntry:
    def tensors(rows: list[Any]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec.of_axes(_text(n), _text(d), _axes(s)) for n, d, s in rows)

    return GraphEntry(
        file=_plain_name(data["file"]),
        component=_text(data["component"]),
        inputs=tensors(data["inputs"]),
        outputs=tensors(data["outputs"]),
        state=tuple(_text(name) for name in data["state"]),
        in_place=tuple(_text(name) for name in data["in_place"]),
        initializers={
            _text(name): StoredTensor(
                _plain_name(file), _text(dtype), _shape(shape), _whole(offset), _whole(size)
            )
            for name, (file, dtype, shape, offset, size) in data["initializers"].items()
        },
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a shape")
    return tuple(_whole(size) for size in value)


def _axes(value: Any) -> list[int | str]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a shape")
    return [size if isinstance(size, str) else _whole(size) for size in value]


def is_plain_name(name: str) -> bool:
    """Whether a file of this name lies in the folder itself, on every system and in every shell."""
    return _PLAIN_NAME.fullmatch(name) is not None


def _plain_name(value: Any) -> str:
    """A file name that cannot leave the folder."""
    if not isinstance(value, str) or not is_plain_name(value) or value == MANIFEST:
        raise ValueError(f"{value!r} is not a plain file name")
    return value


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(folder: Path, manifest: Manifest) -> None:
    """Compares every listed file with its size and hash; FolderError at the first difference.

    Files are hashed by several threads: the hashes are computed outside the interpreter lock.
    """
    redo = rebuild_command(manifest, folder)

    def check(item: tuple[str, tuple[int, str]]) -> None:
        name, (size, digest) = item
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise FolderError(
                f"{path} is missing or not a plain file",
                expected=f"a file of {size} bytes",
                do=f"build the folder again: {redo}",
            )
        found = path.stat().st_size
        if found != size:
            raise FolderError(
                f"{path} has another size than the manifest says",
                expected=f"{size} bytes",
                found=f"{found} bytes",
                do=f"copy or build the folder again: {redo}",
            )
        actual = sha256_of(path)
        if actual != digest:
            raise FolderError(
                f"{path} has changed since it was built",
                expected=f"SHA-256 {digest}",
                found=f"SHA-256 {actual}",
                do=f"copy or build the folder again: {redo}",
            )

    largest_first = sorted(manifest.files.items(), key=lambda item: -item[1][0])
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(check, largest_first):
            pass
