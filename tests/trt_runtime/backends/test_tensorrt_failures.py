"""What fails in the library or in CUDA is named; what a bound graph must not touch it does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings")
pytest.importorskip("tensorrt_rtx")

from tests.conftest import Folders
from tests.goldens import relative_error
from tests.trt_runtime.backends.engine_folders import MAGIC, write_folder
from tests.trt_runtime.backends.fake_cuda import real as cuda_runtime
from tests.trt_runtime.backends.fake_engines import Opened, open_fake, reopen
from trt_runtime.backends.cuda_memory import CudaError, DeviceMemoryError
from trt_runtime.backends.tensorrt_engine import pieces
from trt_runtime.contract import AUDIO_DECODER, LANGUAGE_HEAD, TAIL, tail_spec
from trt_runtime.errors import FolderError, MingError
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import MANIFEST, sha256_of
from trt_runtime.tensorrt_library import TensorrtError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def opened(dense: Folders, tmp_path: Path) -> Opened:
    return open_fake(dense.bundle, tmp_path / "e")


@pytest.mark.parametrize(
    ("slots", "sizes", "expected"),
    [
        (1, [1, 2, 4], [(0, 1, 1)]),
        (3, [1, 2, 4], [(0, 4, 3)]),
        (5, [1, 2, 4], [(0, 4, 4), (4, 1, 1)]),
        (11, [1, 2, 4], [(0, 4, 4), (4, 4, 4), (8, 4, 3)]),
        (1, [4], [(0, 4, 1)]),
    ],
)
def test_runs_of_a_number_of_slots(slots: int, sizes: list[int], expected: list[Any]) -> None:
    assert list(pieces(slots, sizes)) == expected


@pytest.mark.parametrize(
    "method",
    [
        "execute_async_v3", "set_input_shape", "set_tensor_address",
        "set_optimization_profile_async", "create_execution_context",
    ],
)  # fmt: skip
def test_a_call_of_the_library_that_fails_is_named(opened: Opened, method: str) -> None:
    opened.state.failing.add(method)
    for use in (lambda: opened.backend.bind(TAIL, {}), lambda: opened.backend.talker(2)):
        with pytest.raises(TensorrtError, match=f"the library says that {method} failed") as raised:
            use()
        if method != "create_execution_context":
            assert method in str(raised.value).partition("the library says")[0]
            assert "slots" in str(raised.value)
    opened.state.failing.clear()
    opened.backend.bind(TAIL, {}).run()


def test_a_prefill_that_fails_is_named(opened: Opened) -> None:
    talker = opened.backend.talker(1)
    opened.state.failing.add("execute_async_v3")
    prompt = np.zeros((20, opened.folder.manifest.geometry.talker_hidden), np.float32)
    with pytest.raises(TensorrtError, match=r"talker \(1 slots, 16 tokens\): execute_async_v3"):
        talker.prefill(prompt)


@pytest.mark.parametrize("method", ["deserialize_cuda_engine", "weight_streaming_budget_v2"])
def test_an_engine_that_does_not_load_is_the_folders_fault(
    dense: Folders, tmp_path: Path, method: str
) -> None:
    folder = write_folder(dense.bundle, tmp_path / "e")
    with pytest.raises(
        FolderError, match=r"cannot load .*\.engine(?s:.*)build-engines CHECKPOINT --target"
    ):
        reopen(folder, method)


def test_what_rtx_finds_in_a_header_is_named(dense: Folders, tmp_path: Path) -> None:
    folder = write_folder(dense.bundle, tmp_path / "e")
    with pytest.raises(FolderError, match=r"does not run here \(version mismatch, old cuda driver"):
        reopen(folder, "get_engine_validity")


def test_what_cannot_be_captured_is_the_engines_fault(opened: Opened) -> None:
    opened.state.capturable = False
    with pytest.raises(FolderError, match=r"tail \(1 slots, 1 tokens\) cannot be captured"):
        opened.backend.bind(TAIL, {})


@pytest.mark.parametrize(
    "function",
    ["cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaMemcpyAsync",
     "cudaMemsetAsync", "cudaStreamSynchronize", "cudaGraphLaunch"],
)  # fmt: skip
def test_a_call_of_cudas_that_fails_is_named(opened: Opened, function: str) -> None:
    opened.cuda.failing[function] = cuda_runtime.cudaError_t.cudaErrorIllegalAddress

    def use() -> None:
        bound = opened.backend.bind(TAIL, {})
        bound.buffers["hidden"].write(1.0)
        bound.run()
        bound.buffers["patch"].read()

    with pytest.raises(CudaError, match=rf"{function}\(.*cudaErrorIllegalAddress: said by"):
        use()
    opened.cuda.failing.clear()
    opened.cuda._captures.clear()
    use()


def test_memory_that_is_not_there_is_a_memory_error(opened: Opened) -> None:
    opened.cuda.failing["cudaMalloc"] = cuda_runtime.cudaError_t.cudaErrorMemoryAllocation
    with pytest.raises(DeviceMemoryError, match="cudaErrorMemoryAllocation"):
        opened.backend.talker(2)
    with pytest.raises(MemoryError):
        opened.backend.bind(TAIL, {})


def _renamed(described: dict[str, Any]) -> None:
    described["component"] = "audio_encoder"


def _fewer(described: dict[str, Any]) -> None:
    described["profiles"].pop()


def _swapped(described: dict[str, Any]) -> None:
    described["profiles"][0], described["profiles"][1] = described["profiles"][1::-1]


def _beside(described: dict[str, Any]) -> None:
    described["in_place"] = False


def _half(described: dict[str, Any]) -> None:
    described["cache_dtype"] = "float16"


def _on_the_host(described: dict[str, Any]) -> None:
    described["host"] = "valid"


@pytest.mark.parametrize(
    ("component", "change", "expected"),
    [
        ("tail", _renamed, r"hidden INPUT float32(?s:.*)wave INPUT float32"),
        ("talker", _fewer, r"5 profiles(?s:.*)Found: 4"),
        ("tail", _swapped, r"hidden of shape \(1, 1, 64\) in profile 0(?s:.*)\(2, 1, 64\)"),
        ("talker", _beside, r"updated in place: key_cache_0, (?s:.*)Found: none"),
        ("audio_decoder", _on_the_host, r"in device memory(?s:.*)valid on the host"),
        ("audio_decoder", _half, r"key_cache_0 INPUT float32(?s:.*)key_cache_0 INPUT float16"),
    ],
)
def test_an_engine_that_is_another_than_the_manifest_says(
    dense: Folders,
    tmp_path: Path,
    component: str,
    change: Callable[[dict[str, Any]], None],
    expected: str,
) -> None:
    folder = write_folder(dense.bundle, tmp_path / "e")
    path = folder / f"{component}.engine"
    described = json.loads(path.read_bytes().removeprefix(MAGIC))
    change(described)
    path.write_bytes(MAGIC + json.dumps(described).encode())
    with pytest.raises(FolderError, match=rf"engine of {component} is another(?s:.*){expected}"):
        reopen(folder)


@pytest.mark.parametrize("profiles", [[], [[1, 1]], [[1, 1], [1, 16], [1, 32]]])
def test_profiles_that_do_not_fit_the_graphs(
    dense: Folders, tmp_path: Path, profiles: list[list[int]]
) -> None:
    folder = write_folder(dense.bundle, tmp_path / "e")
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["components"]["talker"]["profiles"] = profiles
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(FolderError, match="a profile for each of its graphs"):
        reopen(folder)


def test_engines_that_plain_speech_does_without_are_loaded_when_asked_for(opened: Opened) -> None:
    loaded = [event for event in opened.state.events if "deserialize" in event]
    opened.backend.bind(LANGUAGE_HEAD, {})
    opened.backend.bind(LANGUAGE_HEAD, {})
    now = [event for event in opened.state.events if "deserialize" in event]
    assert len(now) == len(loaded) + 1
    assert set(now) == {"deserialize on 0"}


def test_the_callers_gpu_stays_the_callers(opened: Opened) -> None:
    opened.cuda.device = 3
    bound = opened.backend.bind(LANGUAGE_HEAD, {})
    bound.run()
    bound.buffers["logits"].read()
    assert opened.state.events.count("deserialize on 3") == 0
    assert opened.cuda.device == 3


def test_contexts_share_their_memory(opened: Opened) -> None:
    """One block for all that were loaded first, as large as the largest needs."""
    talker = opened.backend.talker(4)
    bound = [opened.backend.bind(graph, {}) for graph in (TAIL, AUDIO_DECODER)]
    arena = opened.backend.place.arena.take(1)
    assert arena.bytes == 512 * 64
    assert talker._slots._steps[0, 4]._run.execution._memory is arena
    assert all(graph._runs[0][1]._execution._memory is arena for graph in bound)


def _inputs(g: Geometry, slots: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    specs = {spec.name: spec.sized(slots) for spec in tail_spec(g).inputs}
    return {n: rng.standard_normal(s.shape, dtype=np.float32) for n, s in specs.items()}


def test_a_run_of_three_in_a_lane_of_four_leaves_the_fourth_alone(opened: Opened) -> None:
    g, backend = opened.folder.manifest.geometry, opened.backend
    tensors = {t.name: t for t in (*tail_spec(g).inputs, *tail_spec(g).outputs)}
    shared = {n: backend.buffer(tensors[n], 4) for n in ("hidden", "history", "embedding", "patch")}
    values = _inputs(g, 4)
    shared["hidden"].write(values["hidden"])
    shared["history"].write(values["history"])
    shared["embedding"].write(5.0)
    bound = backend.bind(TAIL, shared, slots=3)
    for name in ("initial_noise", "diffusion_noise", "guidance", "noise_scale"):
        bound.buffers[name].write(values[name][:3])
    bound.run()
    np.testing.assert_array_equal(shared["history"].read()[3], values["history"][3])
    assert (shared["embedding"].read()[3] == 5.0).all()
    assert not shared["patch"].read()[3].any()
    assert shared["patch"].read()[:3].all()
    assert set(backend._lanes) == {(TAIL, 4, 1)}


@pytest.mark.parametrize("slots", [2, 5])
def test_rows_from_the_first_asked_for_on(opened: Opened, slots: int) -> None:
    """Five slots are a run of four and one of one."""
    g, backend = opened.folder.manifest.geometry, opened.backend
    values = _inputs(g, slots + 2)
    expected = []
    for row in range(2, slots + 2):
        alone = backend.bind(TAIL, {})
        for name, value in values.items():
            alone.buffers[name].write(value[row : row + 1])
        alone.run()
        expected.append(alone.buffers["patch"].read()[0].copy())
    hidden = backend.buffer(tail_spec(g).inputs[0], slots + 2)
    hidden.write(values["hidden"])
    part = backend.bind(TAIL, {"hidden": hidden}, first=2, slots=slots)
    for name in set(values) - {"hidden"}:
        part.buffers[name].write(values[name][2:])
    part.run()
    assert relative_error(part.buffers["patch"].read(), np.stack(expected)) < 1e-5


def test_runs_of_one_graph_keep_their_state_apart(opened: Opened) -> None:
    """Two decoders in turns on the one captured graph give what each alone gives."""
    g = opened.folder.manifest.geometry
    rng = np.random.default_rng(1)
    patches = rng.standard_normal((2, 3, 1, g.patch, g.latent_dim), dtype=np.float32)

    def decode(bound: Any, index: int, step: int) -> np.ndarray:
        bound.buffers["latents"].write(patches[index, step])
        bound.buffers["latents_before"].write(step * g.patch)
        bound.buffers["valid"].write(g.patch)
        bound.buffers["is_last"].write(step == 2)
        bound.run()
        return bound.buffers["audio"].read().copy()

    alone = []
    for index in range(2):
        bound = opened.backend.bind(AUDIO_DECODER, {})
        alone.append([decode(bound, index, step) for step in range(3)])
    both = [opened.backend.bind(AUDIO_DECODER, {}) for _ in range(2)]
    for step in range(3):
        for index in range(2):
            np.testing.assert_array_equal(decode(both[index], index, step), alone[index][step])
    # All that goes in lies side by side, there as here, and is one copy.
    into, _, out = both[0]._runs[0]
    assert len(into) == 1
    assert len(out) <= 3


def test_two_talkers_at_once_are_two_and_one_that_ended_is_the_next(opened: Opened) -> None:
    one, two = opened.backend.talker(2), opened.backend.talker(2)
    slots = one._slots
    assert two._slots is not slots
    one.embedding.write(1.0)
    assert not two.embedding.read().any()
    del one
    again = opened.backend.talker(2)
    assert again._slots is slots
    assert not again.embedding.read().any()


def test_a_prompt_longer_than_the_cache_is_refused(opened: Opened) -> None:
    g = opened.folder.manifest.geometry
    talker = opened.backend.talker(1)
    for tokens in (0, g.cache_length + 1):
        with pytest.raises(MingError, match=f"a prompt of {tokens} tokens"):
            talker.prefill(np.zeros((tokens, g.talker_hidden), np.float32))


def test_compiled_kernels_are_kept_for_the_next_process(
    dense: Folders, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_folder(dense.bundle, tmp_path / "e")
    opened = reopen(folder)
    opened.backend.bind(TAIL, {})
    kept = list((tmp_path / "cache" / "ming-trt" / "tensorrt-rtx").iterdir())
    assert [path.suffix for path in kept] == [".cache"]
    assert sha256_of(folder / "tail.engine")[:32] in kept[0].name
    assert kept[0].read_bytes().startswith(b"kernels")
    kept[0].write_bytes(b"of another driver")
    reopen(folder).backend.bind(TAIL, {})
    # What does not work is a warning, and it speaks all the same.
    kept[0].unlink()
    kept[0].mkdir()
    (kept[0] / "in the way").touch()
    reopen(folder, "set_runtime_cache").backend.bind(TAIL, {}).run()
    assert "compiled kernels are not kept: the library does not take it" in caplog.text
    assert "compiled kernels were not kept" in caplog.text
