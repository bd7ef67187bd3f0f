"""What a speech recogniser hears: CMU PocketSphinx with the English model that its wheel ships.

It is small, runs anywhere without a download, and is no match for a person or for today's networks:
of clear synthetic speech it gets about one word in five wrong. Only differences from the source's
own rate mean anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.word_errors import words
from trt_runtime.audio_source import opened_audio
from trt_runtime.errors import UserError
from trt_runtime.resampling import check_rate, resample

SAMPLE_RATE = 16_000
#: Seconds before and after: the model of silence needs some frames to begin and to end with.
SILENCE = 0.25
#: Longer audio would be held whole, and is no sentence.
LONGEST_SECONDS = 120


class Recogniser:
    """English speech to words; not thread-safe. Raises UserError where it is not installed."""

    def __init__(self) -> None:
        try:
            from pocketsphinx import Decoder
        except ImportError as error:
            raise UserError(
                "The recogniser is not installed",
                expected="pocketsphinx",
                found=str(error),
                do='pip install -c requirements.lock ".[cpu,listen]"',
            ) from error
        self._decoder: Any = Decoder(samprate=SAMPLE_RATE, loglevel="ERROR")

    def words(self, audio: NDArray[np.float32], sample_rate: int) -> list[str]:
        """The words of one utterance, as :func:`benchmarks.word_errors.words` writes them.

        audio: (samples,) float32, full scale 1. The same audio gives the same words, whatever was
        heard before: the mean of the cepstra is that of the whole utterance (`full_utt`), and the
        front end is made anew, since it tracks the noise from one utterance to the next.
        """
        if audio.ndim != 1 or not np.isfinite(audio).all():
            raise ValueError(f"audio is {audio.shape}, or not finite; (samples,) finite float32")
        wave = resample(np.asarray(audio, np.float32), check_rate(sample_rate), SAMPLE_RATE)
        pcm = np.clip(np.rint(wave * np.float32(32768)), -32768, 32767).astype("<i2")
        if not pcm.any():  # the logarithm of nothing sounds like a word to it
            return []
        data = np.pad(pcm, int(SILENCE * SAMPLE_RATE)).tobytes()
        self._decoder.reinit_feat()
        self._decoder.start_utt()
        self._decoder.process_raw(data, no_search=False, full_utt=True)
        self._decoder.end_utt()
        heard = self._decoder.hyp()
        return words(heard.hypstr) if heard is not None else []

    def knows(self, word: str) -> bool:
        """Whether the dictionary has `word`, without which it cannot be heard."""
        return self._decoder.lookup_word(word) is not None


def read_wave(path: str | Path) -> tuple[NDArray[np.float32], int]:
    """An audio file of any format that libsndfile reads: (samples,) float32 and its rate in Hz.

    Channels are averaged. Raises UserError where it is no audio, damaged, too long, or not finite.
    """
    with opened_audio(str(path)) as file:
        rate = check_rate(file.samplerate, f"sample rate of {path}")
        longest = LONGEST_SECONDS * rate
        audio = file.read(longest + 1, dtype="float32", always_2d=True).mean(axis=1)
    if len(audio) > longest or not np.isfinite(audio).all():
        raise UserError(
            f"{path} cannot be listened to",
            expected=f"finite samples, at most {LONGEST_SECONDS} s of them",
            found="more" if len(audio) > longest else "NaN or infinity",
            do="give the recording of a sentence",
        )
    return audio, rate
