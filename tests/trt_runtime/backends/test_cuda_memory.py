"""Device memory over a fake of CUDA; over a real one: `tests/gpu/test_cuda_memory.py`."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("cuda.bindings")

from tests.trt_runtime.backends.fake_cuda import FakeCuda
from tests.trt_runtime.backends.fake_cuda import real as cuda_runtime
from trt_runtime.backends import cuda_memory
from trt_runtime.backends.cuda_memory import CudaError, CudaStream, import_cuda
from trt_runtime.backends.device_array import DeviceArray, copies, device_arrays
from trt_runtime.contract import TensorSpec
from trt_runtime.errors import MingError, UserError

SPEC = TensorSpec("x", "float32", (3, 5))


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture(autouse=True)
def _no_spare_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the fake sees what is used after nobody has it."""
    monkeypatch.setattr(cuda_memory, "_MOST_SPARE", 0)


@pytest.fixture
def stream(cuda: FakeCuda) -> CudaStream:
    return CudaStream(0, cuda)


def made(stream: CudaStream, *specs: TensorSpec) -> list[DeviceArray]:
    return list(device_arrays(stream, specs).values())


def test_buffers_read_what_was_last_written_by_whomever(stream: CudaStream) -> None:
    (buffer,) = made(stream, SPEC)
    assert not buffer.read().any()
    rows = buffer.rows(replace(SPEC, shape=(2, 5)), 1)
    rows.write(np.float32(2.0))
    assert (buffer.read()[1:] == 2.0).all()
    assert not buffer.read()[0].any()
    buffer.write_slot(0, 7.0)
    buffer.copy_slot(0, 2)
    assert (rows.read()[1] == 7.0).all()
    rows.write_slot(0, 0.0)
    assert not buffer.read()[1].any()
    for wrong, first in ((replace(SPEC, shape=(2, 5)), 2), (replace(SPEC, dtype="int64"), 0)):
        with pytest.raises(ValueError, match="does not fit"):
            buffer.rows(wrong, first)


def test_reading_fetches_once_until_something_changes(stream: CudaStream, cuda: FakeCuda) -> None:
    (buffer,) = made(stream, SPEC)
    rows = [buffer.rows(replace(SPEC, shape=(1, 5)), row) for row in range(3)]
    before = cuda.calls["cudaMemcpyAsync"]
    for row in rows:
        row.read()
    assert cuda.calls["cudaMemcpyAsync"] == before + 1
    rows[1].changed()
    buffer.read()
    assert cuda.calls["cudaMemcpyAsync"] == before + 2


def test_what_is_written_may_change_afterwards(stream: CudaStream) -> None:
    """The copies have not run when the next one is asked for, and what they copy is gone."""
    (buffer,) = made(stream, TensorSpec("x", "float32", (400, 1000)))
    values = np.ones(1000, np.float32)
    for row in range(400):
        values[:] = row
        buffer.write_slot(row, values)
    gc.collect()
    np.testing.assert_array_equal(buffer.read()[:, 7], np.arange(400))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
def test_other_dtypes(stream: CudaStream, dtype: str) -> None:
    (buffer,) = made(stream, TensorSpec("x", dtype, (2, 3)))
    buffer.write(True)
    assert buffer.read().dtype == np.dtype(dtype)
    assert (buffer.read() == 1).all()


def test_bfloat16_is_zeros_and_copies(stream: CudaStream, cuda: FakeCuda) -> None:
    (buffer,) = made(stream, TensorSpec("cache", "bfloat16", (2, 3)))
    memory = cuda.bytes_at(buffer.pointer, buffer.bytes).view(ml_dtypes.bfloat16)
    stream.download(np.empty(1, np.uint8), buffer.pointer)
    memory[:] = np.arange(6)
    buffer.copy_slot(0, 1)
    buffer.write_slot(0, 0.0)
    stream.download(np.empty(1, np.uint8), buffer.pointer)
    np.testing.assert_array_equal(memory.astype(np.float32), [0, 0, 0, 0, 1, 2])
    for use in (buffer.read, lambda: buffer.write(1.0), lambda: buffer.write(np.zeros(3))):
        with pytest.raises(MingError, match="cache is bfloat16"):
            use()


def test_tensors_side_by_side_are_one_copy(stream: CudaStream, cuda: FakeCuda) -> None:
    specs = [TensorSpec(name, "float32", (4, 3)) for name in "abcd"]
    ours, theirs = made(stream, *specs), made(stream, *specs)
    pairs = list(zip(ours, theirs, strict=True))
    assert len(copies(pairs)) == 1
    assert len(copies([pairs[0], pairs[1], pairs[3]])) == 2
    assert len(copies([(ours[0], theirs[1]), (ours[1], theirs[0])])) == 2
    # Of some rows each is one: behind them lie the tensor's others.
    part = replace(specs[0], shape=(3, 3))
    few = [(a.rows(part, 0), b.rows(part, 0)) for a, b in pairs]
    assert len(copies(few)) == 4
    for number, array in enumerate(theirs):
        array.write(float(number + 1))
    stream.copy(*copies(few))
    for number, array in enumerate(ours):
        assert (array.read()[:3] == number + 1).all()
        assert not array.read()[3].any()


