"""The kernels compute the talker, on a machine without a GPU: Triton's interpreter runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_the_kernels_compute_the_talker() -> None:
    pytest.importorskip("triton")
    found = subprocess.run(
        [sys.executable, "-m", "tests.trt_runtime.plugins.interpreted"],
        env={**os.environ, "TRITON_INTERPRET": "1"}, cwd=ROOT, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout
