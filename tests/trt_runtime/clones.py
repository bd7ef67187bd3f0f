"""What tests of cloned voices share: two recordings, ways to speak, and comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from tests.goldens import OMNI_TTS
from trt_runtime import RecordedNoise
from trt_runtime.noise import Stream, normal
from trt_runtime.speech import Speech
from trt_runtime.synthesizer import Synthesizer

A, B = OMNI_TTS / "wavs" / "a_24k.wav", OMNI_TTS / "wavs" / "b_16k.wav"


WORDS, TEXT = "The words of the reference.", "What is said in its voice."


#: Without patience for long speech: what is heard after a few patches depends on all that is asked.
FEW = {"max_steps": 3, "min_steps": 3}


def like_speech(seconds: float, rate: int = 16_000, seed: int = 0) -> np.ndarray:
    """(samples,) float32 with the level and unevenness of speech."""
    time = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(seed).standard_normal(len(time))
    wave = np.sin(2 * np.pi * (140 + 20 * seed) * time + 3 * np.sin(time)) + 0.1 * noise
    return (0.2 * (1 + np.sin(7 * time)) * wave).astype(np.float32)


def speak(synthesizer: Synthesizer, text: Any = TEXT, **options: Any) -> Speech:
    return synthesizer.synthesize(text, trace=True, **(FEW | options))


def assert_alike(one: Speech, other: Speech) -> None:
    """The same prompt, latents and bytes."""
    assert one.trace is not None
    assert other.trace is not None
    np.testing.assert_array_equal(one.trace.prompt_ids, other.trace.prompt_ids)
    np.testing.assert_array_equal(one.trace.reference_latents, other.trace.reference_latents)
    assert one.audio.tobytes() == other.audio.tobytes()


def differ(*speeches: Speech) -> bool:
    return len({speech.audio.tobytes() for speech in speeches}) == len(speeches)


def reference_latents(speech: Speech) -> np.ndarray:
    assert speech.trace is not None
    return speech.trace.reference_latents


def count(synthesizer: Synthesizer, speech: Speech, token: str) -> int:
    assert speech.trace is not None
    return int((speech.trace.prompt_ids == synthesizer._tokenizer.token_id(token)).sum())


def posterior_noise(synthesizer: Synthesizer, posterior: Any, steps: int = 3) -> RecordedNoise:
    g = synthesizer.geometry
    drawn = [normal(5, step, Stream.INITIAL, (g.patch, g.latent_dim)) for step in range(steps)]
    return RecordedNoise(np.stack(drawn), posterior=posterior)


def recorded(path: Path) -> tuple[np.ndarray, int]:
    return soundfile.read(path, dtype="float32")
