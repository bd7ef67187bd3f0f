"""What speaking gives back: speech, chunks of it, and how far it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from trt_runtime.audio_file import AudioFileWriter


class FinishReason(StrEnum):
    """Why speech ended."""

    STOP = "stop"
    """The model said so."""
    MAX_STEPS = "max_steps"
    """The request's `max_steps` were taken."""
    CANCELLED = "cancelled"
    """The caller asked for it."""
    RUNAWAY = "runaway"
    """Speech was far longer than its text, and the caller had asked to stop there."""


@dataclass(frozen=True)
class Timings:
    """How long a request took.

    first_audio: seconds until the first audio was ready. total: seconds until the last was.
    audio: seconds of audio made. components: seconds spent by component name.
    """

    first_audio: float
    total: float
    audio: float
    components: Mapping[str, float] = field(default_factory=dict)

    @property
    def real_time_factor(self) -> float:
        """`total` / `audio`: below 1 is faster than it plays. Infinity where there is no audio."""
        return self.total / self.audio if self.audio > 0 else float("inf")


@dataclass(frozen=True, eq=False)
class Trace:
    """What went on inside, for comparing with another implementation.

    prompt_ids: (tokens,) int64. reference_latents: (latents, latent_dim) float32, of the reference
    waves, perhaps none. latents: (steps, patch, latent_dim) float32. stop_probabilities: (steps,)
    float32. hidden: (steps, talker_hidden) float32, after the talker's final norm.
    """

    prompt_ids: NDArray[np.int64] = field(repr=False)
    reference_latents: NDArray[np.float32] = field(repr=False)
    latents: NDArray[np.float32] = field(repr=False)
    stop_probabilities: NDArray[np.float32] = field(repr=False)
    hidden: NDArray[np.float32] = field(repr=False)


@dataclass(frozen=True, eq=False)
class SpokenSentence:
    """One sentence of a long text, or all of a shorter one, and where it is.

    `text` is what was spoken, `start` and `end` its characters in the request's text before
    normalisation. It has `samples` samples from `first_sample` on, made in `steps` steps with
    `seed`, the last of `attempts`. `warnings` are this sentence's, of every attempt; `trace` is
    there where the request asked for it.
    """

    text: str
    start: int
    end: int
    first_sample: int
    samples: int
    steps: int
    finish_reason: FinishReason
    seed: int
    attempts: int = 1
    warnings: tuple[str, ...] = ()
    trace: Trace | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Speech:
    """Speech as a whole.

    audio: (samples,) float32, in [-1, 1] but for peaks; `sample_rate` in Hz. `sentences` says how
    each ended and where it lies; `finish_reason` is the gravest of theirs (cancelled, runaway,
    max_steps, stop) and `steps` their sum. `seed` is the request's. `warnings` repeats everything
    that went otherwise than asked. `trace` is that of a text that was spoken in one go.
    """

    audio: NDArray[np.float32] = field(repr=False)
    sample_rate: int
    finish_reason: FinishReason
    steps: int
    seed: int
    timings: Timings
    sentences: tuple[SpokenSentence, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def trace(self) -> Trace | None:
        return self.sentences[0].trace if len(self.sentences) == 1 else None

    @property
    def duration(self) -> float:
        """Seconds of audio."""
        return len(self.audio) / self.sample_rate

    def save(self, path: str | os.PathLike[str], subtype: str | None = None) -> None:
        """Writes the audio to `path`, in the format of its extension; all of it or nothing.

        subtype: soundfile's name of an encoding ("PCM_24", "FLOAT"); None is the format's usual
        one, which is 16 bits for WAV and FLAC. Raises UserError for an unknown extension or
        subtype, a missing or unwritable folder, and a disk that fills.
        """
        with AudioFileWriter(path, self.sample_rate, subtype) as file:
            file.write(self.audio)


@dataclass(frozen=True, eq=False)
class AudioChunk:
    """A piece of speech, as it is made.

    audio: (samples,) float32. `start` is the index of its first sample in the whole speech, `index`
    counts chunks from 0, `steps` the patches made so far, `sentence` the sentences before this
    one. A sentence's last chunk brings its report in `ended`, None before. The last chunk of all is
    `final` and says why speech ended in `finish_reason`, which is None before; its `warnings` are
    those of :class:`Speech`.
    """

    audio: NDArray[np.float32] = field(repr=False)
    sample_rate: int
    start: int
    index: int
    final: bool
    steps: int
    seed: int
    finish_reason: FinishReason | None = None
    warnings: tuple[str, ...] = ()
    sentence: int = 0
    ended: SpokenSentence | None = None


@dataclass(frozen=True)
class Progress:
    """How far a request is: `step` steps done of at most `max_steps`, after `seconds`.

    `stop_probability` is the stop head's answer at this step, in [0, 1]. `sentence` counts the
    sentences done of `sentences`, `attempt` the earlier attempts at this one.
    """

    step: int
    max_steps: int
    stop_probability: float
    seconds: float
    sentence: int = 0
    sentences: int = 1
    attempt: int = 0
