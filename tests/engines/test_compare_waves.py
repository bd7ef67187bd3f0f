"""The distances between waves, against values that follow from their formulas."""

from __future__ import annotations

import numpy as np
import pytest

from engines.comparison.wave_distance import (
    FLOOR_DB,
    log_mel_distance,
    mel_filters,
    multi_resolution_stft_distance,
    signal_to_noise,
    stft,
)

RATE = 16_000


@pytest.fixture
def wave() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(RATE)


def test_signal_to_noise(wave: np.ndarray) -> None:
    assert signal_to_noise(1.01 * wave, wave) == pytest.approx(40.0)
    assert signal_to_noise(wave, wave) == np.inf
    assert signal_to_noise(wave, 0 * wave) == -np.inf
    noise = np.random.default_rng(1).standard_normal(len(wave))
    noise *= np.linalg.norm(wave) / np.linalg.norm(noise) / 10
    assert signal_to_noise(wave + noise, wave) == pytest.approx(20.0)


def test_twice_as_loud_is_6_dB_of_every_band(wave: np.ndarray) -> None:
    assert log_mel_distance(2 * wave, wave, RATE) == pytest.approx(20 * np.log10(2), abs=1e-9)
    assert log_mel_distance(wave, wave, RATE) == 0.0


def test_silence_is_the_floor_away(wave: np.ndarray) -> None:
    distance = log_mel_distance(0 * wave, wave, RATE)
    assert FLOOR_DB / 2 < distance <= FLOOR_DB
    assert np.isfinite(multi_resolution_stft_distance(0 * wave, wave))


def test_multi_resolution_stft_of_a_scaled_wave(wave: np.ndarray) -> None:
    """Spectral convergence of s R is |s - 1|, its log magnitude log s."""
    found = multi_resolution_stft_distance(1.5 * wave, wave)
    # A little less in the few bins at the floor.
    assert found == pytest.approx(0.5 + np.log(1.5), abs=1e-3)
    assert multi_resolution_stft_distance(wave, wave) == 0.0


def test_stft_is_the_transform_of_each_window(wave: np.ndarray) -> None:
    found = stft(wave[:4000], 512, 50, 240)
    start = 20 * 50 - 120
    taper = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(240) / 240)
    samples = np.arange(240)
    term = np.exp(-2j * np.pi * 37 * samples / 512)
    assert found[20, 37] == pytest.approx((wave[start : start + 240] * taper * term).sum())
    assert stft(wave[:3], 512, 50, 240).shape[1] == 257


def test_mel_filters_cover_every_frequency() -> None:
    filters = mel_filters(80, 1024, RATE)
    assert filters.shape == (80, 513)
    assert (filters.sum(1) > 0).all()
    # Neighbours cross at one half: between the first peak and the last they sum to 1.
    peaks = filters.argmax(1)
    assert filters[:, peaks[0] + 1 : peaks[-1]].sum(0) == pytest.approx(1.0)
    assert (np.diff(peaks) >= 0).all()


@pytest.mark.parametrize("distance", [signal_to_noise, multi_resolution_stft_distance])
def test_noise_is_farther_the_louder(distance: object, wave: np.ndarray) -> None:
    noise = np.random.default_rng(2).standard_normal(len(wave))
    values = [distance(wave + size * noise, wave) for size in (1e-4, 1e-2, 1.0)]  # type: ignore[operator]
    ordered = values if distance is multi_resolution_stft_distance else values[::-1]
    assert ordered == sorted(ordered)
