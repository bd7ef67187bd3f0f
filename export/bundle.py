"""From a checkpoint folder to a bundle: weights first, then one graph after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import onnx_ir as ir

from export.checkpoint import Checkpoint
from export.config_keys import NOTE
from export.control_tokens import require_control_tokens
from export.geometry import ExportOptions, geometry_of
from export.graphs import GraphSource, graph_sources
from export.needs import estimate_needs
from export.speaker_encoder import CAMPPLUS, write_speaker_encoder
from export.tokenizer import write_tokenizer
from export.tracing import make_graph
from export.verification import verify
from export.weights import write_component
from trt_runtime.contract import TALKER
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import (
    BUNDLE,
    MANIFEST,
    SPEAKER_ENCODER,
    TOKENIZER,
    ComponentEntry,
    GraphEntry,
    Manifest,
    StoredTensor,
    sha256_of,
)
from trt_runtime.staging import (
    check_replaceable,
    disk_errors,
    real_place,
    replace_folder,
    work_folder,
)
from trt_runtime.version import __version__

log = logging.getLogger(__name__)

#: Called with each line that a user should see.
Progress = Callable[[str], None]

_PRODUCERS = ("torch", "onnx", "onnx-ir", "onnxscript")


def export_checkpoint(
    checkpoint: str | Path,
    bundle: str | Path,
    *,
    options: ExportOptions | None = None,
    check_values: bool = True,
    progress: Progress = log.info,
) -> Path:
    """Writes the bundle of a checkpoint folder and returns its path.

    The bundle appears whole or not at all: it is made beside its place and renamed. An older bundle
    there is replaced; any other non-empty folder is not. `check_values` runs every graph against
    its torch module where memory allows. `progress` gets a line for each thing done; a graph's line
    says how far its values agree, or that they were not compared and why.

    Raises UserError for a checkpoint that cannot be exported (`python -m export --check` says
    everything that is wrong with it) and for a place that cannot be written.
    """
    opened = Checkpoint.open(checkpoint)
    opened.require_complete()
    require_control_tokens(opened.path, opened.family, opened.sizes)
    place = real_place(bundle)
    check_replaceable(place, BUNDLE)
    geometry = geometry_of(opened.sizes, options or ExportOptions())
    needs = estimate_needs(opened.family, opened.sizes, geometry, opened.tensors)
    with disk_errors(place, needs.disk), work_folder(place) as work:
        new = work / "bundle"
        new.mkdir()
        _write(opened, geometry, new, check_values, progress)
        replace_folder(new, place, BUNDLE)
    return place


def _write(
    opened: Checkpoint,
    geometry: Geometry,
    folder: Path,
    check_values: bool,
    progress: Progress,
) -> None:
    write_tokenizer(opened.path, folder / TOKENIZER)
    if not write_speaker_encoder(opened.path, folder / SPEAKER_ENCODER):
        progress(f"no {CAMPPLUS}: speaker embeddings must be given, references have none")
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
        source={"tensors_sha256": opened.digest(), "parameters": counts, **_note(opened)},
        components={TALKER: ComponentEntry(opened.sizes.talker)},
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
    progress: Progress,
) -> GraphEntry:
    start = time.monotonic()
    spec = source.spec
    # A component may be empty: the tied language head has no table of its own.
    parts = [stored.get(part, {}) for part in source.components]
    weights = {name: tensor for part in parts for name, tensor in part.items()}
    model, used = make_graph(source, opened.sizes, geometry, weights, folder)
    path = folder / f"{spec.name}.onnx"
    ir.save(model, path)
    compared = verify(path, source, opened.sizes, geometry, used, values=check_values)
    if compared.skipped and check_values:
        # Asked for and not done: said even where nobody looks at the progress.
        log.warning("graph %s: %s", spec.name, compared)
    progress(
        f"graph {spec.name}: {path.stat().st_size / 1e6:.2f} MB, "
        f"{time.monotonic() - start:.1f} s, {compared}"
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


def _note(opened: Checkpoint) -> dict[str, str]:
    """What the checkpoint's maker wants every user to be told."""
    note = opened.config.get(NOTE)
    return {"note": note} if isinstance(note, str) else {}


def _version(distribution: str) -> str:
    try:
        # The local part ("+cpu") names a build, not other arithmetic in tracing.
        return version(distribution).partition("+")[0]
    except PackageNotFoundError:
        return "unknown"
