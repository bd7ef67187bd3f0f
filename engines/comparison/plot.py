"""A picture of a comparison: how the sides part step by step, and the spectra of what they say."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from engines.comparison.drift import Drift
from engines.comparison.packages import TO_PLOT, require_packages
from engines.comparison.wave_distance import stft
from trt_runtime.errors import UserError
from trt_runtime.loop import STOP_THRESHOLD

#: FFT, hop and window of the spectrograms, in samples.
_SPECTRUM = (1024, 256, 1024)
#: Below the loudest of A, in dB, where colours end.
_RANGE_DB = 80.0


def check_plot(path: Path) -> None:
    """Raises UserError where no picture can be drawn, or of another kind than PNG."""
    if path.suffix.lower() != ".png":
        raise UserError(
            f"{path} cannot be written",
            expected="a name that ends in .png",
            found=path.suffix or "no ending",
            do="name it FILE.png",
        )
    require_packages("Drawing", TO_PLOT)


def drawn(drift: Drift, a: np.ndarray, b: np.ndarray, sample_rate: int) -> bytes:
    """The picture as PNG. a, b: (samples,), what each side's loop says."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 12), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(5, 1)
    steps = np.arange(1, len(drift.latents) + 1)
    # A curve of zeros has no logarithm.
    panels[0].semilogy(steps, np.maximum(drift.latents, 1e-12))
    panels[0].set(title="latents: |B - A| / |A|", xlabel="step")
    for name, stops in (("A", drift.a_stops), ("B", drift.b_stops)):
        panels[1].plot(steps, stops[:, 0], label=name)
    panels[1].axhline(STOP_THRESHOLD, color="grey", linewidth=0.5)
    panels[1].set(title="stop probability", xlabel="step", ylim=(-0.05, 1.05))
    panels[1].legend()
    length = min(len(a), len(b))
    levels = [_levels(wave[:length]) for wave in (a, b)]
    top = float(levels[0].max())
    scales = (("A", levels[0], top - _RANGE_DB, top), ("B", levels[1], top - _RANGE_DB, top))
    for panel, (name, level, low, high) in zip(panels[2:], scales, strict=False):
        _image(figure, panel, name, level, (low, high), length / sample_rate, sample_rate)
    difference = np.abs(
        np.maximum(levels[1], top - _RANGE_DB) - np.maximum(levels[0], top - _RANGE_DB)
    )
    largest = max(float(difference.max()), 1e-6)
    _image(
        figure, panels[4], "|B - A|", difference, (0, largest), length / sample_rate, sample_rate
    )
    buffer = io.BytesIO()
    # Without the time of drawing and the version: the same picture for the same report.
    figure.savefig(buffer, format="png", dpi=100, metadata={"Software": None})
    return buffer.getvalue()


def _levels(wave: np.ndarray) -> np.ndarray:
    """(frequencies, frames) in dB."""
    # What is not finite has no colour; the report says that it is there.
    magnitudes = np.nan_to_num(np.abs(stft(np.nan_to_num(wave), *_SPECTRUM)))
    return 20 * np.log10(np.maximum(magnitudes, 1e-10)).T


def _image(
    figure: Any, panel: Any, title: str, level: np.ndarray, limits: tuple[float, float],
    seconds: float, sample_rate: int,
) -> None:  # fmt: skip
    extent = (0, seconds, 0, sample_rate / 2000)
    image = panel.imshow(
        level, origin="lower", aspect="auto", extent=extent, vmin=limits[0], vmax=limits[1]
    )
    panel.set(title=title, xlabel="seconds", ylabel="kHz")
    figure.colorbar(image, ax=panel, label="dB")
