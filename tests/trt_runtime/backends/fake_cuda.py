"""cuda.bindings.runtime over host memory, held to the real module's names and arguments.

Work on a stream waits until somebody waits for it, copies from the host too, so that what is freed
or changed too early shows. Captures record; memory that is not there is an AssertionError.
"""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

real = pytest.importorskip("cuda.bindings.runtime")

_ALIGNMENT = 256
#: What freed memory is filled with: not finite as float32.
_POISON = 0xFF
Work = Callable[[], None]


class _Capture:
    def __init__(self) -> None:
        self.thread, self.work, self.broken = threading.get_ident(), [], False  # type: ignore[var-annotated]


class FakeCuda:
    """The functions that the backend calls. `failing`: by name, the error that a function gives.

    `calls` counts them; `device` is the device of all threads.
    """

    cudaError_t = real.cudaError_t
    cudaMemcpyKind = real.cudaMemcpyKind
    cudaStreamCaptureMode = real.cudaStreamCaptureMode
    cudaStreamNonBlocking = real.cudaStreamNonBlocking

    def __init__(self) -> None:
        self.failing: dict[str, Any] = {}
        self.calls: Counter[str] = Counter()
        self.device = 0
        self.selected: list[int] = []
        self._memory: dict[int, np.ndarray] = {}
        self._queues: dict[int, list[Work]] = {}
        self._captures: dict[int, _Capture] = {}
        self._graphs: dict[int, list[Work]] = {}
        self._executables: dict[int, list[Work]] = {}
        self._handles = iter(range(1000, 10**9))
        self.freed: list[tuple[int, int]] = []
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        implementation = getattr(type(self), "_" + name, None)
        if not name.startswith("cuda") or implementation is None:
            raise AttributeError(name)
        signature = inspect.signature(getattr(real, name))

        def call(*arguments: Any) -> tuple[Any, ...]:
            signature.bind(*arguments)
            with self._lock:
                self.calls[name] += 1
                error = self.failing.get(name) or implementation(self, *arguments)
            if isinstance(error, real.cudaError_t):
                return (error, None) if name in _GIVING else (error,)
            values = () if error is None else (error,)
            return (real.cudaError_t.cudaSuccess, *values)

        return call

    # What tests ask.

    @property
    def live(self) -> int:
        """Bytes that are allocated."""
        return sum(array.nbytes for array in self._memory.values())

    @property
    def left(self) -> dict[str, int]:
        """What was made and not destroyed, by kind."""
        return {
            "memory": len(self._memory), "streams": len(self._queues),
            "graphs": len(self._graphs), "executables": len(self._executables),
        }  # fmt: skip

    def bytes_at(self, pointer: int, size: int) -> np.ndarray:
        """A view of device memory, (size,) uint8; AssertionError where it is not allocated."""
        for base, array in self._memory.items():
            if base <= pointer and pointer + size <= base + array.nbytes:
                return array[pointer - base : pointer - base + size]
        gone = [f"freed {b}+{n}" for b, n in self.freed if b <= pointer < b + n]
        raise AssertionError(f"no device memory at {pointer}+{size} {gone}")

    def enqueue(self, stream: int, work: Work) -> None:
        """Adds work to a stream, or to the capture that is under way on it."""
        capture = self._captures.get(stream)
        if capture is None:
            self._queues[stream].append(work)
        else:
            assert capture.thread == threading.get_ident(), "captured by another thread"
            capture.work.append(work)

    def is_capturing(self, stream: int) -> bool:
        return stream in self._captures

    def break_capture(self, stream: int) -> None:
        self._captures[stream].broken = True

    # The functions, named as the real ones after an underscore; an error, a value or None.

    def _cudaGetErrorName(self, error: Any) -> bytes:
        return str(error.name).encode()

    def _cudaGetErrorString(self, error: Any) -> bytes:
        return b"said by the driver"

    def _cudaGetDevice(self) -> int:
        return self.device

    def _cudaSetDevice(self, device: int) -> None:
        self.device = device
        self.selected.append(device)

    def _cudaStreamCreateWithFlags(self, flags: int) -> Any:
        assert flags == real.cudaStreamNonBlocking
        handle = next(self._handles)
        self._queues[handle] = []
        return real.cudaStream_t(handle)

    def _cudaStreamDestroy(self, stream: Any) -> None:
        assert not self._queues.pop(int(stream)), "destroyed with work left"

    def _cudaStreamSynchronize(self, stream: Any) -> Any:
        if int(stream) in self._captures:
            self.break_capture(int(stream))
            return real.cudaError_t.cudaErrorStreamCaptureUnsupported
        self._drain(int(stream))
        return None

    def _drain(self, stream: int) -> None:
        queue, self._queues[stream] = self._queues[stream], []
        for work in queue:
            work()

    def _unsafe(self) -> Any:
        """What a thread that captures may not call."""
        for capture in self._captures.values():
            if capture.thread == threading.get_ident():
                capture.broken = True
                return real.cudaError_t.cudaErrorStreamCaptureUnsupported
        return None

    def _cudaMalloc(self, size: int) -> Any:
        assert size > 0
        if error := self._unsafe():
            return error
        array = np.full(size + _ALIGNMENT, _POISON, np.uint8)
        start = -array.ctypes.data % _ALIGNMENT
        array = array[start : start + size]
        self._memory[array.ctypes.data] = array
        return array.ctypes.data

    def _cudaFree(self, pointer: int) -> Any:
        if error := self._unsafe():
            return error
        for stream in list(self._queues):
            if stream not in self._captures:
                self._drain(stream)
        array = self._memory.pop(pointer)
        array[:] = _POISON
        self.freed.append((pointer, array.nbytes))
        return None

    def _cudaMemcpyAsync(self, to: int, source: int, count: int, kind: Any, stream: Any) -> None:
        kinds = real.cudaMemcpyKind
        for pointer, host in ((to, kinds.cudaMemcpyDeviceToHost),
                              (source, kinds.cudaMemcpyHostToDevice)):  # fmt: skip
            if kind != host:
                self.bytes_at(pointer, count)
        assert kind == kinds.cudaMemcpyDeviceToDevice or int(stream) not in self._captures

        def work() -> None:
            into = self._view(to, count, kind != kinds.cudaMemcpyDeviceToHost)
            into[:] = self._view(source, count, kind != kinds.cudaMemcpyHostToDevice)

        self.enqueue(int(stream), work)

    def _view(self, pointer: int, count: int, device: bool) -> np.ndarray:
        if device:
            return self.bytes_at(pointer, count)
        import ctypes

        return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(pointer))

    def _cudaMemsetAsync(self, pointer: int, value: int, count: int, stream: Any) -> None:
        self.bytes_at(pointer, count)
        self.enqueue(int(stream), lambda: self.bytes_at(pointer, count).fill(value))

    def _cudaStreamBeginCapture(self, stream: Any, mode: Any) -> Any:
        assert mode == real.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        if int(stream) in self._captures:
            return real.cudaError_t.cudaErrorIllegalState
        assert not self._queues[int(stream)], "captured while work was left"
        self._captures[int(stream)] = _Capture()
        return None

    def _cudaStreamEndCapture(self, stream: Any) -> Any:
        capture = self._captures.pop(int(stream))
        if capture.broken:
            return real.cudaError_t.cudaErrorStreamCaptureInvalidated
        handle = next(self._handles)
        self._graphs[handle] = capture.work
        return real.cudaGraph_t(handle)

    def _cudaGraphDestroy(self, graph: Any) -> None:
        del self._graphs[int(graph)]

    def _cudaGraphInstantiate(self, graph: Any, flags: int) -> Any:
        assert flags == 0
        handle = next(self._handles)
        self._executables[handle] = list(self._graphs[int(graph)])
        return real.cudaGraphExec_t(handle)

    def _cudaGraphExecDestroy(self, executable: Any) -> None:
        del self._executables[int(executable)]

    def _cudaGraphLaunch(self, executable: Any, stream: Any) -> None:
        for work in self._executables[int(executable)]:
            self.enqueue(int(stream), work)


#: Functions that give a value beside their status, also where they fail.
_GIVING = {
    "cudaGetDevice", "cudaStreamCreateWithFlags", "cudaMalloc", "cudaStreamEndCapture",
    "cudaGraphInstantiate", "cudaGetErrorName", "cudaGetErrorString",
}  # fmt: skip
