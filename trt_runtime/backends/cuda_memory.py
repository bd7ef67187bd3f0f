"""Device memory, one stream and captured graphs, through CUDA's own Python bindings: no torch.

All work of a backend is on one stream, so that it happens in the order in which it was asked. Names
of functions are those of the CUDA runtime API (https://docs.nvidia.com/cuda/cuda-runtime-api).
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from trt_runtime.errors import MingError, UserError

#: Where cudaMalloc's memory begins at least, and what TensorRT asks of a tensor's address.
ALIGNMENT = 256
#: Bytes of device memory kept for who next asks for as much, so that requests that come and go
#: neither allocate nor wait: freeing memory waits for the whole GPU.
_MOST_SPARE = 256 << 20
#: Host arrays kept for copies that may still run; so many, and the host waits for them.
_MOST_KEPT = 256


class CudaError(MingError):
    """A call of CUDA's that failed: which one, and what CUDA says of it."""


class DeviceMemoryError(CudaError, MemoryError):
    """The GPU has no memory left for what was asked."""


def import_cuda() -> Any:
    """cuda.bindings.runtime; a UserError with the command that installs it where it is missing."""
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from error
        raise UserError(
            "CUDA's Python bindings are not installed or cannot be loaded",
            expected="the package cuda-bindings, which the extras tensorrt and tensorrt-rtx bring",
            found=str(error),
            do="pip install 'ming-trt[tensorrt]' or 'ming-trt[tensorrt-rtx]'",
        ) from error
    return runtime


def call(runtime: Any, function: str, *arguments: Any) -> Any:
    """Calls a function of the runtime API; its value, or None where it gives nothing but a status.

    Raises CudaError, or DeviceMemoryError where that is what is missing.
    """
    status, *values = getattr(runtime, function)(*arguments)
    if status != runtime.cudaError_t.cudaSuccess:
        (_, name), (_, words) = runtime.cudaGetErrorName(status), runtime.cudaGetErrorString(status)
        full = status == runtime.cudaError_t.cudaErrorMemoryAllocation
        said = " ".join(f"{function}{_shown(arguments)}: {name.decode()}: {words.decode()}".split())
        raise (DeviceMemoryError if full else CudaError)(said)
    return values[0] if values else None


def _shown(arguments: tuple[Any, ...]) -> str:
    return f"({', '.join(str(a) for a in arguments if isinstance(a, int))})"


