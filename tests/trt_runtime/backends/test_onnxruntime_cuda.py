"""The CUDA backend on a CPU: buckets, rows, whose state is whose. Captures: `tests/gpu`."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from engines import build_engines
from tests.conftest import Folders
from tests.goldens import relative_error
from tests.trt_runtime.backends.cuda_on_cpu import GraphLoop, open_on_cpu
from trt_runtime.backends import onnxruntime_cuda
from trt_runtime.backends.device_buffer import Place
from trt_runtime.backends.device_weights import load_weights
from trt_runtime.backends.onnxruntime_cuda import CudaBackend, bucket
from trt_runtime.batch import Batch, Slot
from trt_runtime.contract import AUDIO_DECODER, TAIL, tail_spec
from trt_runtime.errors import FolderError, UserError
from trt_runtime.folder import OpenFolder, open_folder
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import StoredTensor, read_manifest
from trt_runtime.synthesizer import Synthesizer
from trt_runtime.tail import UnrolledTail

#: Between one order of float32 sums and another: engines of a CPU and those of a GPU fuse others.
ROUNDING = 2e-5


@pytest.fixture(scope="module")
def cuda(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_engines(folders.bundle, tmp_path_factory.mktemp("cuda") / "e", target="cuda")


@pytest.fixture
def loops() -> list[GraphLoop]:
    return []


@pytest.fixture
def opened(folders: Folders, cuda: Path, loops: list[GraphLoop]) -> OpenFolder:
    return open_on_cpu(cuda, folders.engines, loops)


@pytest.fixture
def backend(opened: OpenFolder) -> CudaBackend:
    assert isinstance(opened.backend, CudaBackend)
    return opened.backend


def test_speech_is_that_of_the_cpus_engines(opened: OpenFolder, folders: Folders) -> None:
    options: dict[str, Any] = {"seed": 3, "max_steps": 6, "min_steps": 6, "trace": True}
    ours = Synthesizer(opened).synthesize("Hello.", **options)
    theirs = Synthesizer(open_folder(folders.engines)).synthesize("Hello.", **options)
    assert ours.trace is not None
    assert theirs.trace is not None
    assert (ours.steps, ours.finish_reason) == (theirs.steps, theirs.finish_reason)
    assert relative_error(ours.trace.latents, theirs.trace.latents) < ROUNDING
    assert relative_error(ours.audio, theirs.audio) < ROUNDING


def test_submitted_requests_share_a_loop_and_are_as_alone(
    opened: OpenFolder, loops: list[GraphLoop]
) -> None:
    options: dict[str, Any] = {"max_steps": 5, "min_steps": 5, "trace": True}
    synthesizer = Synthesizer(opened, slots=3)
    submitted = [synthesizer.submit("Hello.", seed=seed, **options) for seed in range(4)]
    together = [submission.result() for submission in submitted]
    synthesizer.close()
    assert max(count for what, count in loops[0].calls if what == "decode") > 1
    synthesizer = Synthesizer(opened)
    for seed, found in enumerate(together):
        alone = synthesizer.synthesize("Hello.", seed=seed, **options)
        assert found.trace is not None
        assert alone.trace is not None
        assert relative_error(found.trace.latents, alone.trace.latents) < ROUNDING


def test_the_next_request_uses_the_loop_of_one_that_ended(
    opened: OpenFolder, loops: list[GraphLoop]
) -> None:
    synthesizer = Synthesizer(opened)
    first = synthesizer.synthesize("Hello.", seed=3, max_steps=3)
    gc.collect()
    again = synthesizer.synthesize("Hello.", seed=3, max_steps=3)
    assert len(loops) == 1
    np.testing.assert_array_equal(first.audio, again.audio)


def test_two_talkers_at_once_have_a_loop_each(backend: CudaBackend, loops: list[GraphLoop]) -> None:
    one, two = backend.talker(2), backend.talker(2)
    assert len(loops) == 2
    one.embedding.write(1.0)
    assert not two.embedding.read().any()
    del one
    gc.collect()
    # It is handed out again, and what was left in it is gone.
    assert not backend.talker(2).embedding.read().any()
    assert len(loops) == 2


@pytest.mark.parametrize(("slots", "captured"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 16)])
def test_numbers_of_slots_share_few_captures(slots: int, captured: int) -> None:
    assert bucket(slots) == captured


def _inputs(g: Geometry, slots: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    specs = {spec.name: spec.sized(slots) for spec in tail_spec(g).inputs}
    return {n: rng.standard_normal(s.shape, dtype=np.float32) for n, s in specs.items()}


def test_a_run_of_three_in_a_lane_of_four_leaves_the_fourth_alone(
    backend: CudaBackend, opened: OpenFolder
) -> None:
    g = opened.manifest.geometry
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
    assert set(backend._lanes) == {(TAIL, 4)}


def test_rows_from_the_first_asked_for_on(backend: CudaBackend, opened: OpenFolder) -> None:
    g = opened.manifest.geometry
    values = _inputs(g, 4)
    names = ("initial_noise", "diffusion_noise", "guidance", "noise_scale", "hidden", "history")
    whole = backend.bind(TAIL, {}, slots=4)
    for name in names:
        whole.buffers[name].write(values[name])
    whole.run()
    expected = whole.buffers["patch"].read().copy()
    hidden = backend.buffer(tail_spec(g).inputs[0], 4)
    hidden.write(values["hidden"])
    part = backend.bind(TAIL, {"hidden": hidden}, first=2, slots=2)
    for name in names[:4]:
        part.buffers[name].write(values[name][2:])
    part.buffers["history"].write(values["history"][2:])
    part.run()
    assert relative_error(part.buffers["patch"].read(), expected[2:]) < ROUNDING


def test_runs_of_one_graph_keep_their_state_apart(backend: CudaBackend, opened: OpenFolder) -> None:
    """Two decoders in turns on the one captured graph give what each alone gives."""
    g = opened.manifest.geometry
    rng = np.random.default_rng(1)
    patches = rng.standard_normal((2, 4, 1, g.patch, g.latent_dim), dtype=np.float32)

    def decode(bound: Any, index: int, step: int) -> np.ndarray:
        bound.buffers["latents"].write(patches[index, step])
        bound.buffers["latents_before"].write(step * g.patch)
        bound.buffers["valid"].write(g.patch)
        bound.buffers["is_last"].write(step == 3)
        bound.run()
        return bound.buffers["audio"].read().copy()

    alone = []
    for index in range(2):
        bound = backend.bind(AUDIO_DECODER, {})
        alone.append([decode(bound, index, step) for step in range(4)])
    both = [backend.bind(AUDIO_DECODER, {}) for _ in range(2)]
    for step in range(4):
        for index in range(2):
            np.testing.assert_array_equal(decode(both[index], index, step), alone[index][step])
    assert len(backend._lanes) == 1


class _Requests:
    """Requests in a batch, with noise of their own."""

    def __init__(self, backend: CudaBackend, g: Geometry, slots: int) -> None:
        self.batch, self._g = Batch(backend, g, slots), g
        self._noise: dict[Slot, np.random.Generator] = {}

    def join(self, seed: int) -> Slot:
        g, rng = self._g, np.random.default_rng(seed)
        history = np.zeros((g.history, g.latent_dim), np.float32)
        slot = self.batch.join(guidance=2.0, noise_scale=0.25, history=history)
        slot.prefill(0.1 * rng.standard_normal((5 + seed, g.talker_hidden), dtype=np.float32))
        self._noise[slot] = rng
        return slot

    def step(self) -> None:
        g = self._g
        for slot, rng in self._noise.items():
            slot.draw(
                rng.standard_normal((g.patch, g.latent_dim), dtype=np.float32),
                rng.standard_normal((g.solver_steps - 1, g.patch, g.latent_dim), dtype=np.float32),
            )
        self.batch.step()

    def leave(self, slot: Slot) -> None:
        del self._noise[slot]
        slot.leave()


def test_a_request_is_the_same_among_others_that_come_and_go(
    backend: CudaBackend, opened: OpenFolder
) -> None:
    g = opened.manifest.geometry
    assert isinstance(Batch(backend, g).tail, UnrolledTail)
    requests = _Requests(backend, g, 1)
    slot, alone = requests.join(2), []
    for _ in range(5):
        requests.step()
        alone.append(slot.patch.copy())
    requests = _Requests(backend, g, 4)
    first = requests.join(1)
    requests.step()
    slot, among = requests.join(2), []
    third = requests.join(3)
    for step in range(5):
        requests.step()
        among.append(slot.patch.copy())
        if step == 1:
            requests.leave(first)
        if step == 2:
            requests.leave(third)
    assert relative_error(np.stack(among), np.stack(alone)) < ROUNDING


def test_buffers_read_what_was_last_written_by_whomever(
    backend: CudaBackend, opened: OpenFolder
) -> None:
    spec = tail_spec(opened.manifest.geometry).inputs[0]
    buffer = backend.buffer(spec, 3)
    assert not buffer.read().any()
    rows = buffer.rows(spec.sized(2), 1)
    rows.write(np.float32(2.0))
    assert (buffer.read()[1:] == 2.0).all()
    assert not buffer.read()[0].any()
    buffer.write_slot(0, 7.0)
    buffer.copy_slot(0, 2)
    assert (rows.read()[1] == 7.0).all()
    with pytest.raises(ValueError, match="does not fit"):
        buffer.rows(spec.sized(2), 2)
    with pytest.raises(ValueError, match="does not fit"):
        buffer.rows(replace(spec, dtype="int64"), 0)


def test_weights_are_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trt_runtime.backends.device_weights._PIECE_BYTES", 100)
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((7, 33)).astype(ml_dtypes.bfloat16)
    vector = rng.standard_normal(50, dtype=np.float32)
    (tmp_path / "w").write_bytes(matrix.tobytes() + bytes(2) + vector.tobytes())
    size = matrix.nbytes
    tensors = {
        "m": StoredTensor("w", "bfloat16", (7, 33), 0, size),
        "v": StoredTensor("w", "float32", (50,), size + 2, 200),
    }
    loaded = load_weights(tmp_path, tensors, Place("cpu"))
    assert {name: str(t.dtype) for name, t in loaded.items()} == {
        "m": "torch.bfloat16",
        "v": "torch.float32",
    }
    np.testing.assert_array_equal(loaded["m"].float().numpy(), matrix.astype(np.float32))
    np.testing.assert_array_equal(loaded["v"].numpy(), vector)


def test_a_graph_that_does_not_load_is_named(cuda: Path, folders: Folders, tmp_path: Path) -> None:
    for path in cuda.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tail.onnx").write_bytes(b"no graph")
    with pytest.raises(FolderError, match=r"cannot run .*tail\.onnx(?s:.*)--target cuda"):
        open_on_cpu(tmp_path, folders.engines)


def test_an_onnxruntime_without_cuda_is_refused() -> None:
    ort = SimpleNamespace(get_available_providers=lambda: ["CPUExecutionProvider"])
    with pytest.raises(
        UserError, match=r"has no CUDA(?s:.*)CUDAExecutionProvider(?s:.*)onnxruntime-gpu"
    ):
        onnxruntime_cuda._check_provider(ort)


def test_a_session_that_fell_back_to_the_processor_is_refused(
    backend: CudaBackend, cuda: Path
) -> None:
    """As ONNX Runtime does where CUDA's libraries do not load, but for the error that it logs."""
    asked: list[Any] = []

    class Session:
        def __init__(self, path: str, options: Any, providers: Any) -> None:
            asked.append((options, providers))

        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    ort = backend._ort
    backend._ort = SimpleNamespace(
        SessionOptions=ort.SessionOptions, GraphOptimizationLevel=ort.GraphOptimizationLevel,
        InferenceSession=Session, __version__="1",
    )  # fmt: skip
    backend.place.stream = SimpleNamespace(cuda_stream=123)
    with pytest.raises(UserError, match=r"cannot use the GPU(?s:.*)CPUExecutionProvider"):
        backend._load(TAIL)
    options, ((provider, values),) = asked[0]
    assert provider == "CUDAExecutionProvider"
    assert values["enable_cuda_graph"] == "1"
    assert values["use_tf32"] == "0"
    assert values["user_compute_stream"] == "123"
    assert options.get_session_config_entry("session.disable_cpu_ep_fallback") == "1"
    assert read_manifest(cuda).target == "cuda"
