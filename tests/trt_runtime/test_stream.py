"""Streaming: the same samples as whole, in order, early, and free to be left."""

from __future__ import annotations

import gc
import itertools
import weakref
from pathlib import Path

import numpy as np
import pytest

import trt_runtime
from trt_runtime.audio_decoder import AudioDecoder
from trt_runtime.errors import UserError
from trt_runtime.speech import Progress
from trt_runtime.synthesizer import Synthesizer, load

TEXT = "Nothing surprises anybody at three in the morning."

#: At a stop of the model's own, and at the step limit.
ENDS = [{"seed": 1}, {"seed": 1, "max_steps": 4}]


@pytest.mark.parametrize("options", ENDS)
@pytest.mark.parametrize("chunk_patches", [1, 2, 3, 7, 10_000])
def test_streamed_equals_whole(
    demo: Synthesizer, options: dict[str, int], chunk_patches: int
) -> None:
    """1e-5 is asked for; both ways decode the same patches, so nothing at all may differ."""
    whole = demo.synthesize(TEXT, **options)
    chunks = list(demo.stream(TEXT, chunk_patches=chunk_patches, **options))
    audio = np.concatenate([chunk.audio for chunk in chunks])
    np.testing.assert_allclose(audio, whole.audio, rtol=0, atol=1e-5)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    starts = np.cumsum([0] + [len(chunk.audio) for chunk in chunks])[:-1]
    assert [chunk.start for chunk in chunks] == starts.tolist()
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].finish_reason == whole.finish_reason
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])
    assert all(chunk.audio.dtype == np.float32 for chunk in chunks)


def test_both_ends_are_met(demo: Synthesizer) -> None:
    reasons = [demo.synthesize(TEXT, **options).finish_reason for options in ENDS]
    assert reasons == ["stop", "max_steps"]


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_samples_are_patches_times_samples_per_patch(demo: Synthesizer, steps: int) -> None:
    speech = demo.synthesize(TEXT, max_steps=steps, min_steps=steps)
    assert speech.steps == steps
    assert len(speech.audio) == steps * demo.geometry.samples_per_patch


def test_first_audio_comes_with_the_first_patch(random_engines: Path) -> None:
    """All frames but those of half a latent: 14 of 16, less the window's leading half overlap."""
    with load(random_engines) as synthesizer:
        g = synthesizer.geometry
        first = next(synthesizer.stream(TEXT))
    frames = g.patch * g.frames_per_latent - g.lookahead_frames
    assert len(first.audio) == frames * g.hop_length - g.overlap // 2 == 11_025


def test_one_patch_a_chunk_is_one_chunk_a_step(demo: Synthesizer) -> None:
    chunks = list(demo.stream(TEXT, seed=1))
    assert len(chunks) == chunks[-1].steps


def test_max_steps_may_be_below_min_steps(demo: Synthesizer) -> None:
    speech = demo.synthesize(TEXT, min_steps=5, max_steps=2)
    assert (speech.steps, speech.finish_reason) == (2, "max_steps")


def test_an_abandoned_stream_frees_its_state(
    demo: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[AudioDecoder]] = []
    original = AudioDecoder.__init__

    def recording(self: AudioDecoder, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        made.append(weakref.ref(self))

    monkeypatch.setattr(AudioDecoder, "__init__", recording)
    for taken in range(3):
        chunks = demo.stream(TEXT)
        list(itertools.islice(chunks, taken))
        del chunks
    gc.collect()
    assert made
    assert all(reference() is None for reference in made)
    assert len(demo.synthesize("Still here.", max_steps=2).audio)


def test_progress_and_cancelling(demo: Synthesizer) -> None:
    seen: list[Progress] = []

    def stop_after_three(progress: Progress) -> bool:
        seen.append(progress)
        return progress.step < 3

    speech = demo.synthesize(TEXT, seed=1, on_progress=stop_after_three)
    assert [progress.step for progress in seen] == [1, 2, 3]
    assert (speech.steps, speech.finish_reason) == (3, "cancelled")
    assert len(speech.audio) == 3 * demo.geometry.samples_per_patch


def test_a_stream_is_checked_when_asked_for(demo: Synthesizer) -> None:
    with pytest.raises(UserError, match="blank"):
        demo.stream(" ")
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(UserError, match="chunk_patches"):
            demo.stream(TEXT, chunk_patches=wrong)


def test_module_functions_speak_the_embedded_default() -> None:
    options = {"seed": 3, "max_steps": 3}
    whole = trt_runtime.synthesize(TEXT, **options)
    chunks = list(trt_runtime.stream(TEXT, chunk_patches=2, **options))
    np.testing.assert_array_equal(np.concatenate([c.audio for c in chunks]), whole.audio)


def test_a_bundle_speaks_as_its_engines_do(demo: Synthesizer) -> None:
    """Engines are the bundle optimised: float32 sums in another order at most."""
    ours = demo.synthesize(TEXT, max_steps=5).audio
    bundle = trt_runtime.synthesize(TEXT, max_steps=5).audio
    assert np.abs(ours - bundle).max() <= 1e-4 * np.abs(bundle).max()


def test_a_request_outlives_its_synthesizer(demo_engines: object) -> None:
    """Closing lets go of the engines; a stream that was asked for keeps them to its end."""
    options = {"seed": 1, "max_steps": 3, "min_steps": 3}
    synthesizer = trt_runtime.load(demo_engines)  # type: ignore[arg-type]
    whole = synthesizer.synthesize(TEXT, **options)  # type: ignore[arg-type]
    begun, waiting = (synthesizer.stream(TEXT, **options) for _ in range(2))  # type: ignore[arg-type]
    first = next(begun)
    synthesizer.close()
    rest = [chunk.audio for chunk in begun]
    np.testing.assert_array_equal(np.concatenate([first.audio, *rest]), whole.audio)
    np.testing.assert_array_equal(np.concatenate([c.audio for c in waiting]), whole.audio)


def test_a_closed_synthesizer_says_so(demo_engines: object) -> None:
    synthesizer = trt_runtime.load(demo_engines)  # type: ignore[arg-type]
    synthesizer.warmup()
    synthesizer.close()
    synthesizer.close()
    with pytest.raises(UserError, match="closed"):
        synthesizer.synthesize(TEXT)
