"""What makes a bundle: the versions that its manifest names, and a digest of all that shapes it."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trt_runtime.version import __version__

_PRODUCERS = ("torch", "onnx", "onnx-ir", "onnxscript")
#: They shape bytes too, but a user is not told.
_CONVERTERS = ("numpy", "ml_dtypes", "tokenizers")


def producer_versions() -> dict[str, str]:
    """As a bundle's manifest names them."""
    return {"ming-trt": __version__} | {name: _version(name) for name in _PRODUCERS}


def producer_facts() -> dict[str, Any]:
    """Everything but checkpoint and options that what is written depends on, in JSON's types.

    The source files of the exporter and of the runtime, from which it takes its contract, count by
    content: in a clone they change under one version.
    """
    return {
        "versions": producer_versions() | {name: _version(name) for name in _CONVERTERS},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "code": {name: _code_digest(name) for name in ("export", "trt_runtime")},
    }


def _code_digest(package: str) -> str:
    """Of a package's source files, by name and content."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    digest = hashlib.sha256()
    for folder in map(Path, spec.submodule_search_locations):
        for path in sorted(folder.rglob("*.py")):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def _version(distribution: str) -> str:
    try:
        # The local part ("+cpu") names a build, not other arithmetic in tracing.
        return version(distribution).partition("+")[0]
    except PackageNotFoundError:
        return "unknown"
