"""Rows of cloning on a speaker encoder and engines that are as small as can be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import cloning
from benchmarks.source_voice import Wave
from benchmarks.tables import cloning as table
from trt_runtime.synthesizer import Synthesizer

RATE = 16_000


def by_pitch(program: Path, voice: str, texts: list[str]) -> list[Wave]:
    """Stands for flite: a voice is a pitch."""
    hertz = {"rms": 100, "slt": 200}[voice]
    t = np.arange(2 * RATE) / RATE
    return [Wave(np.sin(2 * np.pi * hertz * t).astype(np.float32) / 2, RATE) for _ in texts]


def spectrum(wave: Wave) -> np.ndarray:
    """Stands for a speaker encoder: 192 bands of the long-term spectrum."""
    bins = np.abs(np.fft.rfft(wave.audio))
    return np.array([part.mean() for part in np.array_split(bins, 192)], np.float32) + 1e-9


def test_a_row_for_each_recording_and_way(
    demo: Synthesizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloning, "spoken_by_program", by_pitch)
    sentences = tmp_path / "two.txt"
    sentences.write_text("the ship sailed into the harbor\nthe weather is fine today\n")
    options = cloning.parser().parse_args(
        ["--source-program", "flite", "--sentences", str(sentences), "--unheard"]
    )
    result = cloning.measure(options, demo, spectrum)
    rows = result["rows"]
    sources = [(name, cloning.SOURCE) for name in ("rms", "slt")]
    spoken = [(name, way) for name in ("rms", "slt") for way in cloning.WAYS]
    found = [(row["recording"], row["way"]) for row in rows]
    assert found == [*sources, (None, None), *spoken]
    for row in rows:
        assert row["sentences"] == 2
        for likeness in row["similarity"].values():
            assert -1 <= likeness["min"] <= likeness["median"] <= likeness["max"] <= 1
    default = rows[2]
    assert default["word_error_rate"]["rate"] < 0.3
    # The recordings are used: each is another voice's, and gives other sound.
    likeness = [row["similarity"]["slt"]["median"] for row in rows[2:]]
    assert len(set(likeness)) > len(cloning.WAYS)
    text = table({**result, "encoder_is": "a stand-in"})
    assert len([line for line in text.splitlines() if line.startswith("| ")]) == 1 + len(rows)
    assert "latents" in cloning.summary(result)
