"""A wave with known words, and the recogniser, which is loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.recognition import Recogniser, read_wave
from benchmarks.source_voice import Wave

WAVE = Path(__file__).resolve().parents[1] / "data" / "flite-slt.wav"
TEXT = "She opened the door, and went into the garden."


@pytest.fixture(scope="session")
def recogniser() -> Recogniser:
    return Recogniser()


@pytest.fixture(scope="session")
def wave() -> Wave:
    return Wave(*read_wave(WAVE))
