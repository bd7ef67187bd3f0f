"""The backend of TensorRT on a GPU, with sessions of ONNX Runtime for engines: real captures."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings")
pytest.importorskip("onnx")

from benchmarks.cuda_loop import COMPARED, RECORDED_SLOTS, TOLERANCES, random_inputs, walk
from engines import build_engines
from tests.goldens import relative_error
from tests.gpu.onnxruntime_engines import onnxruntime_library
from tests.trt_runtime.backends.engine_folders import write_folder
from trt_runtime.backends.tensorrt import TensorrtBackend
from trt_runtime.folder import EMBEDDED, OpenFolder, open_folder
from trt_runtime.manifest import read_manifest
from trt_runtime.synthesizer import Synthesizer

#: All of it is float32 here, the talker too; what differs is the order of sums.
LARGEST = {**TOLERANCES, "talker": 1e-3}


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> OpenFolder:
    return open_folder(build_engines(EMBEDDED, tmp_path_factory.mktemp("cpu") / "engines"))


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graphs of the embedded default, behind a folder for TensorRT."""
    import onnxruntime

    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    folder = tmp_path_factory.mktemp("engines") / "engines"
    return write_folder(EMBEDDED, folder, target="tensorrt", in_place=False)


def opened_anew(engines: Path) -> OpenFolder:
    manifest = read_manifest(engines)
    backend = TensorrtBackend(engines, manifest, library=onnxruntime_library())
    return OpenFolder(engines, manifest, backend, 1)


@pytest.fixture(scope="module")
def opened(engines: Path) -> OpenFolder:
    return opened_anew(engines)


def test_each_component_is_the_cpus_at_each_number_of_slots(
    cpu: OpenFolder, opened: OpenFolder
) -> None:
    g = cpu.manifest.geometry
    inputs = random_inputs(g, RECORDED_SLOTS)
    expected = walk(cpu.backend, g, inputs, RECORDED_SLOTS)
    for slots in COMPARED:
        found = walk(opened.backend, g, inputs, slots, forced=expected)
        for name, values in found.items():
            error = relative_error(values, expected[name][:, :slots])
            assert error <= LARGEST[name], (slots, name)


def test_the_same_request_gives_the_same_audio_and_captures_nothing_again(
    opened: OpenFolder,
) -> None:
    backend: Any = opened.backend
    synthesizer = Synthesizer(opened)
    first = synthesizer.synthesize("Good morning.", seed=1, max_steps=12)
    lanes = {key: id(lane) for key, lane in backend._lanes.items()}
    gc.collect()
    again = synthesizer.synthesize("Good morning.", seed=1, max_steps=12)
    np.testing.assert_array_equal(again.audio, first.audio)
    assert {key: id(lane) for key, lane in backend._lanes.items()} == lanes
    chunks = synthesizer.stream("Good morning.", seed=1, max_steps=12, chunk_patches=2)
    np.testing.assert_array_equal(np.concatenate([c.audio for c in chunks]), first.audio)


def test_requests_of_several_threads_do_not_meet(opened: OpenFolder) -> None:
    synthesizer = Synthesizer(opened)
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


def test_submitted_requests_share_each_step(opened: OpenFolder, cpu: OpenFolder) -> None:
    synthesizer = Synthesizer(opened, slots=3)
    options: dict[str, Any] = {"max_steps": 8, "min_steps": 8, "trace": True}
    submitted = [synthesizer.submit("Hello.", seed=seed, **options) for seed in range(5)]
    for seed, submission in enumerate(submitted):
        found = submission.result().trace
        alone = Synthesizer(cpu).synthesize("Hello.", seed=seed, **options).trace
        assert found is not None
        assert alone is not None
        assert relative_error(found.latents, alone.latents) <= LARGEST["talker"]


def test_a_folder_captures_while_another_speaks(engines: Path, opened: OpenFolder) -> None:
    """A capture is of its own thread and stream: nobody's work breaks it, and it breaks nobody's.

    The other one's sessions are there before: making one, which is ONNX Runtime's doing and none of
    the backend's, is not safe beside a capture.
    """
    speaking = Synthesizer(opened)
    options: dict[str, Any] = {"seed": 7, "max_steps": 6}
    wanted = speaking.synthesize("Hello.", **options).audio
    over = threading.Event()
    found: list[np.ndarray] = []

    def speak() -> None:
        while not over.is_set():
            found.append(speaking.synthesize("Hello.", **options).audio)

    thread = threading.Thread(target=speak)
    thread.start()
    try:
        other = Synthesizer(opened_anew(engines)).synthesize("Hello.", **options).audio
    finally:
        over.set()
        thread.join()
    np.testing.assert_array_equal(other, wanted)
    assert found
    for audio in found:
        np.testing.assert_array_equal(audio, wanted)
