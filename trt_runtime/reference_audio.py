"""The recording of a voice to clone: read from a file or taken as an array, and checked for use.

A stranger's file may claim anything: it is read up to a limit, whatever its header says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trt_runtime.audio_source import BLOCK, blocks, check_is_whole, ffmpeg, opened_audio
from trt_runtime.errors import UserError
from trt_runtime.printable import printable
from trt_runtime.resampling import check_rate

#: Some 18 frames of the speaker encoder, whose statistics over time mean nothing for fewer.
SHORTEST_SECONDS = 0.2
#: Beyond this the speaker encoder's activations take gigabytes, and no model has room for it.
LONGEST_SECONDS = 300
#: In all channels of one read, 230 MB: 5 minutes at 192 kHz, or of stereo at 96 kHz.
MOST_SAMPLES = LONGEST_SECONDS * 192_000

_ADVICE = "3 to 15 seconds of clean speech work best"
_TOO_FEW_SECONDS, _FEW_SECONDS, _MANY_SECONDS = 1.0, 3.0, 60.0
#: Below this a recording holds nothing above 8 kHz, the highest frequency of the speaker encoder.
_WIDE_BAND_RATE = 16_000
#: -60 dBFS, as the standard deviation, which a constant offset leaves alone.
_SILENCE = 1e-3
#: Float audio may pass full scale a little; this far it is integers that were not scaled.
_LOUDEST = 4.0
#: Clipped: at least this part of the samples in runs of three or more alike, this near full scale.
_CLIPPED_PART, _CLIPPED_FROM = 1e-3, 0.98
#: Channels whose difference has less than this part of the first one's energy are alike.
_ALIKE = 1e-4


#: Scale and offset that make an integer sample a float, as libsndfile does.
_PCM = {"uint8": (1 / 128, 128), "int16": (1 / 32768, 0), "int32": (1 / 2147483648, 0)}


@dataclass(frozen=True, eq=False)
class ReferenceAudio:
    """A recording to clone.

    samples: (samples,) float32, mono, full scale 1, read-only. Its loudness is that of the source,
    so that float audio may pass 1 a little. sample_rate: Hz. name: what messages call it.
    """

    samples: NDArray[np.float32]
    sample_rate: int
    name: str

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate


def read_references(
    sources: Sequence[object],
) -> tuple[list[ReferenceAudio], tuple[str, ...]]:
    """The recordings of one request, each as :func:`read_reference`, and all their warnings.

    Raises UserError too where together they are longer than LONGEST_SECONDS.
    """
    audios: list[ReferenceAudio] = []
    warnings: tuple[str, ...] = ()
    for source in sources:
        audio, remarks = read_reference(source)
        audios.append(audio)
        warnings += remarks
        seconds = sum(audio.seconds for audio in audios)
        if seconds > LONGEST_SECONDS:
            raise UserError(
                "The references are too long together",
                expected=f"at most {LONGEST_SECONDS} s",
                found=f"{seconds:.1f} s in {len(audios)} of {len(sources)}",
                do="give shorter recordings, or fewer",
            )
    return audios, warnings


def read_reference(source: object) -> tuple[ReferenceAudio, tuple[str, ...]]:
    """The recording in `source`, and warnings about what will make it a poor reference.

    source: the path of an audio file that libsndfile reads (WAV, FLAC, Ogg, MP3 and more), or a
    pair of an array (samples,) or (samples, channels), float with full scale 1 or of dtype uint8,
    int16 or int32, and its sample rate in Hz. Of several channels the first is used.

    Raises UserError for what is no audio, is damaged or cut short, holds NaN or infinity, is
    silent, or is shorter than SHORTEST_SECONDS or longer than LONGEST_SECONDS.
    """
    if isinstance(source, str | os.PathLike):
        return _read_file(os.fsdecode(source))
    if isinstance(source, tuple) and len(source) == 2:
        return _read_array(*source)
    raise UserError(
        "The reference audio cannot be read",
        expected="the path of an audio file, or a pair of an array and its sample rate",
        found=type(source).__name__,
        do='give a path such as "voice.wav", or (samples, 16000)',
    )


def _read_file(path: str) -> tuple[ReferenceAudio, tuple[str, ...]]:
    with opened_audio(path) as file:
        rate = check_rate(file.samplerate, f"sample rate of {path}")
        gathered = _Gathered(path, rate, file.channels, ffmpeg(path, "-t 15"))
        gathered.check_length(file.frames)
        for block in blocks(file, MOST_SAMPLES):
            gathered.add(block)
        check_is_whole(path, gathered.length, file.frames, file.extra_info)
    return gathered.judged(lambda channel: ffmpeg(path, f"-af 'pan=mono|c0=c{channel}'"))


def _read_array(array: Any, rate: Any) -> tuple[ReferenceAudio, tuple[str, ...]]:
    name = "The reference audio"
    if isinstance(array, int) and not isinstance(rate, int):
        raise UserError(
            f"{name} cannot be read",
            expected="a pair of an array and its sample rate",
            found="the sample rate first",
            do="swap the two: (samples, rate)",
        )
    rate = check_rate(rate, "sample rate of the reference audio")
    if isinstance(array, np.ma.MaskedArray):
        raise _unusable_array("an array with a mask, which would be heard all the same")
    try:
        array = np.asarray(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _unusable_array(str(error)) from error
    if not (array.dtype.name in _PCM or array.dtype.kind == "f"):
        raise _unusable_array(f"dtype {array.dtype}")
    if array.ndim not in (1, 2):
        raise _unusable_array(f"shape {array.shape}")
    if array.ndim == 2 and 0 < array.shape[0] < array.shape[1]:
        raise UserError(
            f"{name} has more channels than samples",
            expected="an array (samples,) or (samples, channels)",
            found=f"shape {array.shape}",
            do="turn it round: array.T",
        )
    columns = array.reshape(len(array), -1) if array.size else np.empty((0, 1), np.float32)
    scale, offset = _PCM.get(array.dtype.name, (1, 0))
    gathered = _Gathered(name, rate, columns.shape[1], "give the best part: array[: 15 * rate]")
    gathered.check_length(len(columns))
    frames = max(1, BLOCK // columns.shape[1])
    for first in range(0, len(columns), frames):
        block = columns[first : first + frames]
        # What float32 cannot hold becomes infinite, and is refused as such.
        with np.errstate(over="ignore"):
            floats = (
                block.astype(np.float32)
                if array.dtype.kind == "f"
                else ((block.astype(np.float64) - offset) * scale).astype(np.float32)
            )
        gathered.add(floats)
    return gathered.judged(lambda channel: f"give that one alone: array[:, {channel}]")


class _Gathered:
    """The first channel, block by block, and what has to be known of the others."""

    def __init__(self, name: str, rate: int, channels: int, shorten: str) -> None:
        self._name, self._rate, self._channels, self._shorten = name, rate, channels, shorten
        self._blocks: list[NDArray[np.float32]] = []
        self.length = 0
        # Over each channel: sums, sums of squares, sums of squared differences from the first.
        self._sums = np.zeros((3, channels))

    def check_length(self, frames: int) -> None:
        """Raises UserError where `frames` are more than may be read."""
        limit = min(LONGEST_SECONDS * self._rate, MOST_SAMPLES)
        if frames > limit:
            raise UserError(
                f"{self._name} is too long",
                expected=f"at most {limit / self._rate:.0f} seconds; {_ADVICE}",
                found=f"{frames / self._rate:.0f} seconds, or a header that says so",
                do=f"cut out the best part: {self._shorten}",
            )

    def add(self, block: NDArray[np.float32]) -> None:
        """Takes the next block: (frames, channels) float32. Raises UserError as `check_length`."""
        finite = np.isfinite(block)
        if not finite.all():
            frame = self.length + int(np.argmin(finite.all(axis=1)))
            raise UserError(
                f"{self._name} holds NaN or infinity",
                expected="finite samples",
                found=f"{np.count_nonzero(~finite)} that are not, the first at sample {frame}",
                do="export it again from the program that made it",
            )
        self.length += len(block)
        self.check_length(self.length)
        self._blocks.append(block[:, 0].copy())
        self._sums[0] += block.sum(axis=0, dtype=np.float64)
        self._sums[1] += np.square(block, dtype=np.float64).sum(axis=0)
        difference = np.subtract(block, block[:, :1], dtype=np.float64)
        self._sums[2] += np.square(difference).sum(axis=0)

    def judged(self, take_channel: Callable[[int], str]) -> tuple[ReferenceAudio, tuple[str, ...]]:
        """The whole, with warnings; UserError where it cannot be used.

        `take_channel` gives the advice that takes another channel, counted from 0.
        """
        samples = np.concatenate([np.empty(0, np.float32), *self._blocks])
        samples.flags.writeable = False
        audio = ReferenceAudio(samples, self._rate, self._name)
        if audio.seconds < SHORTEST_SECONDS:
            raise UserError(
                f"{self._name} is too short to clone a voice from",
                expected=f"at least {SHORTEST_SECONDS} seconds; {_ADVICE}",
                found=f"{audio.seconds:.3f} seconds" if len(samples) else "no samples",
                do="give a longer recording",
            )
        mean, square, difference = self._sums / len(samples)
        sounding = np.flatnonzero(square - mean**2 > _SILENCE**2)
        if 0 not in sounding:
            others = ", ".join(str(channel + 1) for channel in sounding)
            raise UserError(
                f"{self._name} is silent" + (" in the channel that is used" if others else ""),
                expected=f"speech in the first channel; {_ADVICE}",
                found=f"sound in channel {others} of {self._channels} only"
                if others
                else "less than -60 dB of full scale",
                do=take_channel(int(sounding[0])) if others else "record it again, or amplify it",
            )
        peak = float(np.abs(samples).max())
        if peak > _LOUDEST:
            raise UserError(
                f"{self._name} is far above full scale",
                expected="float samples from -1 to 1",
                found=f"a peak of {peak:g}",
                do="divide by the full scale, for instance by 32768 for what was 16-bit audio",
            )
        return audio, tuple(
            printable(f"{self._name} {text}") for text in self._warnings(audio, square, difference)
        )

    def _warnings(
        self, audio: ReferenceAudio, square: NDArray[np.float64], difference: NDArray[np.float64]
    ) -> Iterator[str]:
        if audio.seconds < _FEW_SECONDS:
            degree = "too short" if audio.seconds < _TOO_FEW_SECONDS else "short"
            yield f"lasts {audio.seconds:.1f} s, {degree} for a good likeness; {_ADVICE}"
        if audio.seconds > _MANY_SECONDS:
            yield f"lasts {audio.seconds:.0f} s, which takes time and memory; {_ADVICE}"
        if self._rate < _WIDE_BAND_RATE:
            yield f"has {self._rate} samples a second: the voice will sound like on a telephone"
        if difference.max() > _ALIKE * square[0]:
            yield f"has {self._channels} different channels, of which the first is used"
        part = _clipped_part(audio.samples)
        if part >= _CLIPPED_PART:
            yield f"is clipped ({part:.1%} of its samples): record it again at a lower level"


def _clipped_part(samples: NDArray[np.float32]) -> float:
    """The part of (samples,) that lies in runs of three or more equal ones near full scale."""
    loud = np.abs(samples) >= _CLIPPED_FROM
    alike = (samples[1:] == samples[:-1]) & loud[1:]
    starts = alike[1:] & alike[:-1]
    clipped = np.zeros(len(samples), bool)
    for shift in range(3):
        clipped[shift : shift + len(starts)] |= starts
    return float(clipped.mean())


def _unusable_array(found: str) -> UserError:
    return UserError(
        "The reference audio cannot be read",
        expected="an array (samples,) or (samples, channels) of floats from -1 to 1, or of dtype "
        + ", ".join(_PCM),
        found=found,
        do="convert it first, for instance np.asarray(samples, np.float32)",
    )
