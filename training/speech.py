"""Speech for sentences by flite, cut to whole latents, with a phone for each 20 ms."""

from __future__ import annotations

import os
import random
import struct
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training.corpus import dressed
from trt_runtime.errors import UserError, reason_of

SAMPLE_RATE = 16_000
HOP = 320
SAMPLES_PER_LATENT = 1280
#: The first needs no speaker slot.
VOICES = ("rms", "slt")
DEFAULT_VOICE = 0
#: flite's English phones; 0 is a pause.
PHONES = (
    "pau aa ae ah ao aw ax ay b ch d dh eh er ey f g hh ih iy jh k l m n ng ow oy p r s sh t th uh "
    "uw v w y z zh"
).split()
_PHONE_IDS = {name: index for index, name in enumerate(PHONES)}
#: Seconds of silence that are kept before and after speech.
_BEFORE, _AFTER = 0.06, 0.08
_QUIET = 0.01

_PROGRAM = "the program that training/flite_speech.c makes"
_BUILD = "build it: the command is in training/flite_speech.c and in training/README.md"


@dataclass(frozen=True, eq=False)
class Speech:
    """Utterances, joined. Utterance i is latents first[i] to first[i + 1].

    audio: (samples,) int16; phones: (frames of 20 ms,) uint8, indices into :data:`PHONES`; first:
    (utterances + 1,) int64; voices: (utterances,) uint8, indices into :data:`VOICES`.
    """

    audio: np.ndarray
    phones: np.ndarray
    first: np.ndarray
    voices: np.ndarray
    texts: list[str]

    @property
    def seconds(self) -> float:
        return len(self.audio) / SAMPLE_RATE


def find_program(path: Path) -> Path:
    """The absolute path of training/flite_speech.c as built. Raises UserError where it is not."""
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UserError(
            f"{path} cannot be run",
            expected=_PROGRAM,
            found="a file that is not executable" if path.is_file() else "no such file",
            do=_BUILD,
        )
    return path.resolve()


def make(program: Path, texts: list[str], seed: int, workers: int) -> Speech:
    """Each text spoken by one voice, chosen at random.

    Worker i speaks every text whose index is i modulo `workers`, and its utterances follow those of
    worker i - 1: their order depends on `workers`. Raises UserError where `program` fails.
    """
    generator = random.Random(seed)
    jobs = [(generator.choice(VOICES), dressed(text, generator).lower()) for text in texts]
    parts = [jobs[index::workers] for index in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        every = [
            utterance
            for part in pool.map(lambda part: list(spoken(program, part)), parts)
            for utterance in part
        ]
    audios, phones, first = [], [], [0]
    for _, _, audio, labels in every:
        audios.append(audio)
        phones.append(labels)
        first.append(first[-1] + len(audio) // SAMPLES_PER_LATENT)
    return Speech(
        np.concatenate(audios),
        np.concatenate(phones),
        np.array(first, np.int64),
        np.array([VOICES.index(voice) for voice, *_ in every], np.uint8),
        [text for _, text, *_ in every],
    )


def spoken(
    program: Path, jobs: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str, np.ndarray, np.ndarray]]:
    """Of (voice, text) jobs in their order: voice, text, audio (samples,) int16, phones (frames,).

    program: training/flite_speech.c, built. Texts are lines of ASCII. Audio is whole latents with
    little silence around it; phones are indices into :data:`PHONES`, uint8, one for each 20 ms.
    Raises UserError where the program cannot be run, fails, or answers something else.
    """
    lines = "".join(f"{voice}\t{text}\n" for voice, text in jobs).encode("ascii")
    try:
        data = subprocess.run([program], input=lines, stdout=subprocess.PIPE, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise _mute(program, reason_of(error)) from error
    position = 0
    for voice, text in jobs:
        try:
            audio, ends, names, position = _utterance(data, position)
        except (struct.error, ValueError) as error:
            raise _mute(program, f"{len(data)} bytes that end early, at {text!r}") from error
        yield voice, text, *_trimmed(audio, ends, names)
    if position != len(data):
        raise _mute(program, f"{len(data)} bytes, of which {position} are the speech")


def _utterance(data: bytes, position: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Audio, ends and phones that lie at `position`, and what lies behind them."""
    samples, count = struct.unpack_from("<ii", data, position)
    position += 8
    ends, names = [], []
    for _ in range(count):
        name, end = struct.unpack_from("<4sf", data, position)
        names.append(_PHONE_IDS.get(name.rstrip(b"\0").decode(), 0))
        ends.append(end)
        position += 8
    if samples < 0 or not names:
        raise ValueError(f"{samples} samples and {count} phones")
    audio = np.frombuffer(data, "<i2", samples, position)
    return audio, np.array(ends), np.array(names, np.uint8), position + 2 * samples


def _mute(program: Path, found: str) -> UserError:
    return UserError(f"{program} does not speak", expected=_PROGRAM, found=found, do=_BUILD)


def _trimmed(
    audio: np.ndarray, ends: np.ndarray, names: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Little silence around the speech, and zeros to a whole latent; a phone for each frame."""
    loud = np.flatnonzero(np.abs(audio.astype(np.int32)) > _QUIET * 32768)
    start = max(0, int(loud[0]) - int(_BEFORE * SAMPLE_RATE)) if len(loud) else 0
    end = min(len(audio), int(loud[-1]) + int(_AFTER * SAMPLE_RATE)) if len(loud) else len(audio)
    cut = audio[start:end]
    cut = np.pad(cut, (0, -len(cut) % SAMPLES_PER_LATENT))
    centres = (start + HOP * (np.arange(len(cut) // HOP) + 0.5)) / SAMPLE_RATE
    index = np.minimum(np.searchsorted(ends, centres), len(names) - 1)
    return cut, names[index]
