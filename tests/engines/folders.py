"""What a build leaves on disk, as the tests of building look at it."""

from __future__ import annotations

from pathlib import Path

from trt_runtime.errors import FolderError
from trt_runtime.manifest import ENGINES, MANIFEST, read_manifest


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def loadable(parent: Path) -> list[Path]:
    """Folders below `parent`, hidden ones too, that would load as engines."""
    found = []
    for manifest in parent.rglob(MANIFEST):
        try:
            if read_manifest(manifest.parent).kind == ENGINES:
                found.append(manifest.parent)
        except FolderError:
            continue
    return found


def leftovers(out: Path) -> list[str]:
    return [path.name for path in out.parent.iterdir() if path.name.startswith(".")]
