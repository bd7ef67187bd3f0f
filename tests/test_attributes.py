"""Files whose hashes are kept somewhere are never changed by a checkout."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HASHED = ("examples/demo-checkpoint", "tests/data/goldens", "trt_runtime/data")


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs a git checkout"
)
def test_line_endings_of_hashed_files_are_left_alone() -> None:
    paths = [
        path.relative_to(ROOT).as_posix()
        for folder in HASHED
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    ]
    assert any(path.endswith("manifest.json") for path in paths)
    command = ["git", "check-attr", "text", "--", *paths]
    found = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert [line for line in found.splitlines() if not line.endswith(": text: unset")] == []
