"""The two sides of a comparison: a checkpoint, a bundle or an engine folder, each as a backend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engines.precision import FLOAT32, MIXED
from trt_runtime.backends.interface import Backend
from trt_runtime.contract import FLOW_STEP, LANGUAGE_HEAD, PROMPT_EMBEDDING, TAIL
from trt_runtime.errors import UserError
from trt_runtime.folder import open_folder
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import BUNDLE, MANIFEST, Manifest, read_manifest

if TYPE_CHECKING:
    from export.checkpoint import Checkpoint

CHECKPOINT = "checkpoint"
#: Weights or products narrower than float32, whatever the precision of the build was called.
LOWER = "lower"

#: Components whose table is stored narrow and widened before anything is computed with it.
_ONLY_STORED = (PROMPT_EMBEDDING, LANGUAGE_HEAD)
#: Sizes that say how much a folder holds at most, and nothing of the model.
_CAPACITY = frozenset(
    {
        "cache_length", "max_steps", "prefill_chunks", "max_reference_latents",
        "decoder_cache_lengths", "encoder_frame_cache_lengths", "encoder_latent_cache_lengths",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Side:
    """One side, loaded. `checkpoint` or `manifest` is there, as the kind says.

    `name` is "A" or "B"; `kind` is "checkpoint", "bundle" or "engines".
    """

    name: str
    path: Path
    kind: str
    family: str
    geometry: Geometry
    backend: Backend
    manifest: Manifest | None = None
    checkpoint: Checkpoint | None = None

    def precision(self, component: str) -> str:
        """What the component computes in: :data:`~engines.precision.FLOAT32` or :data:`LOWER`."""
        stored = self.manifest.precision if self.manifest is not None else {}
        found = stored.get(component, FLOAT32)
        if component == "flow" and component not in stored:
            # Unrolled, the flow is part of the tail.
            found = stored.get(TAIL, FLOAT32)
        if component in _ONLY_STORED and not found.startswith(MIXED):
            return FLOAT32
        return FLOAT32 if found == FLOAT32 else LOWER

    @property
    def unrolled(self) -> bool:
        """Whether its loop runs the tail as one graph."""
        return not self.backend.has(FLOW_STEP)

    @property
    def target(self) -> str:
        return self.manifest.target if self.manifest is not None else ""

    def __str__(self) -> str:
        target = f", target {self.target}" if self.target else ""
        computing = "float32 by PyTorch" if self.kind == CHECKPOINT else "as it is"
        how = "" if self.kind == "engines" else f", {computing}"
        return f"{self.path} ({self.kind}{target}{how})"


def open_sides(a: str | Path, b: str | Path, *, threads: int | None = None) -> tuple[Side, Side]:
    """Both sides, checked against each other before either is loaded.

    Raises UserError for a path that is no such folder and for models of different sizes, and
    FolderError for a folder that cannot be opened.
    """
    paths = Path(a), Path(b)
    manifests = [None if _is_checkpoint(path) else read_manifest(path) for path in paths]
    known = next((m.geometry for m in manifests if m is not None), None)
    checkpoints = [
        _open_checkpoint(path) if manifest is None else None
        for path, manifest in zip(paths, manifests, strict=True)
    ]
    geometries = [
        manifest.geometry if manifest is not None else _geometry(checkpoint, known)
        for manifest, checkpoint in zip(manifests, checkpoints, strict=True)
    ]
    check_same_model(paths, (geometries[0], geometries[1]))
    sides = [
        _open("AB"[i], paths[i], manifests[i], checkpoints[i], geometries[i], threads=threads)
        for i in range(2)
    ]
    return sides[0], sides[1]


def check_same_model(paths: tuple[Path, Path], geometries: tuple[Geometry, Geometry]) -> None:
    """Raises UserError where the sizes are of different models; capacities may differ."""
    a, b = (geometry.to_json() for geometry in geometries)
    different = [name for name in a if a[name] != b[name] and name not in _CAPACITY]
    if different:
        shown = different[:6]
        raise UserError(
            f"{paths[0]} and {paths[1]} are of different models",
            expected=", ".join(f"{name} {a[name]}" for name in shown),
            found=", ".join(f"{name} {b[name]}" for name in shown),
            do="compare a checkpoint with what was exported or built from it",
        )


def _is_checkpoint(path: Path) -> bool:
    """True for a checkpoint's folder; UserError where there is nothing to compare."""
    if not path.is_dir():
        raise UserError(
            f"{path} cannot be compared",
            expected="the folder of a checkpoint, a bundle or engines",
            found="a file" if path.exists() else "nothing there",
            do="check the path",
        )
    if (path / MANIFEST).exists():
        return False
    if (path / "config.json").is_file():
        return True
    raise UserError(
        f"{path} cannot be compared",
        expected=f"a checkpoint (config.json), a bundle or engines ({MANIFEST})",
        found="a folder with neither",
        do="give the folder that holds one of the two files",
    )


def _open_checkpoint(path: Path) -> Checkpoint:
    from export.packages import TO_EXPORT, require_packages

    require_packages(f"Comparing with the checkpoint {path}", TO_EXPORT)

    from export.checkpoint import Checkpoint

    opened = Checkpoint.open(path)
    opened.require_complete()
    return opened


def _geometry(checkpoint: Checkpoint | None, other: Geometry | None) -> Geometry:
    """That of the checkpoint, with the capacity of the other side where that has one."""
    from export import ExportOptions
    from export.geometry import geometry_of

    assert checkpoint is not None
    options = (
        ExportOptions()
        if other is None
        else ExportOptions(
            cache_length=other.cache_length,
            max_steps=other.max_steps,
            prefill_chunks=other.prefill_chunks,
            max_reference_latents=other.max_reference_latents,
        )
    )
    return geometry_of(checkpoint.sizes, options)


def _open(
    name: str,
    path: Path,
    manifest: Manifest | None,
    checkpoint: Checkpoint | None,
    geometry: Geometry,
    *,
    threads: int | None,
) -> Side:
    if checkpoint is not None:
        from engines.comparison.torch_reference import TorchBackend

        backend: Backend = TorchBackend(checkpoint, geometry, threads=threads)
        family = checkpoint.family.name
        return Side(name, path, CHECKPOINT, family, geometry, backend, checkpoint=checkpoint)
    opened = open_folder(path, threads=threads)
    manifest = opened.manifest
    kind = "bundle" if manifest.kind == BUNDLE else "engines"
    return Side(name, path, kind, manifest.family, geometry, opened.backend, manifest)
