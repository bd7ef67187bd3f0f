"""The same seed and request give the same bytes: in one process, in two, and among neighbours."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from trt_runtime.synthesizer import Synthesizer, load

TEXT = "The same words, and the same voice."

_CHILD = """
import hashlib, sys, trt_runtime
with trt_runtime.load(sys.argv[1]) as synthesizer:
    for seed in (0, 1, 2, 3):
        audio = synthesizer.synthesize(sys.argv[2], seed=seed, max_steps=6, temperature=0.5).audio
        print(hashlib.sha256(audio.tobytes()).hexdigest())
"""


def speak(synthesizer: Synthesizer, seed: int) -> str:
    audio = synthesizer.synthesize(TEXT, seed=seed, max_steps=6, temperature=0.5).audio
    return hashlib.sha256(audio.tobytes()).hexdigest()


def test_twice_in_one_process(demo: Synthesizer) -> None:
    first = [speak(demo, seed) for seed in range(4)]
    assert first == [speak(demo, seed) for seed in range(4)]
    assert len(set(first)) == 4, "the seed has no effect"


def test_in_two_processes(demo: Synthesizer, demo_engines: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(demo_engines), TEXT],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.split() == [speak(demo, seed) for seed in range(4)]


def test_four_threads_at_once(demo: Synthesizer) -> None:
    """Four seeds in four threads over one folder, several rounds, against each alone."""
    alone = [speak(demo, seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(lambda seed: speak(demo, seed), range(4))) == alone


def test_any_number_of_threads_in_a_graph(demo: Synthesizer, demo_engines: Path) -> None:
    """Work is split over rows and columns, never over a sum."""
    for threads in (1, 3):
        with load(demo_engines, threads=threads) as other:
            assert speak(other, 5) == speak(demo, 5)


def test_streams_interleaved_in_one_thread(demo: Synthesizer) -> None:
    """Two requests take turns step by step; neither hears the other."""
    alone = [demo.synthesize(TEXT, seed=seed, max_steps=5).audio for seed in (7, 8)]
    streams = [demo.stream(TEXT, seed=seed, max_steps=5, min_steps=5) for seed in (7, 8)]
    parts: list[list[np.ndarray]] = [[], []]
    for chunks in zip(*streams, strict=True):
        for part, chunk in zip(parts, chunks, strict=True):
            part.append(chunk.audio)
    for part, audio in zip(parts, alone, strict=True):
        np.testing.assert_array_equal(np.concatenate(part), audio)


def test_temperature_has_an_effect(demo: Synthesizer) -> None:
    cold = demo.synthesize(TEXT, max_steps=3).audio
    warm = demo.synthesize(TEXT, max_steps=3, temperature=1.0).audio
    assert not np.array_equal(cold, warm)
