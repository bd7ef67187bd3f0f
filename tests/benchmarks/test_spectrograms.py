"""A tone is where it belongs, and pictures are whole files or none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from benchmarks.spectrograms import STEP_SECONDS, main, spectrogram

RATE = 16_000


def tone(hertz: float, seconds: float) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(RATE * seconds)) / RATE)).astype("f4")


@pytest.mark.parametrize("hertz", [500, 2000, 6000])
def test_a_tone_is_where_it_belongs(hertz: float) -> None:
    picture = spectrogram(tone(hertz, 0.5), RATE)
    frequencies = np.linspace(0, RATE / 2, len(picture))
    assert abs(frequencies[picture.mean(1).argmax()] - hertz) <= frequencies[1]
    assert picture.shape[1] == pytest.approx(0.5 / STEP_SECONDS, abs=2)


def test_a_picture_of_two_files(tmp_path: Path) -> None:
    for name, seconds in (("a", 0.4), ("b", 0.7)):
        soundfile.write(tmp_path / f"{name}.wav", tone(440, seconds), RATE)
    out = tmp_path / "both.png"
    assert main([str(tmp_path / "a.wav"), str(tmp_path / "b.wav"), "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == {"a.wav", "b.wav", "both.png"}


def test_a_missing_file_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "no.wav"), "--out", str(tmp_path / "no.png")]) == 2
    assert "no.wav" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    soundfile.write(tmp_path / "a.wav", tone(440, 0.4), RATE)
    out = tmp_path / "a.wav" / "picture.png"
    assert main([str(tmp_path / "a.wav"), "--out", str(out)]) == 2
    assert "picture.png" in capsys.readouterr().err


def test_titles_are_text_and_silence_is_said(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", tone(440, 0.4), RATE)
    soundfile.write(tmp_path / "empty.wav", np.zeros(0, np.float32), RATE)
    out = str(tmp_path / "a.png")
    assert main([str(tmp_path / "a.wav"), "--titles", r"$\frac{$", "--out", out]) == 0
    assert main([str(tmp_path / "empty.wav"), "--out", out]) == 2
