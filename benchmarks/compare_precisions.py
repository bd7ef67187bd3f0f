"""Engines of target cuda, float32 and mixed, against the float32 bundle on the same machine's CPU.

    python -m benchmarks.compare_precisions BUNDLE=NAME ... --out FILE

What `ming-trt compare BUNDLE ENGINES` finds: every component on forced inputs, then 50 steps of the
loop with shared noise. A hollow bundle (benchmarks/hollow.py) is filled first.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.hollow import RECIPE, fill
from benchmarks.provenance import bundles_parser, check_result, provenance, write_result
from engines import compare
from engines.build import build_engines
from engines.options import BuildOptions
from trt_runtime.cuda_devices import describe_cuda
from trt_runtime.exit_status import exit_status

PRECISIONS = ("float32", "mixed")
STEPS = 50


def compared(bundle: Path) -> dict[str, Any]:
    """By precision, the report of the comparison."""
    if (bundle / RECIPE).exists():
        fill(bundle)
    reports: dict[str, Any] = {}
    for precision in PRECISIONS:
        with tempfile.TemporaryDirectory(prefix="compare-") as scratch:
            built = build_engines(
                bundle, Path(scratch) / "engines", target="cuda", options=BuildOptions(precision)
            )
            report = compare(bundle, built, steps=STEPS)
        reports[precision] = json.loads(report.to_json())
        print(bundle.name, precision, *report.lines(), sep="\n", flush=True)
    return reports


def parser() -> argparse.ArgumentParser:
    result = bundles_parser(__doc__.splitlines()[0])
    result.add_argument("--commit", help="what is measured, where git cannot tell: a copy")
    return result


def _run(arguments: argparse.Namespace) -> int:
    check_result(arguments.out)
    described = {
        **provenance("onnxruntime-gpu", "torch", "triton"),
        "gpu": describe_cuda(),
        "steps": STEPS,
        "results": {name: compared(bundle) for name, bundle in arguments.bundles},
    }
    described["commit"] = arguments.commit or described["commit"]
    write_result(arguments.out, described, printed=False)
    return 0


if __name__ == "__main__":
    sys.exit(
        exit_status(
            lambda: _run(parser().parse_args()),
            "compare_precisions",
            interrupted="compare_precisions: interrupted",
        )
    )
