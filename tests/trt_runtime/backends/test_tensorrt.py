"""Speech of engines of TensorRT, over fakes of the library and of CUDA; on a GPU: `tests/gpu`."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings")
pytest.importorskip("tensorrt_rtx")

from tests.conftest import Folders
from tests.goldens import relative_error
from tests.trt_runtime.backends.fake_engines import Opened, open_fake
from tests.trt_runtime.clones import TEXT, WORDS, A
from tests.trt_runtime.test_batch import Beside, alone, assert_the_same, begin, options_of
from tests.trt_runtime.test_language_model import ENDS
from trt_runtime.backends import cuda_memory
from trt_runtime.batch import Batch
from trt_runtime.errors import FolderError, NumericError
from trt_runtime.folder import open_folder
from trt_runtime.synthesizer import Synthesizer

#: Between one order of float32 sums and another.
ROUNDING = 1e-5
OPTIONS: dict[str, Any] = {"max_steps": 6, "min_steps": 6, "trace": True}


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", params=[True, False], ids=["in place", "beside"])
def opened(
    request: pytest.FixtureRequest, folders: Folders, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    """`in place` without spare memory, so that the fake sees what is used after it is freed."""
    folder = tmp_path_factory.mktemp("engines") / "e"
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            patch.setattr(cuda_memory, "_MOST_SPARE", 0)
        yield open_fake(folders.bundle, folder, in_place=request.param)


@pytest.fixture(scope="module")
def cpu(folders: Folders) -> Synthesizer:
    return Synthesizer(open_folder(folders.engines, threads=1))


def test_speech_is_that_of_the_cpus_engines(opened: Opened, cpu: Synthesizer) -> None:
    ours = Synthesizer(opened.folder).synthesize("Hello.", seed=3, **OPTIONS)
    theirs = cpu.synthesize("Hello.", seed=3, **OPTIONS)
    assert_the_same(ours, theirs, "speech")
    assert relative_error(ours.audio, theirs.audio) < ROUNDING


def test_streamed_is_what_is_whole(opened: Opened) -> None:
    synthesizer = Synthesizer(opened.folder)
    whole = synthesizer.synthesize("Hello.", seed=4, max_steps=5, min_steps=5)
    chunks = synthesizer.stream("Hello.", seed=4, max_steps=5, min_steps=5, chunk_patches=2)
    streamed = np.concatenate([chunk.audio for chunk in chunks])
    np.testing.assert_array_equal(streamed, whole.audio)


@pytest.mark.parametrize("slots", [3, 6], ids=["three slots", "more slots than a profile has"])
def test_joining_and_leaving_at_random(opened: Opened, cpu: Synthesizer, slots: int) -> None:
    """Each request is what the CPU's engines make of it alone, whoever runs beside it."""
    speaker = Synthesizer(opened.folder)
    rng = np.random.default_rng(slots)
    batch = Batch(opened.backend, opened.folder.manifest.geometry, slots)
    beside: dict[int, Beside] = {}
    begun, compared, left = 0, 0, 0
    for _ in range(60):
        while len(beside) < slots and rng.random() < 0.5:
            options = options_of(begun) | {"max_steps": int(rng.integers(1, 12))}
            beside[begun] = begin(speaker, batch, options)
            beside[begun].options = options  # type: ignore[attr-defined]
            begun += 1
        for number, request in list(beside.items()):
            if not request.advance():
                found = request.speaking.speech(request.heard)
                expected = alone(cpu, request.options)  # type: ignore[attr-defined]
                assert_the_same(found, expected, f"request {number}")
                compared += 1
                del beside[number]
            elif rng.random() < 0.02:
                request.chunks.close()  # type: ignore[attr-defined]
                left += 1
                del beside[number]
        if beside:
            batch.step()
    assert compared >= 8


