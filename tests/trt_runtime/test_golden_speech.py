"""Whole requests through built engines against the reference, with its recorded noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.goldens import assert_close, load_json, load_npz
from trt_runtime import RecordedNoise
from trt_runtime.folder import OpenFolder
from trt_runtime.speech import Speech
from trt_runtime.synthesizer import Synthesizer

ARRAYS = load_npz("dense_e2e")
META: dict[str, Any] = load_json("dense_e2e")["meta"]


def _plain(case: str) -> bool:
    """Text and prompt only: voices and instructions are another issue's."""
    request = META[case]["request"]
    return set(request) <= {
        "prompt", "text", "max_decode_steps", "cfg", "sigma", "temperature"
    }  # fmt: skip


PLAIN = [case for case in META if _plain(case)]


def speak(opened: OpenFolder, case: str) -> Speech:
    request = META[case]["request"]
    initial = np.ascontiguousarray(ARRAYS[f"{case}/init_noise"][:, 0].transpose(0, 2, 1))
    diffusion = ARRAYS.get(f"{case}/sde_noise")
    if diffusion is not None:
        # The reference draws once more than it uses: the last step's noise is never read.
        diffusion = np.ascontiguousarray(diffusion.reshape(len(initial), -1, *initial.shape[1:]))
        diffusion = np.ascontiguousarray(diffusion[:, :-1])
    return Synthesizer(opened).synthesize(
        request["text"],
        prompt=request["prompt"],
        max_steps=request["max_decode_steps"],
        guidance=request.get("cfg", 2.0),
        sigma=request.get("sigma", 0.25),
        temperature=request.get("temperature", 0.0),
        noise=RecordedNoise(initial, diffusion),
        trace=True,
    )


def test_there_are_plain_cases() -> None:
    assert PLAIN


@pytest.mark.parametrize("case", PLAIN)
def test_speech(dense_engines: OpenFolder, case: str) -> None:
    meta = META[case]
    speech = speak(dense_engines, case)
    trace = speech.trace
    assert trace is not None
    np.testing.assert_array_equal(trace.prompt_ids, ARRAYS[f"{case}/ids"])
    assert speech.steps == meta["steps"]
    assert speech.finish_reason == ("stop" if meta["stopped_by_head"] else "max_steps")
    assert_close(trace.hidden, ARRAYS[f"{case}/z"], "hidden states")
    assert_close(trace.latents, ARRAYS[f"{case}/latents"], "latents")
    assert_close(trace.stop_probabilities, ARRAYS[f"{case}/stop_prob"], "stop probabilities")
    # The reference loses the tail at the step limit; we keep it, and the common part agrees.
    assert len(speech.audio) == speech.steps * dense_engines.manifest.geometry.samples_per_patch
    assert len(speech.audio) >= meta["samples"]
    common = speech.audio[: meta["samples"]]
    if f"{case}/wave" in ARRAYS:
        assert_close(common, ARRAYS[f"{case}/wave"], "wave")
    else:
        assert_close(common[::8], ARRAYS[f"{case}/wave_every8"], "every 8th sample")
