"""The manifest of a bundle or an engine folder: what is inside, and whether it may be used here.

A folder holds `manifest.json` and the files that it lists, nothing deeper. The manifest is read and
checked before any of those files is opened by a runtime.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trt_runtime.errors import FolderError
from trt_runtime.geometry import Geometry

# What a manifest is made of, for those who read one: here too.
from trt_runtime.manifest_entries import MANIFEST as MANIFEST
from trt_runtime.manifest_entries import ComponentEntry as ComponentEntry
from trt_runtime.manifest_entries import GraphEntry as GraphEntry
from trt_runtime.manifest_entries import StoredTensor as StoredTensor
from trt_runtime.manifest_entries import (
    check_tensors,
    component_from_json,
    component_to_json,
    graph_from_json,
    graph_to_json,
    plain_name,
    text,
    whole,
)
from trt_runtime.manifest_entries import is_plain_name as is_plain_name
from trt_runtime.printable import printable
from trt_runtime.rebuilding import BUNDLE as BUNDLE
from trt_runtime.rebuilding import command_of, quoted
from trt_runtime.rebuilding import export_command as export_command
from trt_runtime.rebuilding import rebuild_command as rebuild_command

FORMAT_VERSION = 5
ENGINES = "ming-trt-engines"
#: The tokenizer's file, in either kind of folder.
TOKENIZER = "tokenizer.json"
#: The speaker encoder's file, in either kind of folder; not every checkpoint has one.
SPEAKER_ENCODER = "speaker_encoder.onnx"

_LARGEST_MANIFEST = 64 << 20


@dataclass(frozen=True)
class Manifest:
    """The parsed `manifest.json`.

    `kind` is :data:`BUNDLE` or :data:`ENGINES`; `components` says by name what is no graph's, in an
    engine folder which backend runs each; `files` gives (bytes, SHA-256) by file name;
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
    components: Mapping[str, ComponentEntry] = field(default_factory=dict)
    producer: Mapping[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """The file's text: sorted keys, so that equal manifests are equal bytes."""
        data = {
            "format": self.kind,
            "format_version": self.format_version,
            "family": self.family,
            "geometry": self.geometry.to_json(),
            "graphs": {name: graph_to_json(graph) for name, graph in self.graphs.items()},
            "components": {
                name: component_to_json(entry) for name, entry in self.components.items()
            },
            "files": {n: {"bytes": size, "sha256": sha} for n, (size, sha) in self.files.items()},
            "source": self.source,
            "target": self.target,
            "machine": self.machine,
            "precision": self.precision,
            "build": self.build,
            "producer": self.producer,
        }
        return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of `folder`, checked for form; raises FolderError saying what is wrong."""
    path = folder / MANIFEST
    if not folder.exists():
        raise FolderError(
            f"No such folder: {folder}",
            expected="a bundle (python -m export) or an engine folder (build-engines)",
            do="check the path, or build one: build-engines CHECKPOINT --target cpu --out "
            + quoted(str(folder)),
        )
    if not path.is_file():
        raise FolderError(
            f"{folder} holds no {MANIFEST}",
            expected="a bundle or an engine folder",
            found="a checkpoint"
            if (folder / "config.json").is_file()
            else "another kind of folder",
            do="build engines from it first: "
            f"build-engines {quoted(str(folder))} --target cpu --out ENGINES",
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
        redo = command_of(kind, data.get("target"), data.get("build"), path.parent)
        raise FolderError(
            f"{path} has another format version",
            expected=f"format version {FORMAT_VERSION}",
            found=f"format version {version!r}",
            do=f"build the folder again with this version: {redo}",
        )
    try:
        manifest = Manifest(
            kind=kind,
            family=text(data["family"]),
            geometry=Geometry.from_json(data["geometry"]),
            graphs={text(n): graph_from_json(graph) for n, graph in data["graphs"].items()},
            components={
                text(n): component_from_json(entry) for n, entry in data["components"].items()
            },
            files={
                plain_name(name): (whole(entry["bytes"]), text(entry["sha256"]))
                for name, entry in data["files"].items()
            },
            source=dict(data["source"]),
            target=text(data["target"]),
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
            + command_of(kind, data.get("target"), data.get("build"), path.parent),
        ) from error
    return manifest


def _check_references(manifest: Manifest) -> None:
    for name, graph in manifest.graphs.items():
        if graph.file not in manifest.files:
            raise ValueError(f"graph {name} uses {graph.file}, which files does not list")
        check_tensors(name, graph.initializers, manifest.files)
        if not set(graph.in_place) <= set(graph.state) <= {spec.name for spec in graph.inputs}:
            raise ValueError(f"graph {name} names state that is not among its inputs")
    for name, component in manifest.components.items():
        check_tensors(name, component.tensors, manifest.files)


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(value: Any) -> str:
    """SHA-256 of a value of JSON's types, the same for equal values."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


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
