"""Engines that are ONNX Runtime's CUDA sessions, in place of TensorRT's where that is missing.

What of TensorRT's interface the backend calls, over real device addresses on the backend's own
stream: all of the backend runs, and its captures are real. Only the arena is nobody's.
"""

from __future__ import annotations

import ctypes
import json
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.trt_runtime.backends.engine_folders import MAGIC, VERSION, engine_entry
from trt_runtime.contract import SLOTS, TALKER
from trt_runtime.manifest import read_manifest
from trt_runtime.tensorrt_library import Library

_DTYPES = {"float32": "FLOAT", "int64": "INT64", "bool": "BOOL"}
#: Runs after which a session allocates no more: the first plans its memory, the next have it.
_SETTLING_RUNS = 3


class Context:
    """A session of an engine, bound to addresses."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._profile = engine, 0
        self._addresses: dict[str, int] = {}
        self._binding: Any = None
        self._settled = False

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self._profile, self._stream = profile, stream
        return True

    def set_device_memory(self, memory: int, size: int) -> None:
        pass

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        return shape == self._engine.shape(name, self._profile)

    def set_tensor_address(self, name: str, pointer: int) -> bool:
        self._addresses[name], self._binding = pointer, None
        return True

    def execute_async_v3(self, stream: int) -> bool:
        import onnxruntime

        session = self._engine.session(self._profile, stream)
        if self._binding is None:
            self._bind(session)
        options = onnxruntime.RunOptions()
        # The backend waits where it must; within a capture nobody may.
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        for _ in range(1 if self._settled else _SETTLING_RUNS):
            session.run_with_iobinding(self._binding, options)
        self._settled = True
        return True

    def _bind(self, session: Any) -> None:
        self._binding = session.io_binding()
        entry, _ = self._engine.graph(self._profile)
        for tensors, bind in (
            (entry.inputs, self._binding.bind_input),
            (entry.outputs, self._binding.bind_output),
        ):
            for tensor in tensors:
                shape = self._engine.shape(tensor.name, self._profile)
                kind = np.dtype(tensor.dtype).type
                bind(tensor.name, "cuda", 0, kind, list(shape), self._addresses[tensor.name])


class Engine:
    """A component: a session for each profile, made when it first runs."""

    streamable_weights_size = 0
    device_memory_size_v2 = 256

    def __init__(self, described: dict[str, Any]) -> None:
        self._folder = Path(described["bundle"])
        self._profiles = [tuple(profile) for profile in described["profiles"]]
        self._graphs: dict[int, tuple[Any, str]] = {}
        for name, entry in read_manifest(self._folder).graphs.items():
            if entry.component == described["component"]:
                tokens = int(name.rsplit("_", 1)[1]) if entry.component == TALKER else 1
                self._graphs[tokens] = engine_entry(entry, "float32", False), entry.file
        self._sessions: dict[int, Any] = {}
        entry, _ = next(iter(self._graphs.values()))
        self._tensors = {t.name: ("INPUT", t.dtype) for t in entry.inputs}
        self._tensors |= {t.name: ("OUTPUT", t.dtype) for t in entry.outputs}
        self.num_io_tensors = len(self._tensors)
        self.num_optimization_profiles = len(self._profiles)

    def graph(self, profile: int) -> tuple[Any, str]:
        """Entry and file of a profile's graph."""
        return self._graphs[self._profiles[profile][1]]

    def shape(self, name: str, profile: int) -> tuple[int, ...]:
        entry, _ = self.graph(profile)
        specs = {t.name: t for t in (*entry.inputs, *entry.outputs)}
        shape: tuple[int, ...] = specs[name].sized(self._profiles[profile][0]).shape
        return shape

    def session(self, profile: int, stream: int) -> Any:
        import onnxruntime

        if profile not in self._sessions:
            slots, _ = self._profiles[profile]
            options = onnxruntime.SessionOptions()
            options.log_severity_level, options.intra_op_num_threads = 3, 1
            # Of a free axis a shape would be computed on the host, which no replay sees.
            options.add_free_dimension_override_by_name(SLOTS, slots)
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
            provided = {"user_compute_stream": str(stream), "use_tf32": "0"}
            self._sessions[profile] = onnxruntime.InferenceSession(
                str(self._folder / self.graph(profile)[1]), options,
                providers=[("CUDAExecutionProvider", provided)],
            )  # fmt: skip
            _keep_for_ever(self._sessions[profile])
        return self._sessions[profile]

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_mode(self, name: str) -> Any:
        return SimpleNamespace(name=self._tensors[name][0])

    def get_tensor_dtype(self, name: str) -> Any:
        return SimpleNamespace(name=_DTYPES[self._tensors[name][1]])

    def get_tensor_location(self, name: str) -> Any:
        return SimpleNamespace(name="DEVICE")

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[tuple[int, ...]]:
        return [self.shape(name, profile)] * 3

    def create_execution_context(self, strategy: str) -> Context:
        assert strategy == "user managed"
        return Context(self)


class Runtime:
    def __init__(self, logger: Any) -> None:
        pass

    def deserialize_cuda_engine(self, serialized: Any) -> Engine:
        return Engine(json.loads(bytes(serialized).removeprefix(MAGIC)))


def _keep_for_ever(session: Any) -> None:
    """One reference too many, so that nothing frees the session, the interpreter's end included.

    Freed, it launches on the stream that it was given, which the backend has ended by then, and
    ends the process (ONNX Runtime 1.31). TensorRT's contexts are freed before their stream.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


def onnxruntime_library() -> Library:
    """A library for the target `tensorrt`."""
    strategies = SimpleNamespace(USER_MANAGED="user managed")
    module = SimpleNamespace(Runtime=Runtime, ExecutionContextAllocationStrategy=strategies)
    logger = SimpleNamespace(errors=deque())
    return Library("tensorrt", "onnxruntime", VERSION, module, logger)
