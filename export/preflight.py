"""The preflight: what a downloaded checkpoint holds and whether it can be exported.

Reads headers, the config and the tokenizer, no tensor, so that it answers in seconds. It goes on
after an error to report as much as possible at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from export.assumptions import TOKENS, Assumption, Finding, compare_assumptions
from export.checkpoint import CONFIG, THREADS, check_folder, read_config
from export.control_tokens import token_problems
from export.families import Family, family_of, unknown_keys
from export.free_memory import free_memory
from export.geometry import ExportOptions, geometry_of
from export.matching import MatchReport, differences, match_tensors
from export.needs import ExportNeeds, estimate_needs
from export.preflight_text import format_report
from export.safetensors_header import TensorInfo
from export.sizes import ModelSizes
from export.speaker_encoder import CAMPPLUS, find_speaker_encoder
from export.tokenizer import load_tokenizer, tokenizer_json
from export.weight_files import find_weight_files, read_tensors
from trt_runtime.errors import UserError
from trt_runtime.manifest import TOKENIZER
from trt_runtime.staging import existing_folder

__all__ = ["PreflightReport", "TensorGroup", "check_checkpoint", "format_report"]


@dataclass(frozen=True)
class TensorGroup:
    """Tensors that belong together: a component's, or those that are unused for one reason."""

    name: str
    tensors: int
    parameters: int
    bytes: int
    first: str = ""