class CudaStream:
    """A GPU and a stream of its own, which orders the work of one backend.

    Any thread may call it; one at a time works on it. The calling thread's own choice of a device
    is put back after every call. `handle` is the stream as an address. `runtime` is that of
    :func:`import_cuda`, but in tests.
    """

    def __init__(self, device: int = 0, runtime: Any = None) -> None:
        self.runtime = import_cuda() if runtime is None else runtime
        self.device = device
        self._lock = threading.RLock()
        self._capturing = False
        self._kept: list[np.ndarray] = []
        #: What nobody refers to any more, for the next call or the stream's end: which function of
        #: the runtime API ends it, and of memory how many bytes.
        self._discarded: deque[tuple[str, Any, int]] = deque()
        #: Memory that nobody uses, by its bytes.
        self._spare: dict[int, list[int]] = {}
        self._spare_bytes = 0
        with self._selected():
            self._stream = self.call(
                "cudaStreamCreateWithFlags", self.runtime.cudaStreamNonBlocking
            )
        self.handle = int(self._stream)
        weakref.finalize(
            self, _end_stream, self.runtime, device, self._stream, self._discarded, self._spare
        )

    def call(self, function: str, *arguments: Any) -> Any:
        """See :func:`call`. Within `ordered`."""
        return call(self.runtime, function, *arguments)

    @contextmanager
    def ordered(self) -> Iterator[None]:
        """Within it this thread has the stream to itself, and its GPU is the thread's."""
        with self._lock, self._selected():
            if self._discarded and not self._capturing:
                self._end_discarded()
            yield

    @contextmanager
    def _selected(self) -> Iterator[None]:
        before = self.call("cudaGetDevice")
        if before == self.device:
            yield
            return
        self.call("cudaSetDevice", self.device)
        try:
            yield
        finally:
            self.call("cudaSetDevice", before)

    def discard(self, function: str, thing: Any, size: int = 0) -> None:
        """Calls `function` of the runtime API with `thing`, or drops it (""), when it is safe.

        Not at once: the garbage collector may be who calls, in the middle of a capture, which
        freeing memory would break, and what the stream still uses must outlive its work. `size`:
        the bytes of memory, which the next may have instead.
        """
        self._discarded.append((function, thing, size))

    def _end_discarded(self) -> None:
        waited = False
        while self._discarded:
            function, thing, size = self._discarded.popleft()
            if 0 < size <= _MOST_SPARE - self._spare_bytes:
                # Whatever still uses it comes before the next user's work: there is one stream.
                self._spare.setdefault(size, []).append(thing)
                self._spare_bytes += size
                continue
            if not waited:
                self.synchronize()
                waited = True
            if function:
                self.call(function, thing)
            del thing

    def allocate(self, size: int) -> Allocation:
        """`size` bytes of the device's memory, not set to anything."""
        with self.ordered():
            size = max(size, 1)
            if spare := self._spare.get(size):
                self._spare_bytes -= size
                return Allocation(self, spare.pop(), size)
            try:
                pointer = self.call("cudaMalloc", size)
            except DeviceMemoryError:
                if not self._spare_bytes:
                    raise
                _free_spare(self.runtime, self._spare)
                self._spare_bytes = 0
                pointer = self.call("cudaMalloc", size)
            return Allocation(self, int(pointer), size)

    def upload(self, pointer: int, values: np.ndarray) -> None:
        """Copies a contiguous array to the device. The array must not change afterwards."""
        with self.ordered():
            # CUDA stages pageable memory before it returns, except on systems whose GPU reads the
            # host's pages itself: there the array must live until it was read.
            if len(self._kept) >= _MOST_KEPT:
                self.synchronize()
            self._kept.append(values)
            self._copy(pointer, values.ctypes.data, values.nbytes, "cudaMemcpyHostToDevice")

    def download(self, values: np.ndarray, pointer: int) -> None:
        """Fills a contiguous array from the device; waits for all that the stream was given."""
        with self.ordered():
            self._copy(values.ctypes.data, pointer, values.nbytes, "cudaMemcpyDeviceToHost")
            self.synchronize()

    def copy(self, *copies: tuple[int, int, int]) -> None:
        """Copies on the device: each to an address, from an address, so many bytes."""
        with self.ordered():
            for to, source, size in copies:
                self._copy(to, source, size, "cudaMemcpyDeviceToDevice")

    def fill(self, pointer: int, size: int) -> None:
        """Sets `size` bytes of the device's memory to zero."""
        with self.ordered():
            self.call("cudaMemsetAsync", pointer, 0, size, self._stream)

    def synchronize(self) -> None:
        """Waits until the stream has done all that it was given."""
        self.call("cudaStreamSynchronize", self._stream)
        self._kept.clear()

    def _copy(self, to: int, source: int, size: int, kind: str) -> None:
        way = getattr(self.runtime.cudaMemcpyKind, kind)
        self.call("cudaMemcpyAsync", to, source, size, way, self._stream)

    def capture(self, work: Callable[[], None]) -> Capture:
        """What `work` enqueues on this stream as a graph; it does not run yet.

        `work` must have run before: what it does the first time, as to allocate or to load kernels,
        cannot be captured. Other threads may use the GPU meanwhile: the capture is of this thread.
        """
        with self.ordered(), _no_garbage_collection():
            self.synchronize()
            mode = self.runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
            self.call("cudaStreamBeginCapture", self._stream, mode)
            self._capturing = True
            try:
                work()
            except BaseException:
                # The capture must end, and its own error would hide what broke it.
                with suppress(CudaError):
                    graph = self.call("cudaStreamEndCapture", self._stream)
                    self.call("cudaGraphDestroy", graph)
                raise
            finally:
                self._capturing = False
            graph = self.call("cudaStreamEndCapture", self._stream)
            try:
                return Capture(self, self.call("cudaGraphInstantiate", graph, 0))
            finally:
                self.call("cudaGraphDestroy", graph)

    def launch(self, executable: Any) -> None:
        with self.ordered():
            self.call("cudaGraphLaunch", executable, self._stream)


class Allocation:
    """Device memory from `pointer` on, freed when nothing refers to it any more."""

    def __init__(self, stream: CudaStream, pointer: int, size: int) -> None:
        self.pointer, self.bytes = pointer, size
        weakref.finalize(self, stream.discard, "cudaFree", pointer, size)


class Capture:
    """A captured graph, ready to be launched; destroyed when nothing refers to it any more."""

    def __init__(self, stream: CudaStream, executable: Any) -> None:
        self._stream, self._executable = stream, executable
        weakref.finalize(self, stream.discard, "cudaGraphExecDestroy", executable)

    def launch(self) -> None:
        """Enqueues all of it on its stream."""
        self._stream.launch(self._executable)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Objects of libraries free device memory when they are collected, which breaks a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _free_spare(runtime: Any, spare: dict[int, list[int]]) -> None:
    """Frees memory that nobody uses; waits for what used it."""
    for pointers in spare.values():
        while pointers:
            call(runtime, "cudaFree", pointers.pop())


def _end_stream(
    runtime: Any,
    device: int,
    stream: Any,
    discarded: deque[tuple[str, Any, int]],
    spare: dict[int, list[int]],
) -> None:
    """Frees all that was left to the stream, and it. Nobody is there to be told of an error."""
    with suppress(CudaError):
        before = call(runtime, "cudaGetDevice")
        call(runtime, "cudaSetDevice", device)
        try:
            call(runtime, "cudaStreamSynchronize", stream)
            while discarded:
                function, thing, _ = discarded.popleft()
                if function:
                    call(runtime, function, thing)
                del thing
            _free_spare(runtime, spare)
            call(runtime, "cudaStreamDestroy", stream)
        finally:
            call(runtime, "cudaSetDevice", before)
