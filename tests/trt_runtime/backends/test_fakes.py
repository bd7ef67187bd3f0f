"""The fakes refuse what the real ones refuse or leave undefined: else they would prove nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings")
pytest.importorskip("tensorrt_rtx")

from tests.conftest import Folders
from tests.trt_runtime.backends.binding_signatures import counts, held_to
from tests.trt_runtime.backends.fake_cuda import FakeCuda
from tests.trt_runtime.backends.fake_cuda import real as runtime
from tests.trt_runtime.backends.fake_engines import Opened, open_fake
from tests.trt_runtime.backends.fake_tensorrt import real as tensorrt
from trt_runtime.backends import cuda_memory
from trt_runtime.backends.cuda_memory import CudaError, CudaStream
from trt_runtime.backends.device_array import device_arrays
from trt_runtime.tensorrt_library import TensorrtError


@pytest.fixture
def opened(dense: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return open_fake(dense.bundle, tmp_path / "e")


@pytest.mark.parametrize(
    ("kind", "method", "expected"),
    [
        ("IExecutionContext", "set_device_memory", [(2, 2)]),
        ("IExecutionContext", "set_input_shape", [(2, 2)] * 3),
        ("IRuntimeConfig", "set_runtime_cache", [(0, 1)]),
        ("ICudaEngine", "create_execution_context", [(0, 1)] * 2),
    ],
)
def test_argument_counts_are_read_from_docstrings(
    kind: str, method: str, expected: list[tuple[int, int]]
) -> None:
    assert counts(getattr(getattr(tensorrt, kind), method), method) == expected


class Invented:
    def execute_async_v9(self) -> bool:
        return True


class AsMethod:
    def device_memory_size_v2(self) -> int:
        return 1


class Settable:
    @property
    def num_io_tensors(self) -> int:
        return 1

    @num_io_tensors.setter
    def num_io_tensors(self, number: int) -> None:
        pass


class Fewer:
    def set_device_memory(self, *arguments: Any) -> None:
        pass


def test_a_fake_has_nothing_that_the_real_one_has_not() -> None:
    with pytest.raises(AssertionError, match="IExecutionContext has no execute_async_v9"):
        held_to(tensorrt.IExecutionContext)(Invented)
    with pytest.raises(AssertionError, match="says nothing of its arguments"):
        held_to(tensorrt.ICudaEngine)(AsMethod)
    with pytest.raises(AssertionError, match="num_io_tensors cannot be set"):
        held_to(tensorrt.ICudaEngine)(Settable)
    with pytest.raises(AssertionError, match=r"takes \[\(2, 2\)\] arguments, not 1"):
        held_to(tensorrt.IExecutionContext)(Fewer)().set_device_memory(1)
    with pytest.raises(AttributeError):
        FakeCuda().cudaMemcpyEverywhere  # noqa: B018
    with pytest.raises(TypeError, match="missing a required argument"):
        FakeCuda().cudaMalloc()


def test_memory_that_was_freed_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_memory, "_MOST_SPARE", 0)
    cuda = FakeCuda()
    stream = CudaStream(0, cuda)
    pointer = stream.allocate(100).pointer
    with stream.ordered():
        pass
    with pytest.raises(AssertionError, match=r"no device memory .* \['freed"):
        stream.fill(pointer, 100)
    array = stream.allocate(100)
    with pytest.raises(AssertionError, match="no device memory"):
        stream.fill(array.pointer, 101)


def test_one_capture_at_a_time_and_no_waiting_in_it() -> None:
    stream = CudaStream(0, FakeCuda())
    with pytest.raises(CudaError, match=r"cudaStreamSynchronize.*CaptureUnsupported"):
        stream.capture(lambda: stream.synchronize())
    stream._capturing = False

    def again() -> None:
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        stream.call("cudaStreamBeginCapture", stream._stream, mode)

    with pytest.raises(CudaError, match=r"cudaStreamBeginCapture.*cudaErrorIllegalState"):
        stream.capture(again)


def test_a_context_must_have_run_before_it_is_captured(opened: Opened) -> None:
    engine, _ = opened.backend.engine_of("tail")
    execution, stream = engine.execution(1), opened.backend.place.stream
    entry = engine.entry()
    specs = [tensor.sized(1) for tensor in (*entry.inputs, *entry.outputs)]
    for name, array in (held := device_arrays(stream, specs)).items():
        execution.address(name, array.pointer)
    with pytest.raises(TensorrtError, match="execute_async_v3"):
        stream.capture(execution.enqueue)
    with stream.ordered():
        execution.enqueue()
        stream.capture(execution.enqueue)
    assert held


def test_a_context_without_addresses_or_memory_does_not_run(opened: Opened) -> None:
    engine, _ = opened.backend.engine_of("tail")
    with pytest.raises(AssertionError, match="an address is missing"):
        engine.execution(1).enqueue()
    context = engine.make_context()
    with pytest.raises(AssertionError, match="a shape before its profile"):
        context.set_input_shape("hidden", (1, 1, 64))