def test_a_capture_replays_what_was_enqueued(stream: CudaStream, cuda: FakeCuda) -> None:
    one, two = made(stream, SPEC, replace(SPEC, name="y"))
    capture = stream.capture(lambda: stream.copy((two.pointer, one.pointer, one.bytes)))
    one.write(3.0)
    assert not two.read().any()
    capture.launch()
    two.changed()
    assert (two.read() == 3.0).all()
    assert cuda.left["graphs"] == 0
    assert cuda.left["executables"] == 1
    del capture
    stream.allocate(1)
    assert cuda.left["executables"] == 0


def _fail() -> None:
    raise KeyError("broken on the way")


def test_a_capture_that_breaks_ends(stream: CudaStream, cuda: FakeCuda) -> None:
    with pytest.raises(KeyError, match="broken on the way"):
        stream.capture(_fail)
    with pytest.raises(CudaError, match=r"cudaMalloc\(5\): cudaErrorStreamCaptureUnsupported"):
        stream.capture(lambda: print(stream.allocate(5)))
    assert cuda.left["graphs"] == 0
    stream.capture(lambda: None)
    stream.allocate(5)


def test_memory_let_go_of_in_a_capture_is_freed_after_it(
    stream: CudaStream, cuda: FakeCuda
) -> None:
    held = [made(stream, SPEC)]

    def work() -> None:
        held.clear()
        with stream.ordered():
            pass

    stream.capture(work)
    assert cuda.left["memory"] == 1
    with stream.ordered():
        assert cuda.left["memory"] == 0


def test_memory_that_nobody_uses_is_the_nexts(
    stream: CudaStream, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_memory, "_MOST_SPARE", 300)
    waited = cuda.calls["cudaStreamSynchronize"]
    pointers = set()
    for _ in range(5):
        (array,) = made(stream, TensorSpec("x", "float32", (64,)))
        assert array.is_whole
        pointers.add(array.pointer)
        del array
    assert len(pointers) == 1
    assert (cuda.calls["cudaMalloc"], cuda.calls["cudaFree"]) == (1, 0)
    assert cuda.calls["cudaStreamSynchronize"] == waited
    # No more than that: the next one is freed, after the work that may use it.
    one, two = stream.allocate(256), stream.allocate(257)
    stream.fill(two.pointer, 257)
    del one, two
    stream.allocate(10)
    assert cuda.calls["cudaFree"] == 1
    assert cuda.calls["cudaStreamSynchronize"] > waited


def test_spare_memory_is_freed_before_there_is_none(
    stream: CudaStream, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_memory, "_MOST_SPARE", 1 << 20)
    stream.allocate(1000)
    allocate = FakeCuda._cudaMalloc

    def limited(self: FakeCuda, size: int) -> object:
        error = cuda_runtime.cudaError_t.cudaErrorMemoryAllocation
        return error if self.live + size > 1500 else allocate(self, size)

    monkeypatch.setattr(FakeCuda, "_cudaMalloc", limited)
    held = stream.allocate(1400)
    with pytest.raises(MemoryError):
        stream.allocate(1300)
    assert held.bytes == 1400


def test_all_is_freed_with_the_stream(cuda: FakeCuda) -> None:
    stream = CudaStream(0, cuda)
    arrays, capture = made(stream, SPEC), stream.capture(lambda: None)
    arrays[0].write(1.0)
    del stream
    arrays[0].read()
    del arrays, capture
    gc.collect()
    assert cuda.left == {"memory": 0, "streams": 0, "graphs": 0, "executables": 0}


def test_a_thread_keeps_its_own_gpu(cuda: FakeCuda) -> None:
    cuda.device = 2
    stream = CudaStream(1, cuda)
    (buffer,) = made(stream, SPEC)
    buffer.write(1.0)
    buffer.read()
    assert cuda.device == 2
    assert set(cuda.selected) == {1, 2}


def test_without_the_bindings_there_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(UserError, match=r"cuda-bindings(?s:.*)pip install 'ming-trt\[tensorrt\]'"):
        import_cuda()


def test_on_a_machine_without_a_driver_the_error_is_cudas_own() -> None:
    runtime = import_cuda()
    if runtime.cudaGetDeviceCount()[0] == runtime.cudaError_t.cudaSuccess:
        pytest.skip("there is a GPU")
    with pytest.raises(CudaError, match=r"^cuda\w+\(.*\): cudaError\w+: \w+"):
        CudaStream()
