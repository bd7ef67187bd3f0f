"""Building an engine folder from a checkpoint or a bundle."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from engines.cache import (
    BuildSettings,
    build_key,
    checkpoint_key,
    component_key,
    is_current,
    link_or_copy,
    previous_build,
    reuse_component,
)
from engines.layout import (
    asset_names,
    build_log,
    bytes_needed,
    check_names,
    component_graphs,
    stored_precisions,
    weights_file,
)
from engines.options import BuildOptions
from engines.targets import Builder, ComponentJob, Row, Target, find_target
from engines.weights import WeightStore
from trt_runtime.errors import FolderError, UserError
from trt_runtime.machine import check_machine, describe_machine
from trt_runtime.manifest import (
    BUNDLE,
    ENGINES,
    MANIFEST,
    ComponentEntry,
    GraphEntry,
    Manifest,
    check_files,
    read_manifest,
    sha256_of,
)
from trt_runtime.memory import peak_memory, peak_memory_text
from trt_runtime.staging import (
    check_replaceable,
    disk_errors,
    real_place,
    replace_folder,
    work_folder,
)

log = logging.getLogger(__name__)

#: Called with each line that a user should see.
Progress = Callable[[str], None]


def build_engines(
    source: str | Path,
    out: str | Path,
    *,
    target: str = "cpu",
    force: bool = False,
    progress: Progress | None = None,
    export_options: Mapping[str, Any] | None = None,
    options: BuildOptions | None = None,
) -> Path:
    """Builds the engines of `source` into the folder `out`, and returns it.

    `source` is a checkpoint folder (exported first, `export_options` being the fields of
    `export.ExportOptions`) or a bundle. Engines that already lie in `out` are kept where they are
    what would be built, and replaced only when the new ones are whole; `force` builds everything
    again. `progress` gets a line a graph. `options` are the target's: its precision and, of
    TensorRT, what an engine is built for.

    Raises UserError for a source that is neither, an unknown target, an option that it does not
    have, an `out` that is something else's folder or cannot be written, a full disk, a library that
    fails; FolderError for a damaged bundle.
    """
    row = find_target(target)
    chosen = options or BuildOptions()
    row.check_options(chosen)
    given = str(source)
    source, out = real_place(source), real_place(out)
    from_checkpoint = _is_checkpoint(source)
    if export_options and not from_checkpoint:
        raise UserError(
            f"{source} is a bundle already exported, and takes no export options",
            expected="no export options",
            found=", ".join(sorted(export_options)),
            do="leave them out, or give the checkpoint instead",
        )
    check_replaceable(out, ENGINES)
    plan = _Plan(row, row.load_builders(), given, out, force, progress or log.info, chosen)
    if from_checkpoint:
        return _build_from_checkpoint(source, dict(export_options or {}), plan)
    return _build_from_bundle(source, plan)


def _is_checkpoint(source: Path) -> bool:
    """True for a checkpoint, False for a bundle, UserError for anything else."""
    if (source / "config.json").is_file() and not (source / MANIFEST).exists():
        return True
    try:
        kind = read_manifest(source).kind
    except FolderError as error:
        if source.exists() and not (source / MANIFEST).exists():
            raise UserError(
                f"{source} is neither a checkpoint nor a bundle",
                expected=f"a folder with config.json, or with {MANIFEST} of a bundle",
                found="a folder with neither" if source.is_dir() else "a file",
                do="give the checkpoint's folder",
            ) from error
        raise
    if kind != BUNDLE:
        raise UserError(
            f"{source} holds engines already, and engines are not built from engines",
            expected="a checkpoint or a bundle",
            found="an engine folder",
            do="give the checkpoint or the bundle that it was built from",
        )
    return False


@dataclass
class _Plan:
    """One call's settings, and what lay in `out` when it began.

    `source` is where the source lies, as the caller gave it: for the manifest.
    """

    target: Target
    builders: Mapping[Row, Builder]
    source: str
    out: Path
    force: bool
    say: Progress
    options: BuildOptions
    started: float = field(default_factory=time.monotonic)
    machine: dict[str, Any] = field(init=False)
    settings: BuildSettings = field(init=False)
    previous: Manifest | None = field(init=False)

    def __post_init__(self) -> None:
        target, options = self.target, self.options
        machine = target.describe_machine(options)
        self.machine = machine.described
        self.settings = BuildSettings(target.name, options.of_result(), machine.matters)
        self.previous = None if self.force else previous_build(self.out)

    def already_there(self, name: str, key: str) -> bool:
        if self.previous is None or not is_current(self.out, self.previous, name, key):
            return False
        try:
            # What the runtime would refuse is built again: its error says to come here.
            check_machine(self.previous, self.out)
        except FolderError as error:
            log.warning("%s: building it again: %s", self.out, error)
            return False
        self.say(f"{self.out} is up to date: nothing to do (--force builds it again)")
        return True


def _build_from_checkpoint(checkpoint: Path, options: dict[str, Any], plan: _Plan) -> Path:
    from export import ExportOptions
    from export.packages import TO_EXPORT, require_packages

    require_packages(f"Exporting the checkpoint {checkpoint}", TO_EXPORT)

    chosen = ExportOptions(**options)
    key = checkpoint_key(checkpoint, plan.out, vars(chosen), plan.settings)
    if plan.already_there("checkpoint_key", key):
        return plan.out
    from export import export_checkpoint  # imports torch, which the key does not need

    # The bundle is as large as the checkpoint's bf16, float32 engines and the scratch twice that.
    weights = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    with disk_errors(plan.out, needed=5 * weights), work_folder(plan.out) as work:
        bundle = work / "bundle"
        plan.say(f"exporting {checkpoint}")
        started = time.monotonic()
        export_checkpoint(checkpoint, bundle, options=chosen, resumable=False, progress=plan.say)
        plan.say(f"exported in {time.monotonic() - started:.1f} s, {peak_memory_text()}")
        noted = {"checkpoint_key": key, "export_options": options}
        _build_in(work, bundle, read_manifest(bundle), plan, noted)
    return plan.out


def _build_from_bundle(bundle: Path, plan: _Plan) -> Path:
    manifest = read_manifest(bundle)
    check_files(bundle, manifest)
    # The whole key needs no work folder: a build with nothing to do leaves the disk alone.
    _, key = _keys(bundle, manifest, plan)
    if plan.already_there("key", key):
        return plan.out
    with disk_errors(plan.out, bytes_needed(manifest, plan.target)), work_folder(plan.out) as work:
        _build_in(work, bundle, manifest, plan, {})
    return plan.out


def _keys(bundle: Path, manifest: Manifest, plan: _Plan) -> tuple[dict[str, str], str]:
    components = {
        component: component_key(
            graphs,
            manifest,
            plan.settings,
            backend=plan.target.row_of(component).backend,
            entry=_entry_of(manifest, component),
        )
        for component, graphs in component_graphs(manifest, plan.target).items()
    }
    digest = sha256_of(bundle / MANIFEST)
    return components, build_key(components, digest, plan.settings)


def _build_in(
    work: Path, bundle: Path, manifest: Manifest, plan: _Plan, extra: Mapping[str, Any]
) -> None:
    """Builds into `work` and renames the result to the plan's `out`."""
    check_names(bundle, manifest, plan.target)
    new = work / "engines"
    new.mkdir()
    components, key = _keys(bundle, manifest, plan)
    graphs: dict[str, GraphEntry] = {}
    entries: dict[str, ComponentEntry] = {}
    figures: dict[str, Any] = {}
    for component, sources in component_graphs(manifest, plan.target).items():
        row, entry = plan.target.row_of(component), _entry_of(manifest, component)
        built = reuse_component(plan.previous, plan.out, component, components[component], new)
        if built is not None:
            figures |= _figures_of(plan.previous, [component, *built.graphs])
            plan.say(f"{component}: unchanged, kept")
        else:
            with WeightStore(new, weights_file(component)) as weights:
                step = partial(_step, plan, new, weights, work / "scratch", figures)
                built = plan.builders[row](
                    ComponentJob(
                        name=component,
                        graphs=sources,
                        entry=entry,
                        bundle=bundle,
                        files=manifest.files,
                        out=new,
                        weights=weights,
                        step=step,
                        options=plan.options,
                        say=plan.say,
                        target=plan.target.name,
                        machine=plan.machine,
                        failed_log=plan.out.with_name(f"{plan.out.name}-{build_log(component)}"),
                        replaces=plan.out,
                    )
                )
                if built.figures:
                    figures[component] |= built.figures
        graphs |= built.graphs
        entries[component] = replace(
            entry,
            backend=row.backend,
            tensors=built.tensors,
            profiles=built.profiles,
            operators=built.operators,
        )
    for name in asset_names(manifest):
        link_or_copy(bundle / name, new / name)
    files = _listed(new)
    result = Manifest(
        kind=ENGINES,
        family=manifest.family,
        geometry=manifest.geometry,
        graphs=graphs,
        files=files,
        source={**manifest.source, "bundle_sha256": sha256_of(bundle / MANIFEST)},
        target=plan.target.name,
        machine=plan.machine,
        precision=stored_precisions(graphs, entries, plan.options.precision),
        build={
            **extra,
            "source": plan.source,
            "options": plan.settings.options(),
            "builder_version": plan.settings.builder_version,
            "onnxruntime": describe_machine()["onnxruntime"],
            "key": key,
            "components": components,
            "graphs": figures,
            "seconds": round(time.monotonic() - plan.started, 3),
            "peak_memory_bytes": peak_memory(),
        },
        components=entries,
        producer=manifest.producer,
    )
    # Last: until its manifest is there, a folder does not load.
    (new / MANIFEST).write_text(result.to_json(), encoding="utf-8")
    replace_folder(new, plan.out, ENGINES)
    total = sum(size for size, _ in files.values())
    plan.say(
        f"{plan.out}: {len(graphs)} graphs, {total / 1e6:,.1f} MB, "
        f"{time.monotonic() - plan.started:.1f} s, {peak_memory_text()}"
    )


