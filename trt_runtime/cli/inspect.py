"""`ming-trt inspect DIR`: the manifest of a bundle or an engine folder, readably."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trt_runtime.cli import Command, standard_output
from trt_runtime.contract import TensorSpec
from trt_runtime.manifest import BUNDLE, GraphEntry, Manifest, read_manifest
from trt_runtime.raw_tensors import DTYPE_BYTES

_KINDS = {True: "bundle (runs on ONNX Runtime as it is)", False: "engine folder"}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path, help="bundle or engine folder")
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON")


def _run(arguments: argparse.Namespace) -> int:
    manifest = read_manifest(arguments.folder)
    if arguments.json:
        with standard_output.explained():
            print(manifest.to_json(), end="")
    else:
        for line in describe(arguments.folder, manifest):
            standard_output.print_line(line)
    return 0


def describe(folder: Path, manifest: Manifest) -> Iterator[str]:
    """The manifest as lines of text."""
    yield f"{folder}: {_KINDS[manifest.kind == BUNDLE]}, format version {manifest.format_version}"
    yield f"family     {manifest.family}"
    if manifest.target:
        yield f"target     {manifest.target}"
    entries = manifest.components.items()
    yield from _section("backends", {name: of.backend for name, of in entries if of.backend})
    profiles = {
        name: [f"{slots}x{tokens}" for slots, tokens in of.profiles]
        for name, of in entries
        if of.profiles
    }
    yield from _section("profiles, slots x tokens", profiles)
    yield from _section("operators", {name: of.operators for name, of in entries if of.operators})
    for title in ("precision", "source", "machine", "build", "producer"):
        yield from _section(title, getattr(manifest, title))
    yield ""
    yield from _section("sizes", manifest.geometry.to_json())
    yield ""
    yield f"graphs     {len(manifest.graphs)}"
    for name, graph in manifest.graphs.items():
        yield from _graph(name, graph)
    yield ""
    yield f"files      {len(manifest.files)}, {human_size(_total(manifest))} together"
    width = max(map(len, manifest.files), default=0)
    for name, (size, digest) in sorted(manifest.files.items()):
        yield f"  {name:<{width}}  {human_size(size):>9}  sha256 {digest[:12]}"


def _section(title: str, values: Mapping[str, Any]) -> Iterator[str]:
    if not values:
        return
    yield title
    width = max(map(len, values))
    for name, value in sorted(values.items()):
        if isinstance(value, list | tuple):
            value = ", ".join(map(str, value))
        elif isinstance(value, Mapping):
            value = ", ".join(f"{key} {item}" for key, item in value.items())
        yield f"  {name:<{width}}  {value}"


def _graph(name: str, graph: GraphEntry) -> Iterator[str]:
    yield f"  {name} ({graph.component}, {graph.file})"
    state = [spec for spec in graph.inputs if spec.name in graph.state]
    replaced = {f"{spec.name}_next" for spec in state}
    yield "    in   " + _tensors(spec for spec in graph.inputs if spec.name not in graph.state)
    yield "    out  " + _tensors(spec for spec in graph.outputs if spec.name not in replaced)
    if state:
        size = sum(DTYPE_BYTES.get(s.dtype, 8) * math.prod(s.shape) for s in state)
        count = "1 tensor" if len(state) == 1 else f"{len(state)} tensors"
        yield f"    state  {count}, {human_size(size)}"


def _tensors(specs: Iterable[TensorSpec]) -> str:
    return ", ".join(f"{s.name} {s.dtype} {list(s.shape)}" for s in specs) or "nothing else"


def _total(manifest: Manifest) -> int:
    return sum(size for size, _ in manifest.files.values())


def human_size(size: float) -> str:
    """Bytes as people read them: 512 B, 3.4 MB, powers of 1000."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


command = Command("inspect", "print what a bundle or an engine folder holds", _add_arguments, _run)
