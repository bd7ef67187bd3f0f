"""The recogniser hears what is said, and nothing of what it heard before."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from benchmarks.recognition import Recogniser, read_wave
from benchmarks.source_voice import Wave
from benchmarks.word_errors import words
from tests.benchmarks.conftest import TEXT
from trt_runtime.errors import UserError
from trt_runtime.resampling import resample


def noise(seconds: float, level: float) -> np.ndarray:
    wave = level * np.random.default_rng(0).standard_normal(int(seconds * 16_000))
    return wave.astype(np.float32)


#: What could move the recogniser's mean of the cepstra, or its estimate of the noise.
BEFORE = {
    "loud noise": noise(3, 0.5),
    "faint noise": noise(3, 1e-4),
    "silence": np.zeros(32_000, np.float32),
    "an offset": np.full(16_000, 0.9, np.float32),
    "nothing": np.zeros(0, np.float32),
}


def exactly(recogniser: Recogniser, wave: Wave) -> tuple[list[str], float]:
    """The words, and the recogniser's score, which tells more than they do."""
    heard = recogniser.words(wave.audio, wave.sample_rate)
    return heard, recogniser._decoder.hyp().score


def test_every_word_of_a_clear_voice(recogniser: Recogniser, wave: Wave) -> None:
    assert recogniser.words(wave.audio, wave.sample_rate) == words(TEXT)


@pytest.mark.parametrize("rate", [24_000, 44_100])
def test_every_word_at_another_rate(recogniser: Recogniser, wave: Wave, rate: int) -> None:
    other = resample(wave.audio, wave.sample_rate, rate)
    assert recogniser.words(other, rate) == words(TEXT)


@pytest.mark.parametrize("before", BEFORE)
def test_what_was_heard_before_changes_nothing(
    recogniser: Recogniser, wave: Wave, before: str
) -> None:
    fresh = exactly(Recogniser(), wave)
    recogniser.words(BEFORE[before], 16_000)
    assert exactly(recogniser, wave) == fresh
    recogniser.words(wave.audio[::-1].copy(), wave.sample_rate)
    assert exactly(recogniser, wave) == fresh


@pytest.mark.parametrize("silent", ["silence", "nothing"])
def test_no_words_in_silence(recogniser: Recogniser, silent: str) -> None:
    assert recogniser.words(BEFORE[silent], 16_000) == []


def test_audio_beyond_full_scale_is_clipped_and_not_wrapped(
    recogniser: Recogniser, wave: Wave
) -> None:
    loud = wave.audio * np.float32(1.1 / np.abs(wave.audio).max())
    assert recogniser.words(loud, wave.sample_rate) == words(TEXT)


@pytest.mark.parametrize("audio", [np.zeros((2, 9), np.float32), np.full(9, np.nan, np.float32)])
def test_what_is_no_wave(recogniser: Recogniser, audio: np.ndarray) -> None:
    with pytest.raises(ValueError, match="samples"):
        recogniser.words(audio, 16_000)


def test_the_dictionary(recogniser: Recogniser) -> None:
    assert recogniser.knows("window")
    assert recogniser.knows("don't")
    assert not recogniser.knows("zzxy")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pocketsphinx", None)
    with pytest.raises(UserError, match="listen"):
        Recogniser()


def test_channels_are_averaged(tmp_path: Path, wave: Wave) -> None:
    stereo = np.stack((wave.audio, np.zeros_like(wave.audio)), axis=1)
    soundfile.write(tmp_path / "stereo.wav", stereo, 16_000, subtype="FLOAT")
    audio, rate = read_wave(tmp_path / "stereo.wav")
    assert rate == 16_000
    np.testing.assert_array_equal(audio, wave.audio / 2)


def test_files_that_cannot_be_heard(tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("no audio")
    soundfile.write(tmp_path / "long.wav", np.zeros(121 * 1000, np.float32), 1000)
    soundfile.write(tmp_path / "nan.wav", np.full(9, np.nan, np.float32), 8000, subtype="FLOAT")
    for name in ("missing.wav", "text.wav", "long.wav", "nan.wav"):
        with pytest.raises(UserError, match=name):
            read_wave(tmp_path / name)
