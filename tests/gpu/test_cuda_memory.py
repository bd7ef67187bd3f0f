"""Device memory on a real GPU: copies, rows, captures, and errors by their names."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

pytest.importorskip("cuda.bindings")

from trt_runtime.backends.cuda_memory import CudaError, CudaStream, DeviceMemoryError, import_cuda
from trt_runtime.backends.device_array import DeviceArray, copies, device_arrays
from trt_runtime.contract import TensorSpec

SPEC = TensorSpec("x", "float32", (4, 1000))


@pytest.fixture
def stream() -> CudaStream:
    return CudaStream()


def made(stream: CudaStream, *specs: TensorSpec) -> list[DeviceArray]:
    return list(device_arrays(stream, specs).values())


def test_values_come_back_and_rows_are_rows(stream: CudaStream) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(SPEC.shape, dtype=np.float32)
    (buffer,) = made(stream, SPEC)
    assert not buffer.read().any()
    buffer.write(values)
    np.testing.assert_array_equal(buffer.read(), values)
    rows = buffer.rows(TensorSpec("x", "float32", (2, 1000)), 1)
    np.testing.assert_array_equal(rows.read(), values[1:3])
    rows.write_slot(1, 0.0)
    buffer.copy_slot(0, 3)
    expected = np.stack([values[0], values[1], np.zeros(1000, np.float32), values[0]])
    np.testing.assert_array_equal(buffer.read(), expected)


@pytest.mark.parametrize("dtype", ["float16", "int64", "bool", "int32"])
def test_other_dtypes(stream: CudaStream, dtype: str) -> None:
    (buffer,) = made(stream, TensorSpec("x", dtype, (3, 7)))
    buffer.write(1)
    assert (buffer.read() == 1).all()


def test_many_writes_of_an_array_that_changes(stream: CudaStream) -> None:
    (buffer,) = made(stream, TensorSpec("x", "float32", (600, 100_000)))
    values = np.empty(100_000, np.float32)
    for row in range(600):
        values[:] = row
        buffer.write_slot(row, values)
    found = buffer.read()
    np.testing.assert_array_equal(found, np.arange(600)[:, None] * np.ones((1, 100_000)))


def test_tensors_side_by_side_are_copied_at_once(stream: CudaStream) -> None:
    specs = [TensorSpec(name, "float32", (4, 3)) for name in "abc"]
    ours, theirs = made(stream, *specs), made(stream, *specs)
    for number, array in enumerate(theirs):
        array.write(float(number + 1))
    merged = copies(list(zip(ours, theirs, strict=True)))
    assert len(merged) == 1
    stream.copy(*merged)
    assert [array.read()[0, 0] for array in ours] == [1, 2, 3]


def test_a_capture_replays_copies(stream: CudaStream) -> None:
    one, two, three = made(stream, *(TensorSpec(n, "float32", (8, 8)) for n in "abc"))

    def work() -> None:
        stream.copy((two.pointer, one.pointer, one.bytes))
        stream.copy((three.pointer, two.pointer, one.bytes))

    work()
    capture = stream.capture(work)
    for value in (2.0, 5.0):
        one.write(value)
        capture.launch()
        two.changed()
        three.changed()
        assert (two.read() == value).all()
        assert (three.read() == value).all()


def test_other_threads_allocate_while_one_captures(stream: CudaStream) -> None:
    """In the mode of a thread, what others do does not break it."""
    (one, two) = made(stream, SPEC, TensorSpec("y", "float32", SPEC.shape))
    other, failed, ready, done = CudaStream(), [], threading.Event(), threading.Event()

    def allocate() -> None:
        try:
            while not done.is_set():
                made(other, SPEC)[0].write(1.0)
                with other.ordered():
                    other.synchronize()
                ready.set()
        except BaseException as error:
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=allocate)
    thread.start()
    ready.wait(30)
    started = threading.Event()

    def work() -> None:
        stream.copy((two.pointer, one.pointer, one.bytes))
        ready.clear()
        started.set()
        # The other thread allocates and frees at least once within the capture.
        ready.wait(30)

    capture = stream.capture(work)
    done.set()
    thread.join()
    assert not failed, failed
    one.write(4.0)
    capture.launch()
    two.changed()
    assert (two.read() == 4.0).all()


def test_memory_let_go_of_in_a_capture_does_not_break_it(stream: CudaStream) -> None:
    held = [made(stream, SPEC)]
    capture = stream.capture(held.clear)
    capture.launch()
    with stream.ordered():
        stream.synchronize()


def test_what_breaks_a_capture_is_named_and_the_next_one_works(stream: CudaStream) -> None:
    with pytest.raises(CudaError, match=r"cudaMalloc\(\d+\): cudaErrorStreamCapture"):
        stream.capture(lambda: stream.allocate(1 << 20) and None)
    (buffer,) = made(stream, SPEC)
    stream.capture(lambda: buffer.write(0.0)).launch()


def test_errors_have_cudas_names(stream: CudaStream) -> None:
    with pytest.raises(DeviceMemoryError, match=r"cudaMalloc\(\d+\): cudaErrorMemoryAllocation: "):
        stream.allocate(1 << 50)
    # Not a copy from nowhere: a GPU that reads the host's pages would find out later, for good.
    with pytest.raises(CudaError, match=r"cudaSetDevice\(1000\): cudaErrorInvalidDevice: "):
        stream.call("cudaSetDevice", 1000)
    (buffer,) = made(stream, SPEC)
    buffer.write(1.0)
    assert (buffer.read() == 1.0).all()


def test_all_is_given_back() -> None:
    runtime = import_cuda()
    stream = CudaStream()
    made(stream, SPEC)
    with stream.ordered():
        stream.synchronize()
    _, before, _ = runtime.cudaMemGetInfo()
    arrays = made(stream, TensorSpec("x", "float32", (64 << 20,)))
    _, within, _ = runtime.cudaMemGetInfo()
    assert before - within >= 256 << 20
    del stream, arrays
    gc.collect()
    _, after, _ = runtime.cudaMemGetInfo()
    assert after >= before - (16 << 20)