@dataclass
class PreflightReport:
    """What was found. `problems` are what prevents the export; `notes` are worth knowing.

    Fields that an earlier problem left unknown are None or empty. `memory_free` and `disk_free` are
    bytes of this machine: of the disk of the folder `bundle`, or of this folder's where that is "".
    """

    folder: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    config: Mapping[str, Any] = field(default_factory=dict)
    family: Family | None = None
    sizes: ModelSizes | None = None
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    match: MatchReport | None = None
    components: tuple[TensorGroup, ...] = ()
    unused: tuple[TensorGroup, ...] = ()
    dtypes: tuple[TensorGroup, ...] = ()
    unknown_keys: tuple[str, ...] = ()
    token_ids: Mapping[str, int | None] = field(default_factory=dict)
    has_tokenizer: bool | None = None
    has_speaker_encoder: bool | None = None
    needs: ExportNeeds | None = None
    memory_free: int | None = None
    disk_free: int | None = None
    bundle: str = ""
    assumptions: tuple[Assumption, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether this checkpoint can be exported."""
        return not self.problems


def check_checkpoint(
    path: str | Path, bundle: str | Path | None = None, *, options: ExportOptions | None = None
) -> PreflightReport:
    """Everything that can be said of the checkpoint folder `path` without reading a tensor.

    The needs are those of an export with `options`; where `bundle` is given, the room on its disk
    counts too. Never raises for a bad checkpoint: what is wrong stands in the report's `problems`.
    """
    report = PreflightReport(str(path), bundle="" if bundle is None else str(bundle))
    try:
        folder = check_folder(path)
    except UserError as error:
        report.problems.append(str(error))
        return report
    _check_config(folder, report)
    _check_tensors(folder, report)
    _check_needs(options or ExportOptions(), report)
    _check_tokenizer(folder, report)
    _check_speaker_encoder(folder, report)
    finding = Finding(report.config, report.sizes, report.tensors, report.token_ids)
    if report.family is not None:
        report.assumptions = compare_assumptions(finding)
    return report


def _check_config(folder: Path, report: PreflightReport) -> None:
    try:
        report.config = read_config(folder)
        report.family = family_of(report.config)
        report.unknown_keys = tuple(unknown_keys(report.config, report.family.known_keys))
        report.sizes = report.family.sizes(report.config)
    except UserError as error:
        report.problems.append(str(error))


def _check_tensors(folder: Path, report: PreflightReport) -> None:
    damaged: list[UserError] = []
    try:
        files = find_weight_files(folder)
        report.tensors = read_tensors(files, threads=THREADS, on_error=damaged.append)
    except UserError as error:
        damaged.append(error)
    report.problems.extend(str(error) for error in damaged)
    report.dtypes = _groups((tensor.dtype, name, tensor) for name, tensor in report.tensors.items())
    if report.family is None or report.sizes is None or not report.tensors:
        return
    report.match = match_tensors(report.family, report.sizes, report.tensors)
    # Tensors of a file that cannot be read are not missing: the file is the problem.
    report.problems.extend(
        line
        for line in differences(report.match)
        if not (damaged and line.startswith(f"{len(report.match.missing)} missing"))
    )
    report.components = _groups(
        (parameter.component, name, report.tensors[name])
        for parameter in report.match.layout.components(report.sizes)
        for name in parameter.sources
        if name in report.tensors
    )
    report.unused = _groups(
        (tensor.reason, tensor.name, report.tensors[tensor.name]) for tensor in report.match.unused
    )
    absent = {tensor.name for tensor in report.family.unused(report.sizes)} - set(report.tensors)
    if absent and not damaged:
        report.notes.append(
            f"{len(absent)} tensors that this version does not read are not stored either, such as "
            f"{min(absent)}"
        )


def _check_needs(options: ExportOptions, report: PreflightReport) -> None:
    if report.family is None or report.sizes is None or not report.tensors:
        return
    try:
        geometry = geometry_of(report.sizes, options)
    except UserError as error:
        report.problems.append(str(error))
        return
    trained = report.config.get("llm_config", {}).get("max_position_embeddings")
    if isinstance(trained, int) and trained < geometry.cache_length:
        report.notes.append(
            f"the talker was made for {trained} positions, and the bundle will hold "
            f"{geometry.cache_length}: beyond them speech may drift (--cache-length)"
        )
    report.needs = estimate_needs(report.family, report.sizes, geometry, report.tensors)
    report.memory_free = free_memory()
    place = existing_folder(Path(report.bundle or ".").expanduser().resolve())
    report.disk_free = shutil.disk_usage(place).free
    if report.bundle and report.disk_free < report.needs.disk:
        report.problems.append(
            f"The disk of {report.bundle} has {report.disk_free / 1e9:.2f} GB free, and the bundle "
            f"needs about {report.needs.disk / 1e9:.2f} GB"
        )


def _groups(rows: Any) -> tuple[TensorGroup, ...]:
    """Groups (group name, tensor name, tensor) rows, in the order in which groups first appear."""
    grouped: dict[str, list[tuple[str, TensorInfo]]] = {}
    for group, name, tensor in rows:
        grouped.setdefault(group, []).append((name, tensor))
    return tuple(
        TensorGroup(
            group,
            len(members),
            sum(prod(tensor.shape) for _, tensor in members),
            sum(tensor.bytes for _, tensor in members),
            members[0][0],
        )
        for group, members in grouped.items()
    )


def _check_tokenizer(folder: Path, report: PreflightReport) -> None:
    report.has_tokenizer = False
    try:
        tokenizer = load_tokenizer(tokenizer_json(folder), folder / TOKENIZER)
    except UserError as error:
        report.problems.append(str(error))
        return
    report.has_tokenizer = True
    needed = report.family.control_tokens if report.family else ()
    report.token_ids = {
        text: tokenizer.token_to_id(text) for text in dict.fromkeys((*needed, *TOKENS))
    }
    if report.family is not None:
        rows = None if report.sizes is None else report.sizes.talker.vocab_size
        report.problems.extend(token_problems(tokenizer, report.family, rows))


def _check_speaker_encoder(folder: Path, report: PreflightReport) -> None:
    report.has_speaker_encoder = False
    try:
        report.has_speaker_encoder = find_speaker_encoder(folder) is not None
    except UserError as error:
        report.problems.append(str(error))
        return
    if not report.has_speaker_encoder and (folder / CONFIG).exists():
        report.notes.append(f"no {CAMPPLUS}: references give no speaker embedding")
