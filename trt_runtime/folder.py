"""Opening a folder to speak from: an engine folder, or a bundle, run by ONNX Runtime as it is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from trt_runtime.backends.interface import Backend
from trt_runtime.contract import (
    FLOW_ADVANCE,
    FLOW_STEP,
    NEXT,
    ON_DEMAND,
    SPEAKER_PROJECTION,
    TAIL,
    TensorSpec,
    graph_specs,
)
from trt_runtime.cuda_devices import CUDA, check_cuda
from trt_runtime.errors import FolderError
from trt_runtime.machine import check_machine
from trt_runtime.manifest import (
    TOKENIZER,
    GraphEntry,
    Manifest,
    check_files,
    read_manifest,
    rebuild_command,
)
from trt_runtime.tensorrt_check import check_tensorrt
from trt_runtime.tensorrt_library import TENSORRT, TENSORRT_RTX

log = logging.getLogger(__name__)

#: The embedded default: the bundle that ships with the runtime.
EMBEDDED = Path(__file__).parent / "data" / "demo"


def _onnxruntime_cpu(folder: Path, manifest: Manifest, threads: int | None) -> Backend:
    from trt_runtime.backends.onnxruntime_cpu import CpuBackend

    return CpuBackend(folder, manifest, threads)


def _onnxruntime_cuda(folder: Path, manifest: Manifest, threads: int | None) -> Backend:
    """Of the loop's graphs none has threads; those are of what runs once a reference."""
    from trt_runtime.backends.onnxruntime_cpu import check_threads
    from trt_runtime.backends.onnxruntime_cuda import CudaBackend

    check_threads(threads)
    return CudaBackend(folder, manifest)


def _tensorrt(folder: Path, manifest: Manifest, threads: int | None) -> Backend:
    """Its graphs have no threads; those asked for are of what runs once a reference."""
    from trt_runtime.backends.onnxruntime_cpu import check_threads
    from trt_runtime.backends.tensorrt import TensorrtBackend

    check_threads(threads)
    return TensorrtBackend(folder, manifest)


#: What runs a component without graphs: by its tensors and its sizes.
PLUGIN_LOOP = "plugin-loop"
#: What runs a component that is one engine, whose caches may take less than float32.
ENGINE = "tensorrt"


@dataclass(frozen=True)
class TargetRow:
    """How the runtime meets a target: `load` makes the backend of a checked folder.

    `checks` say before it is opened whether its engines may run here; `runners` names what may run
    one of its components.
    """

    load: Callable[[Path, Manifest, int | None], Backend]
    checks: tuple[Callable[[Manifest, Path], None], ...]
    runners: tuple[str, ...]


_HERE = (check_machine, check_cuda)
#: By the manifest's target; a bundle has none.
TARGETS: dict[str, TargetRow] = {
    "": TargetRow(_onnxruntime_cpu, _HERE, ("",)),
    "cpu": TargetRow(_onnxruntime_cpu, _HERE, ("onnxruntime-cpu",)),
    CUDA: TargetRow(_onnxruntime_cuda, _HERE, ("onnxruntime-cuda", PLUGIN_LOOP)),
    TENSORRT: TargetRow(_tensorrt, (check_tensorrt,), (ENGINE,)),
    TENSORRT_RTX: TargetRow(_tensorrt, (check_tensorrt,), (ENGINE,)),
}


