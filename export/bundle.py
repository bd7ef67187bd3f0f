"""From a checkpoint folder to a bundle: weights first, then one graph after the other."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import onnx_ir as ir

from export.checkpoint import Checkpoint
from export.geometry import ExportOptions, geometry_of
from export.graphs import GraphSource, graph_sources
from export.tokenizer import write_tokenizer
from export.tracing import trace
from export.verification import verify
from export.weights import write_component
from trt_runtime.contract import Geometry
from trt_runtime.errors import UserError
from trt_runtime.manifest import (
    BUNDLE,
    MANIFEST,
    GraphEntry,
    Manifest,
    StoredTensor,
    sha256_of,
)
from trt_runtime.version import __version__

log = logging.getLogger(__name__)

TOKENIZER = "tokenizer.json"
_PRODUCERS = ("torch", "onnx", "onnx-ir", "onnxscript")


def export_checkpoint(
    checkpoint: str | Path,
    bundle: str | Path,
    *,
    options: ExportOptions | None = None,
    check_values: bool = True,
    progress: Callable[[str], None] = log.info,
) -> Path:
    """Writes the bundle of a checkpoint folder and returns its path.

    The bundle appears whole or not at all: it is made beside its place and renamed. An older bundle
    there is replaced; any other non-empty folder is not. `check_values` runs every graph once
    against its torch module. `progress` gets a line for each thing done.

    Raises UserError for a checkpoint that cannot be exported (`python -m export --check` says
    everything that is wrong with it) and for a place that cannot be written.
    """
    opened = Checkpoint.open(checkpoint)
    opened.require_complete()
    place = Path(bundle)
    _check_place(place)
    geometry = geometry_of(opened.sizes, options or ExportOptions())
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        _write(opened, geometry, partial, check_values, progress)
        _put_in_place(partial, place)
    except OSError as error:
        raise UserError(
            f"The bundle {place} cannot be written",
            expected=f"a writable place with {disk_needed(opened) / 1e6:.0f} MB free",
            found=str(error),
            do="free space or choose another folder; nothing was left behind",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return place


def disk_needed(checkpoint: Checkpoint) -> int:
    """Bytes of the weights that a bundle of this checkpoint keeps; graphs add a few megabytes."""
    consumed = set(checkpoint.match.consumed)
    return sum(info.bytes for name, info in checkpoint.tensors.items() if name in consumed)


def _write(
    opened: Checkpoint,
    geometry: Geometry,
    folder: Path,
    check_values: bool,
    progress: Callable[[str], None],
) -> None:
    write_tokenizer(opened.path, folder / TOKENIZER)
    stored: dict[str, dict[str, StoredTensor]] = {}
    counts: dict[str, int] = {}
    parameters = opened.family.components(opened.sizes)
    for component in opened.family.component_names(opened.sizes):
        start = time.monotonic()
        rows = [parameter for parameter in parameters if parameter.component == component]
        stored[component] = write_component(opened, rows, folder / f"{component}.weights")
        counts[component] = sum(row.elements for row in rows)
        progress(
            f"weights of {component}: {counts[component] / 1e6:.1f} M parameters, "
            f"{time.monotonic() - start:.1f} s"
        )
    graphs = {
        source.spec.name: _write_graph(
            source, opened, geometry, stored, folder, check_values, progress
        )
        for source in graph_sources(geometry)
    }
    manifest = Manifest(
        kind=BUNDLE,
        family=opened.family.name,
        geometry=geometry,
        graphs=graphs,
        files={
            path.name: (path.stat().st_size, sha256_of(path)) for path in sorted(folder.iterdir())
        },
        source={"tensors_sha256": opened.digest(), "parameters": counts},
        producer={"ming-trt": __version__} | {name: _version(name) for name in _PRODUCERS},
    )
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")


def _write_graph(
    source: GraphSource,
    opened: Checkpoint,
    geometry: Geometry,
    stored: Mapping[str, Mapping[str, StoredTensor]],
    folder: Path,
    check_values: bool,
    progress: Callable[[str], None],
) -> GraphEntry:
    start = time.monotonic()
    spec = source.spec
    weights = {name: tensor for part in source.components for name, tensor in stored[part].items()}
    model, used = trace(source, opened.sizes, geometry, weights, folder)
    path = folder / f"{spec.name}.onnx"
    ir.save(model, path)
    checked = ""
    if check_values:
        error = verify(path, source, opened.sizes, geometry, used)
        checked = ", form checked" if error is None else f", relative error {error:.1e}"
    progress(
        f"graph {spec.name}: {path.stat().st_size / 1e6:.2f} MB, "
        f"{time.monotonic() - start:.1f} s{checked}"
    )
    return GraphEntry(
        file=path.name,
        component=spec.component,
        inputs=spec.inputs,
        outputs=spec.outputs,
        state=spec.state,
        in_place=spec.in_place,
        initializers=used,
    )


def _check_place(place: Path) -> None:
    if place.is_dir() and any(place.iterdir()) and not (place / MANIFEST).is_file():
        raise UserError(
            f"{place} holds something else than a bundle",
            expected="no such folder, an empty one, or an older bundle",
            found=", ".join(sorted(p.name for p in place.iterdir())[:5]),
            do="choose another folder; nothing was changed",
        )
    if place.exists() and not place.is_dir():
        raise UserError(f"{place} is a file", expected="a folder", do="choose another name")


def _put_in_place(partial: Path, place: Path) -> None:
    """Renames, so that at no moment a half-written folder stands at `place`."""
    aside = place.with_name(f".{place.name}.{os.getpid()}.old")
    if place.exists():
        place.rename(aside)
    try:
        partial.rename(place)
    except OSError:
        if aside.exists():
            aside.rename(place)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _version(distribution: str) -> str:
    try:
        # The local part ("+cpu") names a build, not other arithmetic in tracing.
        return version(distribution).partition("+")[0]
    except PackageNotFoundError:
        return "unknown"
