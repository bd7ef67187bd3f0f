"""Opening a folder to speak from: an engine folder, or a bundle, run by ONNX Runtime as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trt_runtime.backends.interface import Backend
from trt_runtime.errors import FolderError
from trt_runtime.machine import check_machine
from trt_runtime.manifest import Manifest, check_files, read_manifest

#: The embedded default: the bundle that ships with the runtime.
EMBEDDED = Path(__file__).parent / "data" / "demo"


def _onnxruntime_cpu(folder: Path, manifest: Manifest, threads: int | None) -> Backend:
    from trt_runtime.backends.onnxruntime_cpu import CpuBackend

    return CpuBackend(folder, manifest, threads)


#: By the manifest's target; a bundle has none.
BACKENDS: dict[str, Callable[[Path, Manifest, int | None], Backend]] = {
    "": _onnxruntime_cpu,
    "cpu": _onnxruntime_cpu,
}


@dataclass(frozen=True)
class OpenFolder:
    """A checked folder and the backend that has loaded its graphs."""

    path: Path
    manifest: Manifest
    backend: Backend


def open_folder(
    folder: str | Path | None, *, threads: int | None = None, verify: bool = True
) -> OpenFolder:
    """Checks manifest, machine and (with `verify`) every file's hash, then loads the graphs.

    None opens the embedded default. Raises FolderError before anything is deserialised where a
    check fails.
    """
    path = EMBEDDED if folder is None else Path(folder)
    manifest = read_manifest(path)
    if manifest.target not in BACKENDS:
        raise FolderError(
            f"{path} was built for target {manifest.target!r}",
            expected="a target that this version runs: "
            + ", ".join(repr(name) for name in BACKENDS if name),
            found=repr(manifest.target),
            do="update ming-trt, or build the folder for another target",
        )
    check_machine(manifest, path)
    if verify:
        check_files(path, manifest)
    return OpenFolder(path, manifest, BACKENDS[manifest.target](path, manifest, threads))