def test_submitted_requests_are_as_alone(opened: Opened, cpu: Synthesizer) -> None:
    synthesizer = Synthesizer(opened.folder, slots=3)
    submitted = [synthesizer.submit("Hello.", seed=seed, **OPTIONS) for seed in range(4)]
    for seed, submission in enumerate(submitted):
        theirs = cpu.synthesize("Hello.", seed=seed, **OPTIONS)
        assert_the_same(submission.result(), theirs, f"submitted {seed}")
    synthesizer.close()


def test_nothing_is_made_or_captured_twice(opened: Opened) -> None:
    """However often it speaks: contexts, captures and addresses of what is captured."""
    synthesizer = Synthesizer(opened.folder)
    synthesizer.synthesize("Hello.", seed=3, max_steps=3)
    gc.collect()
    before = opened.cuda.calls["cudaStreamBeginCapture"]
    contexts, live = dict(opened.state.contexts), opened.cuda.live
    synthesizer.synthesize("Hello.", seed=5, max_steps=3)
    gc.collect()
    assert opened.cuda.calls["cudaStreamBeginCapture"] == before
    assert dict(opened.state.contexts) == contexts
    # One talker for each number of slots that was asked for, but its prefill is shared.
    lanes = {key: made for key, made in contexts.items() if key[0] != "talker"}
    assert set(lanes.values()) == {1}
    chunks = opened.folder.manifest.geometry.prefill_chunks
    assert all(contexts.get(("talker", 1, chunk), 1) == 1 for chunk in chunks)
    again = {
        (name, tensor) for (name, _, tensor), times in opened.state.addressed.items() if times > 1
    }
    assert all(name == "talker" and "cache" in tensor for name, tensor in again)
    # What a request had is free by the next call at the latest.
    allocated = opened.cuda.calls["cudaMalloc"]
    synthesizer.synthesize("Hello.", seed=5, max_steps=3)
    gc.collect()
    with opened.backend.place.stream.ordered():
        assert opened.cuda.live <= live
    if cuda_memory._MOST_SPARE:
        assert opened.cuda.calls["cudaMalloc"] == allocated


