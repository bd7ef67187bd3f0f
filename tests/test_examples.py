"""The examples run as their first lines say, and the documented commands as they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trt_runtime
from trt_runtime.folder import EMBEDDED

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"

#: Script → its arguments, and what its output must hold.
RUNS = {
    "speak_to_file.py": (["Hi.", "hi.wav"], ["hi.wav:", "flow"]),
    "stream_chunks.py": (["Hello, and hello again."], ["chunk 0:", "of audio from 0"]),
    "many_requests.py": ([], ["'Four.'", "ended by ", "as long alone: True"]),
    "clone_voice.py": (
        [],
        ["clone-all.wav:", "ended by ", "without the reference's words", "clone-latents.wav"],
    ),
    "stored_voice.py": (
        [],
        [
            "voices/anna.safetensors",
            "voices: anna, friend",
            "the same samples as its recording: True",
        ],
    ),
    "instruct.py": (
        [],
        ["instruct-happy.wav:", "instruct-built-in.wav:", "instruct-unchecked.wav:", "ended by "],
    ),
    "dialogue.py": ([], ["ended by ", "of anna, ben", " speaker_2:Let us."]),
    "make_music.py": (["2"], ["Theme: 节日. Duration: 2s.", "music.flac:", "ended by "]),
    "sound_event.py": (["Rain"], ["sound-0.wav:", "sound-2.wav:"]),
    "long_text.py": (
        [],
        ["  0.00 s  characters 0 to 61:", "Short ones are joined. Like this.", "ended by "],
    ),
    "normalize_text.py": (
        [],
        [
            "library: Dr. Smith paid three thousand",
            "model: ",
            "spoken: Dr. Smith paid three thousand",
        ],
    ),
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


@pytest.mark.parametrize("name", ["speak_to_file.py", "stream_chunks.py"])
def test_an_example_needs_no_arguments(name: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(EXAMPLES / name)], check=True, cwd=tmp_path)


def test_the_example_of_an_extra_says_what_to_install(tmp_path: Path) -> None:
    """A file of the package's name in the way stands for its being missing."""
    (tmp_path / "wetext.py").write_text("raise ImportError('No module named wetext')\n")
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / "normalize_text.py")],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
    )
    assert result.returncode == 2
    assert "pip install" in result.stderr
    assert "Traceback" not in result.stderr


def test_every_script_is_run_or_made_for_something_else() -> None:
    others = {"buzz.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(RUNS) | others


def commands(document: str, section: str) -> Iterator[list[str]]:
    """The shell lines of a section, each as its words."""
    text = (ROOT / document).read_text(encoding="utf-8").partition(f"\n## {section}\n")[2]
    (block,) = re.findall(
        r"^```sh\n(.*?)^```", text.partition("\n## ")[0], re.MULTILINE | re.DOTALL
    )
    return map(shlex.split, block.splitlines())


@pytest.mark.parametrize(
    ("document", "section"),
    [("README.md", "Every way to speak"), ("docs/speaking.md", "Stored voices")],
)
def test_commands_one_after_the_other(document: str, section: str, tmp_path: Path) -> None:
    speech = trt_runtime.synthesize("The words of the recording.", max_steps=11)
    for name in ("ref.wav", "ben.wav"):
        speech.save(tmp_path / name)
    (tmp_path / "talk.txt").write_text("anna: Hello.\nben: Hi.\n", encoding="utf-8")
    (tmp_path / "book.txt").write_text("One of 2 sentences. " * 12, encoding="utf-8")
    few = ["--max-steps", "3"]
    for program, *words in commands(document, section):
        assert program == "ming-trt"
        words = [str(EMBEDDED) if word == "ENGINES" else word for word in words]
        subprocess.run(
            [sys.executable, "-m", "trt_runtime.cli.main", *words, *few * (words[0] == "speak")],
            check=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "MING_TRT_VOICES": str(tmp_path / "kept")},
        )
        output = words[words.index("-o") + 1 :][:1] if "-o" in words else []
        assert all((tmp_path / name).stat().st_size > 1000 for name in output)


def test_the_guide_to_speaking_links_to_what_is_there() -> None:
    guide = ROOT / "docs" / "speaking.md"
    links = re.findall(r"\]\(([^)#]+)", guide.read_text(encoding="utf-8"))
    assert links
    assert all((guide.parent / link).exists() for link in links)
