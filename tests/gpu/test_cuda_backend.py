"""The target `cuda` on a GPU, built here of the embedded default, against the CPU's engines."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
pytest.importorskip("onnx")

from benchmarks.cuda_loop import COMPARED, RECORDED_SLOTS, TOLERANCES, random_inputs, walk
from engines import build_engines
from tests.goldens import relative_error
from trt_runtime.contract import AUDIO_DECODER, TAIL
from trt_runtime.folder import EMBEDDED, OpenFolder, open_folder
from trt_runtime.synthesizer import Synthesizer


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> OpenFolder:
    return open_folder(build_engines(EMBEDDED, tmp_path_factory.mktemp("cpu") / "engines"))


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> OpenFolder:
    folder: Path = tmp_path_factory.mktemp("cuda") / "engines"
    return open_folder(build_engines(EMBEDDED, folder, target="cuda"))


def test_each_component_is_the_cpus_at_each_number_of_slots(
    cpu: OpenFolder, cuda: OpenFolder
) -> None:
    g = cpu.manifest.geometry
    inputs = random_inputs(g, RECORDED_SLOTS)
    expected = walk(cpu.backend, g, inputs, RECORDED_SLOTS)
    for slots in COMPARED:
        found = walk(cuda.backend, g, inputs, slots, forced=expected)
        for name, values in found.items():
            error = relative_error(values, expected[name][:, :slots])
            assert error <= TOLERANCES[name], (slots, name)


def test_the_same_request_gives_the_same_audio_and_captures_nothing_again(
    cuda: OpenFolder,
) -> None:
    backend: Any = cuda.backend
    synthesizer = Synthesizer(cuda)
    first = synthesizer.synthesize("Good morning.", seed=1, max_steps=12)
    lanes = {key: id(lane) for key, lane in backend._lanes.items()}
    gc.collect()
    again = synthesizer.synthesize("Good morning.", seed=1, max_steps=12)
    np.testing.assert_array_equal(again.audio, first.audio)
    assert {key: id(lane) for key, lane in backend._lanes.items()} == lanes
    assert {(TAIL, 1), (AUDIO_DECODER, 1)} <= set(lanes)


def test_requests_of_several_threads_do_not_meet(cuda: OpenFolder) -> None:
    synthesizer = Synthesizer(cuda)
    alone = [synthesizer.synthesize("Hello.", seed=s, max_steps=8).audio for s in range(3)]
    found: dict[int, np.ndarray] = {}

    def speak(seed: int) -> None:
        found[seed] = synthesizer.synthesize("Hello.", seed=seed, max_steps=8).audio

    threads = [threading.Thread(target=speak, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(3):
        np.testing.assert_array_equal(found[seed], alone[seed])


def test_submitted_requests_share_each_step(cuda: OpenFolder) -> None:
    synthesizer = Synthesizer(cuda, slots=3)
    options: dict[str, Any] = {"max_steps": 8, "min_steps": 8, "trace": True}
    submitted = [synthesizer.submit("Hello.", seed=seed, **options) for seed in range(4)]
    for seed, submission in enumerate(submitted):
        found = submission.result().trace
        alone = Synthesizer(cuda).synthesize("Hello.", seed=seed, **options).trace
        assert found is not None
        assert alone is not None
        # Other buckets sum in another order, and what differs is fed back.
        assert relative_error(found.latents, alone.latents) <= TOLERANCES["talker"]
