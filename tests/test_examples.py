"""The examples run as their first lines say, and print what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

#: Script → its arguments, and what its output must hold.
RUNS = {
    "speak_to_file.py": (["Hello.", "hello.flac"], ["hello.flac:", "flow"]),
    "stream_chunks.py": (["Hello, and hello again."], ["chunk 0:", "of audio from 0"]),
    "many_requests.py": ([], ["'Four.'", "the same alone: True"]),
}


@pytest.mark.parametrize("name", RUNS)
def test_example(name: str, tmp_path: Path) -> None:
    arguments, expected = RUNS[name]
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert all(part in result.stdout for part in expected)
    assert "alone: False" not in result.stdout


def test_every_script_is_run_or_made_for_something_else() -> None:
    others = {"make_demo_checkpoint.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(RUNS) | others
