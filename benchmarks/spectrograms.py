"""Spectrograms of audio files, one under the other.

    python -m benchmarks.spectrograms source.wav codec.wav ours.wav --out spectrograms.png

Each is named after its file; `benchmarks.intelligibility --keep` writes waves of one sentence by
several speakers. Needs the extra `plots`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.recognition import read_wave
from trt_runtime.errors import UserError, reason_of
from trt_runtime.exit_status import exit_status

#: 32 ms, a step of 4 ms: harmonics of a voice and the closures of its stops are both seen.
WINDOW_SECONDS, STEP_SECONDS = 0.032, 0.004
#: Decibels below the loudest bin of all pictures.
RANGE_DB = 80.0


def spectrogram(audio: NDArray[np.float32], rate: int) -> NDArray[np.float64]:
    """audio: (samples,) at `rate` Hz to power in decibels, (frequencies, frames)."""
    if len(audio) == 0:
        raise UserError("A file without samples has no spectrogram", do="give one with sound")
    window, step = int(WINDOW_SECONDS * rate), int(STEP_SECONDS * rate)
    padded = np.pad(np.asarray(audio, np.float64), window // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::step] * np.hanning(window)
    power = np.square(np.abs(np.fft.rfft(frames, axis=1))).T
    return np.asarray(10 * np.log10(power + 1e-10))


def draw(files: Sequence[Path], titles: Sequence[str], out: Path) -> None:
    """Writes a PNG; all pictures have one scale of time and of level. Raises UserError."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(
            "Spectrograms are drawn by matplotlib, which is not installed",
            do='install it: pip install -c requirements.lock ".[plots]"',
        ) from error
    waves = [read_wave(path) for path in files]
    pictures = [spectrogram(*wave) for wave in waves]
    loudest = max(float(picture.max()) for picture in pictures)
    longest = max(len(audio) / rate for audio, rate in waves)
    figure = Figure(figsize=(9, 2.2 * len(files)), layout="constrained")
    # A title is what it says, not mathematics.
    axes = figure.subplots(len(files), 1, squeeze=False)[:, 0]
    for axis, picture, (audio, rate), title in zip(axes, pictures, waves, titles, strict=True):
        axis.imshow(
            picture, origin="lower", aspect="auto", cmap="magma",
            extent=(0, len(audio) / rate, 0, rate / 2000), vmin=loudest - RANGE_DB, vmax=loudest,
        )  # fmt: skip
        axis.set_title(title, parse_math=False)
        axis.set(ylabel="kHz", xlim=(0, longest))
    axes[-1].set_xlabel("s")
    part = out.with_name(f".{out.name}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(part, dpi=80, format="png", metadata={"Software": None})
        part.replace(out)
    except OSError as error:
        raise UserError(
            f"{out} cannot be written",
            expected="a place for a PNG file",
            found=reason_of(error),
            do="give another with --out",
        ) from error


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spectrograms", description=__doc__.splitlines()[0]
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="wav, flac, ogg, …")
    parser.add_argument("--titles", nargs="+", metavar="TITLE", help="(default: the files' names)")
    parser.add_argument("--out", type=Path, required=True, metavar="PNG")
    options = parser.parse_args(arguments)
    titles = options.titles or [path.stem for path in options.files]
    if len(titles) != len(options.files):
        parser.error(f"{len(titles)} titles for {len(options.files)} files")

    def run() -> int:
        draw(options.files, titles, options.out)
        return 0

    return exit_status(run, parser.prog, interrupted=f"{parser.prog}: interrupted")


if __name__ == "__main__":
    sys.exit(main())
