"""The build cache: the output folder itself, which says in its manifest what it was built from.

A cache elsewhere would keep every engine twice on disk. Instead a build has a key, and so has each
of its components. An output folder with the wanted key is left as it is; where only some
components' keys differ, the files of the others are taken over from it.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import metadata, util
from pathlib import Path
from typing import Any

from engines.layout import build_log
from engines.precision import FLOAT32, find_precision
from engines.targets import Built
from trt_runtime.contract import TensorSpec
from trt_runtime.errors import FolderError
from trt_runtime.manifest import (
    ENGINES,
    FORMAT_VERSION,
    MANIFEST,
    ComponentEntry,
    GraphEntry,
    Manifest,
    check_files,
    digest_of,
    read_manifest,
    sha256_of,
)
from trt_runtime.manifest_entries import component_to_json

log = logging.getLogger(__name__)

#: Raised with every change of what a builder writes for the same input.
BUILDER_VERSION = 1

#: The modules of the runtime that the exporter imports, and that shape what it writes.
CONTRACT = (
    "trt_runtime.contract",
    "trt_runtime.errors",
    "trt_runtime.exit_status",
    "trt_runtime.geometry",
    "trt_runtime.interruption",
    "trt_runtime.manifest",
    "trt_runtime.manifest_entries",
    "trt_runtime.operators",
    "trt_runtime.printable",
    "trt_runtime.raw_tensors",
    "trt_runtime.rebuilding",
    "trt_runtime.staging",
    "trt_runtime.time_grid",
    "trt_runtime.transformer_sizes",
    "trt_runtime.version",
)

# Other versions of these trace the same module to another graph.
_EXPORTER_DISTRIBUTIONS = ("torch", "onnx", "onnxscript", "onnx-ir")


@dataclass(frozen=True)
class BuildSettings:
    """Everything but its source that a build depends on.

    `chosen` are the options that were given, `machine` what of the machine the engines depend on.
    """

    target: str
    chosen: Mapping[str, Any]
    machine: Mapping[str, Any]
    builder_version: int = BUILDER_VERSION

    def options(self) -> dict[str, Any]:
        """What the caller chose, as a manifest's build options hold it."""
        return dict(self.chosen)

    def facts(self) -> dict[str, Any]:
        """What a key is made of."""
        plan = find_precision(self.chosen.get("precision", FLOAT32)).plan()
        return {**vars(self), "plan": plan}


def component_key(
    graphs: Mapping[str, GraphEntry],
    bundle: Manifest,
    settings: BuildSettings,
    *,
    backend: str,
    entry: ComponentEntry,
) -> str:
    """Key of one component: its graphs and their weights by content, and the settings.

    `backend` runs it; `entry` is what the bundle says of it beside its graphs.
    """
    weights = {t.file for graph in graphs.values() for t in graph.initializers.values()}
    return digest_of(
        {
            "graphs": {name: _graph_facts(graph, bundle) for name, graph in graphs.items()},
            "weights": {name: bundle.files[name][1] for name in weights},
            "backend": backend,
            "entry": component_to_json(entry),
            "settings": settings.facts(),
            "format_version": FORMAT_VERSION,
        }
    )


def _graph_facts(graph: GraphEntry, bundle: Manifest) -> list[Any]:
    """Everything of a graph's manifest entry but its weights, which are hashed by content."""

    def rows(specs: Iterable[TensorSpec]) -> list[list[Any]]:
        return [[spec.name, spec.dtype, spec.axes] for spec in specs]

    return [
        bundle.files[graph.file][1],
        graph.file,
        graph.component,
        rows(graph.inputs),
        rows(graph.outputs),
        list(graph.state),
        list(graph.in_place),
    ]


def build_key(components: Mapping[str, str], bundle_digest: str, settings: BuildSettings) -> str:
    """Key of a whole engine folder: its components, and the bundle's manifest for all else."""
    return digest_of(
        {"components": components, "bundle": bundle_digest, "settings": settings.facts()}
    )


def checkpoint_key(
    checkpoint: Path, out: Path, export_options: Mapping[str, Any], settings: BuildSettings
) -> str:
    """Key of a build from a checkpoint, found without the minutes that an export takes.

    It covers the checkpoint's files by content, the options, the exporter's own code and the
    versions of what it traces with. Files under `out` do not count.
    """
    files = sorted(
        path
        for path in checkpoint.rglob("*")
        if path.is_file()
        and not path.is_relative_to(out)
        and not any(part.startswith(".") for part in path.relative_to(checkpoint).parts)
    )
    return digest_of(
        {
            "files": _digests(files, checkpoint),
            "options": {name: _plain(value) for name, value in export_options.items()},
            "exporter": _code_digest("export"),
            "contract": {name: _code_digest(name) for name in CONTRACT},
            "versions": {name: _version(name) for name in _EXPORTER_DISTRIBUTIONS},
            "settings": settings.facts(),
        }
    )


def _digests(files: Iterable[Path], root: Path) -> list[list[str]]:
    files = list(files)
    with ThreadPoolExecutor(4) as pool:  # hashes are computed outside the interpreter lock
        digests = list(pool.map(sha256_of, files))
    names = (path.relative_to(root).as_posix() for path in files)
    return [list(pair) for pair in zip(names, digests, strict=True)]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _code_digest(module: str) -> str | None:
    """Digest of a module's or package's source files: right in a checkout, where versions stay."""
    spec = util.find_spec(module)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        roots = [Path(folder) for folder in spec.submodule_search_locations]
        return digest_of([_digests(sorted(root.rglob("*.py")), root) for root in roots])
    return sha256_of(Path(spec.origin)) if spec.origin else None


def previous_build(out: Path) -> Manifest | None:
    """The manifest of the engines that lie in `out`, or None where there are none to read."""
    if not (out / MANIFEST).is_file():
        return None
    try:
        manifest = read_manifest(out)
    except FolderError as error:
        log.info("not reusing %s: %s", out, error)
        return None
    return manifest if manifest.kind == ENGINES else None


def is_current(out: Path, previous: Manifest | None, name: str, key: str) -> bool:
    """Whether `out` is, byte for byte, the build whose `name` in the manifest is `key`."""
    if previous is None or previous.build.get(name) != key:
        return False
    try:
        check_files(out, previous)
    except FolderError as error:
        log.warning("building again: %s", error)
        return False
    return True


def reuse_component(
    previous: Manifest | None, out: Path, component: str, key: str, into: Path
) -> Built | None:
    """Takes an unchanged component's files over from the engines in `out`; None where it cannot."""
    if previous is None:
        return None
    keys = previous.build.get("components")
    if not isinstance(keys, dict) or keys.get(component) != key:
        return None
    graphs = {n: graph for n, graph in previous.graphs.items() if graph.component == component}
    before = previous.components.get(component, ComponentEntry())
    names = {graph.file for graph in graphs.values()}
    names |= {t.file for graph in graphs.values() for t in graph.initializers.values()}
    names |= {tensor.file for tensor in before.tensors.values()}
    names |= {build_log(component)} & set(previous.files)
    try:
        check_files(out, replace(previous, files={n: previous.files[n] for n in names}))
    except FolderError as error:
        log.warning("building %s again: %s", component, error)
        return None
    for name in names:
        link_or_copy(out / name, into / name)
    return Built(graphs, before.tensors, before.profiles, before.operators)


def link_or_copy(source: Path, target: Path) -> None:
    """The same file a second time: a hard link, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError as error:
        log.debug("copying %s: %s", source, error)
        shutil.copyfile(source, target)
