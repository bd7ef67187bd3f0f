"""Resampling against torchaudio's recorded output, and what holds of any band-limited resampler."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from tests.goldens import GOLDENS, load_json, load_npz, needs_goldens
from trt_runtime import resampling
from trt_runtime.errors import UserError
from trt_runtime.resampling import resample

#: The order of the sums differs: some units in the last place of samples below 1.
ABSOLUTE_ERROR = 5e-7


def sine(frequency: float, rate: int, seconds: float = 0.5) -> np.ndarray:
    phase = 2 * np.pi * frequency * np.arange(int(rate * seconds)) / rate
    return (0.5 * np.sin(phase)).astype(np.float32)


@pytest.mark.parametrize("name", ["w0", "w1", "w2", "w3"])
def test_agrees_with_the_reference(name):
    arrays, meta = load_npz("fbank"), load_json("fbank")["meta"]
    wave, rate = arrays[f"{name}/wave"], meta[name]["sample_rate"]
    checked = 0
    if f"{name}/wave16k" in arrays:
        expected = arrays[f"{name}/wave16k"]
        actual = resample(wave, rate, 16000)
        assert actual.shape == expected.shape
        assert np.abs(actual - expected).max() < ABSOLUTE_ERROR
        checked += 1
    if f"{name}/wave44k_head" in arrays:
        expected = arrays[f"{name}/wave44k_head"]
        actual = resample(wave, rate, 44100)
        assert len(actual) == math.ceil(len(wave) * 44100 / rate)
        assert np.abs(actual[: len(expected)] - expected).max() < ABSOLUTE_ERROR
        checked += 1
    assert checked


@needs_goldens
@pytest.mark.parametrize("rates", ["16000_44100", "24000_44100", "44100_16000", "48000_16000"])
def test_agrees_with_the_function_whose_filter_is_float32(rates):
    with np.load(GOLDENS / "ming-3" / "speaker_frontend" / f"resample_{rates}.npz") as arrays:
        wave, expected = arrays["x"], arrays["y"]
    actual = resample(wave, *(int(rate) for rate in rates.split("_")))
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() < 2e-6


@pytest.mark.parametrize(
    "rates",
    [(8000, 44100), (48000, 44100), (44100, 16000), (192000, 16000), (44100, 44099), (22050, 44100),
     (11025, 16001), (768000, 8000), (1000, 44100)],
)  # fmt: skip
def test_a_low_tone_stays_what_it_was(rates):
    old, new = rates
    frequency = 0.2 * min(rates)
    actual = resample(sine(frequency, old), old, new)
    expected = sine(frequency, new, len(actual) / new)
    assert actual.dtype == np.float32
    middle = slice(len(actual) // 4, -len(actual) // 4)
    # The filter's ripple.
    assert np.abs(actual[: len(expected)] - expected)[middle].max() < 0.01


def test_a_tone_above_the_new_band_is_removed():
    actual = resample(sine(15000, 44100), 44100, 16000)
    assert np.abs(actual[200:-200]).max() < 0.005


@pytest.mark.parametrize("rates", [(24000, 16000), (16000, 44100), (44099, 44100), (96000, 8000)])
@pytest.mark.parametrize("length", [0, 1, 2, 15, 16001])
def test_length_is_rounded_up(rates, length):
    old, new = rates
    actual = resample(np.ones(length, np.float32), old, new)
    assert actual.shape == (-(-length * new // old),)


def test_equal_rates_change_nothing():
    wave = sine(440, 16000)
    assert resample(wave, 16000, 16000) is wave


@pytest.mark.parametrize("rates", [(24000, 16000), (48000, 44100), (7001, 16000)])
def test_blocks_do_not_show(rates, monkeypatch):
    wave = np.random.default_rng(0).standard_normal(20000).astype(np.float32)
    whole = resample(wave, *rates)
    monkeypatch.setattr(resampling, "_BLOCK", 1000)
    resampling._filters.cache_clear()
    assert np.array_equal(resample(wave, *rates), whole)
    resampling._filters.cache_clear()


def test_awkward_rates_take_little_memory():
    """One step of 1/768000 apart, a table of every phase against every input would take 2 TB."""
    wave = sine(440, 767999, 0.1)
    resampling._filters.cache_clear()
    tracemalloc.start()
    try:
        resample(wave, 767999, 768000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        resampling._filters.cache_clear()
    assert peak < 100e6


@pytest.mark.parametrize("rate", [0, -16000, 999, 768001, 2**40, 16000.0, "16000", None, True])
def test_rates_that_cannot_be_are_refused(rate):
    for rates in ((rate, 16000), (16000, rate)):
        with pytest.raises(UserError, match=r"sample rate cannot be used[\s\S]*1000 to 768000"):
            resample(np.zeros(10, np.float32), *rates)


def test_an_array_that_is_no_wave_is_our_mistake():
    for wave in (np.zeros((10, 2), np.float32), np.zeros(10), np.zeros(10, np.int16)):
        with pytest.raises(ValueError, match=r"not \(samples,\) float32"):
            resample(wave, 24000, 16000)