def _entry_of(bundle: Manifest, component: str) -> ComponentEntry:
    return bundle.components.get(component, ComponentEntry())


@contextmanager
def _step(
    plan: _Plan,
    out: Path,
    weights: WeightStore,
    scratch: Path,
    figures: dict[str, Any],
    name: str,
) -> Iterator[Path]:
    """A scratch folder while something is built, then its progress line and its figures."""
    scratch.mkdir()
    started, before = time.monotonic(), weights.bytes_written + _bytes_beside_weights(out)
    yield scratch
    shutil.rmtree(scratch)
    seconds = time.monotonic() - started
    size = weights.bytes_written + _bytes_beside_weights(out) - before
    plan.say(f"{name}: {seconds:.1f} s, {size / 1e6:,.1f} MB, {peak_memory_text()}")
    figures[name] = {
        "seconds": round(seconds, 3),
        "bytes": size,
        "peak_memory_bytes": peak_memory(),
    }


def _bytes_beside_weights(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix != ".weights")


def _figures_of(previous: Manifest | None, names: Iterable[str]) -> dict[str, Any]:
    """What an earlier build noted of what is kept."""
    noted = previous.build.get("graphs") if previous is not None else None
    return {n: noted[n] for n in names if n in noted} if isinstance(noted, dict) else {}


def _listed(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of each file, as a manifest lists them."""
    paths = sorted(folder.iterdir())
    with ThreadPoolExecutor(4) as pool:
        digests = list(pool.map(sha256_of, paths))
    return {p.name: (p.stat().st_size, d) for p, d in zip(paths, digests, strict=True)}
