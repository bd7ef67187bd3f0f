"""From a checkpoint folder to a bundle: weights first, then one graph after the other."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from export.checkpoint import Checkpoint
from export.config_keys import NOTE
from export.control_tokens import require_control_tokens
from export.export_plan import Plan, graph_part, weights_file, weights_part
from export.finished_parts import FinishedParts
from export.free_memory import DEFAULT_MEMORY
from export.geometry import ExportOptions, geometry_of
from export.graphs import GraphSource
from export.needs import estimate_needs
from export.producer import producer_versions
from export.progress import READ, TRACE, WRITE, Progress, Say
from export.speaker_encoder import CAMPPLUS, write_speaker_encoder
from export.tokenizer import write_tokenizer
from export.tracing import make_graph
from export.verification import verify
from export.weights import write_component
from trt_runtime.contract import TALKER, GraphSpec
from trt_runtime.errors import MingError
from trt_runtime.manifest import (
    BUNDLE,
    MANIFEST,
    SPEAKER_ENCODER,
    TOKENIZER,
    ComponentEntry,
    GraphEntry,
    Manifest,
    StoredTensor,
)
from trt_runtime.staging import (
    check_replaceable,
    disk_errors,
    real_place,
    replace_folder,
    resumable_folder,
    unfinished_folder,
    unfinished_size,
    work_folder,
)

log = logging.getLogger(__name__)


def export_checkpoint(
    checkpoint: str | Path,
    bundle: str | Path,
    *,
    options: ExportOptions | None = None,
    check_values: bool = True,
    memory: int = DEFAULT_MEMORY,
    resumable: bool = True,
    fresh: bool = False,
    progress: Say = log.info,
    live: Say | None = None,
) -> Path:
    """Writes the bundle of a checkpoint folder and returns its path.

    The bundle appears whole or not at all: it is made beside its place and renamed. An older bundle
    there is replaced; any other non-empty folder is not. `check_values` runs every graph against
    its torch module where the export then takes no more than `memory` bytes and they are free.
    `progress` gets a line for each thing done; a graph's line says how far its values agree, or
    that they were not compared and why. `live` is for a terminal: it gets lines that each replace
    the one before, while a thing takes long.

    Where the export is interrupted or the disk fills, finished weight files and graphs are kept
    beside the place, and a note of the exception says so: the next call for the same checkpoint and
    options, by the same versions, goes on from there. Not with `resumable` False. `fresh` starts
    over.

    Raises UserError for a checkpoint that cannot be exported (`python -m export --check` says
    everything that is wrong with it), for a place that cannot be written, and while another export
    writes it.
    """
    opened = Checkpoint.open(checkpoint)
    opened.require_complete()
    require_control_tokens(opened.path, opened.family, opened.sizes)
    place = real_place(bundle)
    check_replaceable(place, BUNDLE)
    geometry = geometry_of(opened.sizes, options or ExportOptions())
    needs = estimate_needs(opened.family, opened.sizes, geometry, opened.tensors)
    work_for = resumable_folder if resumable else work_folder
    plan = Plan(opened, geometry, check_values, memory)
    said = Progress(progress, live)
    parts: FinishedParts | None = None
    try:
        with disk_errors(place, needs.disk), work_for(place) as work:
            for kind, units in plan.units():
                said.plan(kind, units)
            if found := unfinished_size(place) if resumable and not fresh else 0:
                said.say(f"found {found / 1e9:.2f} GB of an export that stopped: looking at it")
            with said.step("reading the checkpoint", READ, plan.bytes_read):
                digest = opened.digest(said.advance)
            parts = FinishedParts(work, plan.keys(digest), fresh=fresh)
            if found:
                said.say(f"{len(parts)} of {parts.planned} parts are as they would be made, kept")
            try:
                _Writing(plan, parts, said).bundle(digest)
            except BaseException as error:
                if _may_go_on(error):
                    parts.leave()
                else:
                    parts.discard()
                raise
            try:
                replace_folder(parts.folder, place, BUNDLE)
            except BaseException:
                # All is made, whatever now lies in its place: moving that away is enough.
                parts.leave()
                raise
    except BaseException as error:
        if resumable and parts and unfinished_size(place):
            error.add_note(_kept_note(parts, place))
        raise
    return place


def _may_go_on(error: BaseException) -> bool:
    """Whether another try may get further; what we refuse we would refuse again."""
    return not isinstance(error, MingError) or isinstance(error.__cause__, OSError)


def _kept_note(parts: FinishedParts, place: Path) -> str:
    return (
        f"kept: {len(parts)} of {parts.planned} parts, {parts.bytes / 1e9:.2f} GB, in "
        f"{unfinished_folder(place)}; the same command goes on from there, and deleting that "
        "folder frees the space"
    )


@dataclass
class _Writing:
    """The files of one bundle, those that are finished already left as they are."""

    plan: Plan
    parts: FinishedParts
    said: Progress

    def bundle(self, digest: str) -> None:
        """Writes every file into the folder of the parts, the manifest last."""
        opened, folder = self.plan.opened, self.parts.folder
        write_tokenizer(opened.path, folder / TOKENIZER)
        if not write_speaker_encoder(opened.path, folder / SPEAKER_ENCODER):
            self.said.say(f"no {CAMPPLUS}: speaker embeddings must be given, references have none")
        for component in self.plan.components:
            self._weights(component)
        graphs = {source.spec.name: self._graph(source) for source in self.plan.graphs}
        manifest = Manifest(
            kind=BUNDLE,
            family=opened.family.name,
            geometry=self.plan.geometry,
            graphs=graphs,
            files=self.parts.files(),
            source={
                "tensors_sha256": digest,
                "parameters": self.plan.parameter_counts(),
                **_note(opened),
            },
            components={TALKER: ComponentEntry(opened.sizes.talker)},
            producer=producer_versions(),
        )
        (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")

    def _weights(self, component: str) -> None:
        name, plan, said = weights_part(component), self.plan, self.said
        size = plan.weight_bytes(component)
        if name in self.parts:
            said.keep(WRITE, size)
            return
        rows, file = plan.components[component], weights_file(component)
        with said.step(name, WRITE, size):
            write_component(plan.opened, rows, self.parts.folder / file, said.advance)
            self.parts.add(name, file, {})
            seconds = said.seconds
        count = sum(row.elements for row in rows)
        said.done(f"{name}: {count / 1e6:.1f} M parameters, {seconds:.1f} s")

    def _graph(self, source: GraphSource) -> GraphEntry:
        spec, plan, said = source.spec, self.plan, self.said
        name, weights = graph_part(spec.name), plan.weights(source)
        if name in self.parts:
            noted = self.parts[name].noted
            used = {tensor: weights[tensor] for tensor in noted["initializers"]}
            said.keep(TRACE, plan.graph_seconds(source))
            self._warn(name, noted["skipped"])
            said.done(f"{name}: kept, {noted['compared']}")
            return _entry(spec, self.parts[name].file, used)
        path = self.parts.folder / f"{spec.name}.onnx"
        sizes, geometry = plan.opened.sizes, plan.geometry
        with said.step(name, TRACE, plan.graph_seconds(source)):
            model, used = make_graph(source, sizes, geometry, weights, path.parent)
            ir.save(model, path)
            compared = verify(
                path, source, sizes, geometry, used, values=plan.check_values, memory=plan.memory
            )
            noted = {
                "initializers": list(used), "compared": str(compared), "skipped": compared.skipped
            }  # fmt: skip
            self.parts.add(name, path.name, noted)
            seconds = said.seconds
        self._warn(name, compared.skipped)
        said.done(f"{name}: {path.stat().st_size / 1e6:.2f} MB, {seconds:.1f} s, {compared}")
        return _entry(spec, path.name, used)

    def _warn(self, name: str, skipped: str) -> None:
        """Comparing was asked for and not done: said even where nobody looks at the progress."""
        if skipped and self.plan.check_values:
            log.warning("%s: values NOT compared: %s", name, skipped)


def _entry(spec: GraphSpec, file: str, used: Mapping[str, StoredTensor]) -> GraphEntry:
    return GraphEntry(
        file=file,
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
