"""The voice that a model was trained on, saying the benchmark's sentences: flite, or its waves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.recognition import read_wave
from training.speech import SAMPLE_RATE, find_program, spoken
from trt_runtime.errors import UserError

#: flite takes no others.
_VOICES = ("slt", "rms", "awb", "kal16")


@dataclass(frozen=True, eq=False)
class Wave:
    """audio: (samples,) float32, full scale 1, at `sample_rate` Hz."""

    audio: NDArray[np.float32]
    sample_rate: int

    @property
    def seconds(self) -> float:
        return len(self.audio) / self.sample_rate


def wave_name(index: int) -> str:
    """The file of sentence `index`, from 0, in a folder of waves."""
    return f"{index:03d}.wav"


def spoken_by_program(program: Path, voice: str, texts: Sequence[str]) -> list[Wave]:
    """Each text by a voice of training/flite_speech.c, cut as in training. Raises UserError."""
    if voice not in _VOICES:
        raise UserError(
            f"{program} has no voice {voice}",
            expected=", ".join(_VOICES),
            found=voice,
            do="choose another of these",
        )
    if foreign := [text for text in texts if not text.isascii() or {"\t", "\n"} & set(text)]:
        raise UserError(
            "The source's program speaks lines of English letters",
            expected="ASCII without tabs",
            found=foreign[0],
            do="change that sentence",
        )
    jobs = [(voice, text) for text in texts]
    return [
        Wave(audio.astype(np.float32) / np.float32(32768), SAMPLE_RATE)
        for _, _, audio, _ in spoken(find_program(program), jobs)
    ]


def spoken_in_folder(folder: Path, count: int) -> list[Wave]:
    """000.wav, 001.wav … of `folder`, one a sentence. Raises UserError where one is missing."""
    paths = [folder / wave_name(index) for index in range(count)]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise UserError(
            f"{folder} lacks waves of the source's voice",
            expected=f"{count}, one a sentence: {wave_name(0)} to {wave_name(count - 1)}",
            found=f"no {', '.join(missing[:5])}" + (" and more" if len(missing) > 5 else ""),
            do="give a folder that --keep wrote for the same sentences",
        )
    return [Wave(*read_wave(path)) for path in paths]
