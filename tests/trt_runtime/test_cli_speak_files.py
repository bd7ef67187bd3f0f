"""`ming-trt speak` never writes over what it reads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from trt_runtime import synthesizer
from trt_runtime.cli import main
from trt_runtime.voice import Voice
from trt_runtime.voice_store import VoiceStore


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of inputs of every kind, as the working directory."""
    soundfile.write(tmp_path / "r.wav", 0.3 * np.sin(np.arange(24_000) * 0.1), 16_000)
    (tmp_path / "t.txt").write_text("Hello.\n", encoding="utf-8")
    (tmp_path / "t.wav").write_text("Hello.\n", encoding="utf-8")
    (tmp_path / "s.txt").write_text("anna: Hello.\nben: Hi.\n", encoding="utf-8")
    np.save(tmp_path / "e.npy", np.ones(192, np.float32))
    voice = Voice("f", "", 44100, 4, None, np.ones(192, np.float32), None, None, 88200, ())
    VoiceStore(tmp_path / "voices").add("mine", voice)
    voice.save(tmp_path / "v.safetensors")
    (tmp_path / "link.wav").symlink_to("r.wav")
    monkeypatch.chdir(tmp_path)

    def load(*arguments: object, **options: object) -> None:
        pytest.fail("the engines were loaded")

    monkeypatch.setattr(synthesizer, "load", load)
    return tmp_path


DIALOGUE = ["--script", "s.txt", "--voice", "ben=r.wav"]


@pytest.mark.parametrize(
    ("arguments", "outputs", "named"),
    [
        (["a", "--reference", "r.wav"], ["-o", "r.wav"], "-o and --reference"),
        (["a", "--reference", "r.wav"], ["-o", "./link.wav"], "-o and --reference"),
        (["a", "--reference", "link.wav"], ["-o", "r.wav"], "-o and --reference"),
        (["a", "--reference", "r.wav"], ["--sentences", "r.wav"], "--sentences and --reference"),
        (["a", "--voice", "./r.wav"], ["-o", "r.wav"], "-o and --voice"),
        (["a", "--voice", "v.safetensors"], ["--sentences", "v.safetensors"],
         "--sentences and --voice"),
        (["a", "--voice", "mine", "--voices", "voices"],
         ["--sentences", "voices/mine.safetensors"], "--sentences and --voice"),
        (["--text-file", "t.txt"], ["--sentences", "t.txt"], "--sentences and --text-file"),
        (["--text-file", "t.wav"], ["-o", "t.wav"], "-o and --text-file"),
        ([*DIALOGUE, "--voice", "anna=mine", "--voices", "voices"], ["--sentences", "s.txt"],
         "--sentences and --script"),
        ([*DIALOGUE, "--voice", "anna=mine", "--voices", "voices"],
         ["--sentences", "voices/mine.safetensors"], "--sentences and --voice"),
        ([*DIALOGUE, "--reference", "anna=link.wav"], ["-o", "r.wav"], "-o and --reference"),
        (["--script", "s.txt", "--reference", "anna=r.wav", "--reference", "ben=r.wav",
          "--reference-text", "anna=@t.txt", "--reference-text", "ben=Hi."],
         ["--sentences", "t.txt"], "--sentences and --reference-text"),
        (["a", "--speaker-embedding", "e.npy"], ["--sentences", "e.npy"],
         "--sentences and --speaker-embedding"),
        (["a", "--style", "@t.txt"], ["--sentences", "t.txt"], "--sentences and --style"),
        (["a", "--prompt", "@t.wav"], ["-o", "t.wav"], "-o and --prompt"),
        (["a", "--instruction", "@t.txt"], ["--sentences", "t.txt"], "--sentences and --instr"),
        (["--sound-event", "@t.txt"], ["--sentences", "t.txt"], "--sentences and --sound-event"),
        (["a", "--reference", "r.wav", "--reference-text", "@t.txt"], ["--sentences", "t.txt"],
         "--sentences and --reference-text"),
    ],
)  # fmt: skip
def test_an_output_is_no_input(
    arguments: list[str],
    outputs: list[str],
    named: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
    audio = [] if "-o" in outputs else ["-o", "new.wav"]
    assert main.main(["speak", *arguments, *outputs, *audio]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert "name one file" in error
    assert "What to do: " in error
    after = {path: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
    assert after == before


def test_a_hard_link_is_the_same_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.link(folder / "r.wav", folder / "hard.wav")
    assert main.main(["speak", "a", "--reference", "r.wav", "-o", "hard.wav"]) == 2
    assert "-o and --reference name one file" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["-"], ["--text-file", "-"], ["a", "--style", "@-"]])
def test_nor_is_the_file_behind_standard_input(
    arguments: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with (folder / "t.txt").open(encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main.main(["speak", *arguments, "-o", "a.wav", "--sentences", "t.txt"]) == 2
    assert "--sentences and standard input name one file" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["manifest.json", "tokenizer.json"])
def test_nor_is_a_file_of_the_engines(
    file: str,
    folder: Path,
    demo_engines: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "engines").symlink_to(demo_engines)
    outputs = ["-o", "a.wav", "--sentences", f"engines/{file}"]
    before = (demo_engines / file).read_bytes()
    assert main.main(["speak", "a", "--engines", "engines", *outputs]) == 2
    assert "--sentences and --engines name one file" in capsys.readouterr().err
    assert (demo_engines / file).read_bytes() == before