def test_requests_of_several_threads_do_not_meet(opened: Opened) -> None:
    synthesizer = Synthesizer(opened.folder)
    expected = [synthesizer.synthesize("Hello.", seed=s, max_steps=3).audio for s in range(3)]
    found: dict[int, np.ndarray] = {}

    def speak(seed: int) -> None:
        found[seed] = synthesizer.synthesize("Hello.", seed=seed, max_steps=3).audio

    threads = [threading.Thread(target=speak, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(3):
        np.testing.assert_array_equal(found[seed], expected[seed])


def test_not_a_number_in_slots_stays_there(
    opened: Opened, cpu: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at once, of which one moves before it is noticed: those after them are as alone."""
    speaker = Synthesizer(opened.folder)
    options = [options_of(number) | {"max_steps": 6} for number in (11, 12, 13, 14, 15)]
    batch = Batch(opened.backend, opened.folder.manifest.geometry, 3)
    neighbour, *bad = (begin(speaker, batch, given) for given in options[:3])
    prefill = batch.talker.prefill

    def damaging(embeddings: np.ndarray, slot: int = 0) -> object:
        return prefill(embeddings * (np.nan if slot else 1.0), slot)

    with monkeypatch.context() as patch:
        patch.setattr(batch.talker, "prefill", damaging)
        assert all(request.advance() for request in (neighbour, *bad))
    batch.step()
    for request in bad:
        with pytest.raises(NumericError, match="talker"):
            request.advance()
    assert neighbour.advance()
    after = [begin(speaker, batch, given) for given in options[3:]]
    assert all(request.advance() for request in after)
    batch.step()
    running = [neighbour, *after]
    while running := [request for request in running if request.advance()]:
        batch.step()
    for request, given in zip((neighbour, *after), (options[0], *options[3:]), strict=True):
        found = request.speaking.speech(request.heard)
        assert_the_same(found, alone(cpu, given), "beside NaN")


def test_a_full_cache_beside_others_harms_nobody(opened: Opened) -> None:
    """The row beyond those that count has no next position: it writes its last entry again."""
    g = opened.folder.manifest.geometry
    rng = np.random.default_rng(0)
    prompt = rng.standard_normal((20, g.talker_hidden), dtype=np.float32)
    found = []
    for full in (False, True):
        talker = opened.backend.talker(4)
        for slot in range(3):
            talker.prefill(prompt, slot)
        if full:
            talker._slots._positions[3] = g.cache_length
        talker.embedding.write(0.5)
        for _ in range(3):
            talker.decode(3)
        found.append(talker.hidden.read()[:3].copy())
        del talker
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_caches_of_half_the_size(dense: Folders, tmp_path: Path, dtype: str) -> None:
    half = open_fake(dense.bundle, tmp_path / "half", cache_dtype=dtype)
    theirs = Synthesizer(open_folder(dense.engines)).synthesize("Hello.", seed=3, **OPTIONS)
    ours = Synthesizer(half.folder).synthesize("Hello.", seed=3, **OPTIONS)
    assert ours.trace is not None
    assert theirs.trace is not None
    assert 0 < relative_error(ours.trace.latents, theirs.trace.latents) < 0.05


def test_a_cloned_voice_and_written_text(dense: Folders, tmp_path: Path) -> None:
    """What is loaded on demand; a reference's patches go through `flow_advance`, kept here."""
    theirs = Synthesizer(open_folder(dense.engines))
    cloned = open_fake(dense.bundle, tmp_path / "e", leaves_out=("flow_step",))
    ours = Synthesizer(cloned.folder)
    options: dict[str, Any] = {"reference": A, "reference_text": WORDS, "seed": 2, **OPTIONS}
    found, expected = (synthesizer.synthesize(TEXT, **options) for synthesizer in (ours, theirs))
    assert found.trace is not None
    assert expected.trace is not None
    error = relative_error(found.trace.reference_latents, expected.trace.reference_latents)
    assert error < ROUNDING
    assert relative_error(found.audio, expected.audio) < 10 * ROUNDING
    assert ours.normalize_text(ENDS) == theirs.normalize_text(ENDS)
    without = Synthesizer(open_fake(dense.bundle, tmp_path / "without").folder)
    with pytest.raises(FolderError, match="lack the graph flow_advance"):
        without.synthesize(TEXT, **options)


def test_tensorrt_lacks_what_only_rtx_has(dense: Folders, tmp_path: Path) -> None:
    """As 10.13: no runtime configuration, no question whether a stream can be captured."""
    plain = open_fake(dense.bundle, tmp_path / "e", target="tensorrt", in_place=False)
    theirs = Synthesizer(open_folder(dense.engines)).synthesize("Hello.", seed=3, **OPTIONS)
    ours = Synthesizer(plain.folder).synthesize("Hello.", seed=3, **OPTIONS)
    assert_the_same(ours, theirs, "TensorRT")
    assert not any("cache" in event for event in plain.state.events)


def test_all_is_freed_with_the_last_reference(dense: Folders, tmp_path: Path) -> None:
    opened = open_fake(dense.bundle, tmp_path / "e")
    cuda, state = opened.cuda, opened.state
    synthesizer = Synthesizer(opened.folder, slots=2)
    chunks = synthesizer.stream("Hello.", max_steps=20, chunk_patches=1)
    next(chunks)
    synthesizer.submit("Hello.", max_steps=2).result()
    synthesizer.close()
    chunks.close()
    del opened, synthesizer, chunks
    gc.collect()
    assert cuda.left == {"memory": 0, "streams": 0, "graphs": 0, "executables": 0}
    assert state.alive == 0


def test_the_callers_gpu_stays_the_callers(dense: Folders, tmp_path: Path) -> None:
    opened = open_fake(dense.bundle, tmp_path / "e")
    opened.cuda.device = 3
    bound = opened.backend.bind("language_head", {})
    bound.run()
    assert opened.state.events[-1] == "cache" or opened.state.events[-1] == "deserialize on 0"
    assert opened.cuda.device == 3