def check_contract(folder: Path, manifest: Manifest) -> None:
    """Raises FolderError unless every graph of the loop is there and has the contract's tensors."""
    specs = graph_specs(manifest.geometry)
    if TOKENIZER not in manifest.files:
        raise FolderError(
            f"The manifest of {folder} does not list {TOKENIZER}",
            expected="every file of the folder, with its hash",
            found=f"{len(manifest.files)} files",
            do=f"build it again: {rebuild_command(manifest, folder)}",
        )
    needed = set(specs) - {SPEAKER_PROJECTION, TAIL, *ON_DEMAND}
    if TAIL in manifest.graphs:
        needed -= {FLOW_STEP, FLOW_ADVANCE}
    without = {name for name, entry in manifest.components.items() if entry.backend == PLUGIN_LOOP}
    needed -= {name for name in needed if specs[name].component in without}
    missing = needed - set(manifest.graphs)
    if missing:
        raise FolderError(
            f"{folder} lacks graphs that speaking needs",
            expected=", ".join(sorted(needed)),
            found=f"no {', '.join(sorted(missing))}",
            do=f"build it again: {rebuild_command(manifest, folder)}",
        )
    target = TARGETS.get(manifest.target)
    runners = () if target is None else target.runners
    for component, row in manifest.components.items():
        if row.backend not in runners:
            raise FolderError(
                f"This version cannot run the component {component} of {folder}",
                expected=" or ".join(runners) or "no backend",
                found=f"a component for the backend {row.backend!r}",
                do=f"update ming-trt, or build it again: {rebuild_command(manifest, folder)}",
            )
    for name, spec in specs.items():
        entry = manifest.graphs.get(name)
        if entry is None:
            continue
        # An engine is found by its component's row; a graph is a file of its own.
        lost = ENGINE in runners and entry.component not in manifest.components
        if entry.component != spec.component or lost:
            raise FolderError(
                f"Graph {name} of {folder} belongs to a component that the folder does not have",
                expected=spec.component,
                found=repr(entry.component),
                do=f"build it again: {rebuild_command(manifest, folder)}",
            )
        found = (entry.inputs, entry.outputs, entry.state)
        if getattr(manifest.components.get(entry.component), "backend", "") == ENGINE:
            found = (*_with_wide_caches(entry), entry.state)
        # A builder may give up updating in place; one that adds to it would read what it overwrote.
        allowed = set(entry.in_place) <= set(spec.in_place)
        if found != (spec.inputs, spec.outputs, spec.state) or not allowed:
            raise FolderError(
                f"Graph {name} of {folder} does not fit the folder's geometry",
                expected=_tensors(spec.inputs, spec.outputs),
                found=_tensors(entry.inputs, entry.outputs),
                do=f"build it again: {rebuild_command(manifest, folder)}",
            )


def _with_wide_caches(
    entry: GraphEntry,
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs with float32 for caches of half of its size, where both ends have one."""
    dtypes = {spec.name: spec.dtype for spec in (*entry.inputs, *entry.outputs)}
    narrow = {
        name
        for name in entry.state
        if "cache" in name
        and dtypes[name] in ("bfloat16", "float16")
        and dtypes[name] == dtypes.get(name + NEXT)
    }
    narrow |= {name + NEXT for name in narrow}

    def wide(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(replace(s, dtype="float32") if s.name in narrow else s for s in specs)

    return wide(entry.inputs), wide(entry.outputs)


def _tensors(inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> str:
    """The first few tensors, which differ in nearly every mistake."""

    def row(specs: tuple[TensorSpec, ...]) -> str:
        shown = ", ".join(f"{s.name} {s.dtype} {s.axes}" for s in specs[:4])
        return shown + (", ..." if len(specs) > 4 else "")

    return f"{row(inputs)} to {row(outputs)}"


@dataclass(frozen=True)
class OpenFolder:
    """A checked folder and the backend that has loaded its graphs."""

    path: Path
    manifest: Manifest
    backend: Backend
    threads: int | None = None
    """Of one graph call, also of a third party's graph; None is every core."""


def open_folder(
    folder: str | Path | None, *, threads: int | None = None, verify: bool = True
) -> OpenFolder:
    """Checks manifest, machine and (with `verify`) every file's hash, then loads the graphs.

    None opens the embedded default. Raises FolderError before anything is deserialised where a
    check fails.
    """
    start = time.perf_counter()
    path, manifest = check_folder(folder)
    if verify:
        check_files(path, manifest)
    checked = time.perf_counter()
    backend = TARGETS[manifest.target].load(path, manifest, threads)
    log.info(
        "%s: checked in %.2f s, loaded in %.2f s, target %r, family %s",
        path, checked - start, time.perf_counter() - checked, manifest.target, manifest.family,
    )  # fmt: skip
    return OpenFolder(path, manifest, backend, threads)


def check_folder(folder: str | Path | None) -> tuple[Path, Manifest]:
    """The folder and its manifest, where this version and this machine can run it, by its manifest.

    None is the embedded default. Raises FolderError; the files' hashes are not looked at.
    """
    path = EMBEDDED if folder is None else Path(folder)
    manifest = read_manifest(path)
    if manifest.target not in TARGETS:
        raise FolderError(
            f"{path} was built for target {manifest.target!r}",
            expected="a target that this version runs: "
            + ", ".join(repr(name) for name in TARGETS if name),
            found=repr(manifest.target),
            do="update ming-trt, or build the folder for another target",
        )
    check_contract(path, manifest)
    for check in TARGETS[manifest.target].checks:
        check(manifest, path)
    return path, manifest
