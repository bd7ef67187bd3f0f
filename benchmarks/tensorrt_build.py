"""What building engines of TensorRT-RTX takes: time, size and memory of each component.

    python -m benchmarks.tensorrt_build --out FILE BUNDLE=NAME ...

Each bundle is built for compute capabilities 8.0, 8.6, 8.9 and 12.0 at once, in float32 and in a
mixed precision, in a folder that is deleted afterwards. A bundle may be of random weights: a build
knows their sizes alone.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.provenance import bundles_parser, check_result, provenance, write_result
from engines.build import build_engines
from engines.options import BuildOptions
from trt_runtime.exit_status import exit_status
from trt_runtime.manifest import read_manifest
from trt_runtime.tensorrt_library import TENSORRT_RTX, load_library

CAPABILITIES = ("8.0", "8.6", "8.9", "12.0")
PRECISIONS = ("float32", "mixed")
SLOTS = (1, 2, 4, 8)


def built(bundle: Path, precision: str, scratch: Path) -> dict[str, Any]:
    """The figures of one build: of all of it, and by component."""
    out = scratch / "engines"
    build_engines(
        bundle, out, target=TENSORRT_RTX, progress=print, force=True,
        options=BuildOptions(precision, SLOTS, CAPABILITIES),
    )  # fmt: skip
    manifest = read_manifest(out)
    components = {
        name: {
            "seconds": figures["seconds"],
            "bytes": (out / f"{name}.engine").stat().st_size,
            "peak_memory_bytes": figures["peak_memory_bytes"],
            "layers": figures["layers"],
            "profiles": len(manifest.components[name].profiles),
        }
        for name, figures in manifest.build["graphs"].items()
    }
    shutil.rmtree(out)
    return {
        "seconds": manifest.build["seconds"],
        "bytes": sum(row["bytes"] for row in components.values()),
        "peak_memory_bytes": max(row["peak_memory_bytes"] for row in components.values()),
        "components": components,
    }


def measure(bundles: dict[str, Path]) -> dict[str, Any]:
    """By name of a bundle and precision, the figures of its build."""
    results: dict[str, Any] = {}
    for name, bundle in bundles.items():
        for precision in PRECISIONS:
            with tempfile.TemporaryDirectory(dir=bundle.parent) as scratch:
                results.setdefault(name, {})[precision] = built(bundle, precision, Path(scratch))
    return results


def parser() -> argparse.ArgumentParser:
    return bundles_parser(__doc__.splitlines()[0])


def _run(arguments: argparse.Namespace) -> int:
    check_result(arguments.out)
    described = {
        **provenance("tensorrt-rtx-cu13", "onnx"),
        "library": load_library(TENSORRT_RTX).version,
        "compute_capabilities": list(CAPABILITIES),
        "slots": list(SLOTS),
        "results": measure(dict(arguments.bundles)),
    }
    write_result(arguments.out, described, printed=False)
    return 0


if __name__ == "__main__":
    sys.exit(
        exit_status(
            lambda: _run(parser().parse_args()),
            "tensorrt_build",
            interrupted="tensorrt_build: interrupted",
        )
    )
