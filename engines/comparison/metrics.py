"""Distances between what two sides give for the same inputs. B against A, the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from engines.comparison.wave_distance import (
    log_mel_distance,
    multi_resolution_stft_distance,
    signal_to_noise,
)


@dataclass(frozen=True)
class Metric:
    """`measure(b, a, sample_rate)` over arrays of one shape; `unit` is shown after a value."""

    name: str
    measure: Callable[[np.ndarray, np.ndarray, int], float]
    higher_is_better: bool = False
    unit: str = ""

    def within(self, value: float, limit: float) -> bool:
        """NaN is within no limit."""
        return bool(value >= limit if self.higher_is_better else value <= limit)

    def worst(self) -> float:
        return float("-inf") if self.higher_is_better else float("inf")

    def __call__(self, b: np.ndarray, a: np.ndarray, sample_rate: int = 0) -> float:
        """The worst value where the shapes differ, or either holds NaN or infinity."""
        if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
            return self.worst()
        return self.measure(np.asarray(b, np.float64), np.asarray(a, np.float64), sample_rate)


def relative_error(b: np.ndarray, a: np.ndarray) -> float:
    """max |b - a| / max |a|, over arrays of one shape; infinite for others and for NaN."""
    return RELATIVE(b, a)


def _relative(b: np.ndarray, a: np.ndarray, sample_rate: int = 0) -> float:
    difference = np.abs(b - a).max(initial=0.0)
    scale = np.abs(a).max(initial=0.0)
    return float(difference / scale) if scale else float(difference and np.inf)


def _norm(b: np.ndarray, a: np.ndarray, sample_rate: int = 0) -> float:
    """||b - a|| / ||a|| of each patch, or row of a single axis before the last: the largest."""
    rows = [x.reshape(-1, x.shape[-2] * x.shape[-1] if x.ndim > 1 else x.size) for x in (b, a)]
    difference = np.linalg.norm(rows[0] - rows[1], axis=1)
    scale = np.linalg.norm(rows[1], axis=1)
    errors = np.where(difference == 0, 0.0, difference / np.where(scale == 0, 1e-300, scale))
    return float(errors.max(initial=0.0))


def _median(b: np.ndarray, a: np.ndarray, sample_rate: int = 0) -> float:
    """The median of the rows' relative errors; a row is the last axis.

    Where two experts of a row are nearly even, rounding chooses: the largest says little.
    """
    pairs = zip(b.reshape(-1, b.shape[-1]), a.reshape(-1, a.shape[-1]), strict=True)
    return float(np.median([_relative(*pair) for pair in pairs]))


def _absolute(b: np.ndarray, a: np.ndarray, sample_rate: int = 0) -> float:
    return float(np.abs(b - a).max(initial=0.0))


def _count(b: np.ndarray, a: np.ndarray, sample_rate: int = 0) -> float:
    return float(np.count_nonzero(b != a))


def _of_waves(
    distance: Callable[[np.ndarray, np.ndarray, int], float], worst: Callable[..., float]
) -> Callable[[np.ndarray, np.ndarray, int], float]:
    """The worst over the waves, (waves, samples)."""

    def measure(b: np.ndarray, a: np.ndarray, sample_rate: int) -> float:
        return float(worst(distance(x, y, sample_rate) for x, y in zip(b, a, strict=True)))

    return measure


RELATIVE = Metric("relative", _relative)
NORM = Metric("norm", _norm)
MEDIAN = Metric("median", _median)
ABSOLUTE = Metric("absolute", _absolute)
COUNT = Metric("count", _count)
SNR = Metric(
    "snr",
    _of_waves(lambda b, a, rate: signal_to_noise(b, a), min),
    higher_is_better=True,
    unit="dB",
)
LOG_MEL = Metric("log_mel", _of_waves(log_mel_distance, max), unit="dB")
STFT = Metric("stft", _of_waves(lambda b, a, rate: multi_resolution_stft_distance(b, a), max))
METRICS: Mapping[str, Metric] = {
    metric.name: metric for metric in (RELATIVE, NORM, MEDIAN, ABSOLUTE, COUNT, SNR, LOG_MEL, STFT)
}
