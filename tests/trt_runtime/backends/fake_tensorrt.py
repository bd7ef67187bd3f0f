"""TensorRT-RTX and TensorRT whose engines run a bundle's graphs on ONNX Runtime, on fake_cuda.

Classes are held to those of the real binding (`binding_signatures`). A serialised engine is a line
of JSON behind a magic word. What the real library leaves undefined is an AssertionError here.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest

from tests.trt_runtime.backends.binding_signatures import held_to
from tests.trt_runtime.backends.engine_folders import MAGIC, VERSION, engine_entry
from tests.trt_runtime.backends.fake_cuda import FakeCuda
from trt_runtime.contract import NEXT, TALKER, TensorSpec
from trt_runtime.manifest import GraphEntry, read_manifest
from trt_runtime.tensorrt_library import Library, _make_logger

real = pytest.importorskip("tensorrt_rtx")

_DTYPES = {"float32": "FLOAT", "bfloat16": "BF16", "float16": "HALF", "int64": "INT64",
           "bool": "BOOL"}  # fmt: skip


class State:
    """What a fake library remembers. `failing`: names of methods that fail.

    `contexts` counts them by component, slots and tokens; `addressed` how often an address was set,
    by component, context and tensor; `events` are deserialisations and what tests add.
    """

    def __init__(self, cuda: FakeCuda, *, rtx: bool) -> None:
        self.cuda, self.rtx = cuda, rtx
        self.failing: set[str] = set()
        self.contexts: Counter[tuple[str, int, int]] = Counter()
        self.addressed: Counter[tuple[str, int, str]] = Counter()
        self.events: list[str] = []
        self.capturable = True
        self.alive = 0
        self.says: Any = None

    def fails(self, name: str) -> bool:
        if name in self.failing:
            self.says(real.ILogger.ERROR, f"the library says that {name} failed")
        return name in self.failing


@held_to(real.IRuntimeCache)
class Cache:
    def __init__(self) -> None:
        self._kernels = b""

    def deserialize(self, blob: Any) -> bool:
        self._kernels = bytes(blob)
        return self._kernels.startswith(b"kernels")

    def serialize(self) -> Any:
        return self._kernels or b"kernels of this GPU"


@held_to(real.IRuntimeConfig)
class Config:
    def __init__(self, state: State) -> None:
        self._state, self._strategy, self._specialization, self._graphs = state, None, None, None
        self._cache: Cache | None = None

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
        self._strategy = strategy

    def create_runtime_cache(self) -> Cache:
        self._state.events.append("cache")
        return Cache()

    def set_runtime_cache(self, cache: Cache) -> bool:
        self._cache = cache
        return not self._state.fails("set_runtime_cache")

    @property
    def dynamic_shapes_kernel_specialization_strategy(self) -> Any:
        return self._specialization

    @dynamic_shapes_kernel_specialization_strategy.setter
    def dynamic_shapes_kernel_specialization_strategy(self, strategy: Any) -> None:
        self._specialization = strategy

    @property
    def cuda_graph_strategy(self) -> Any:
        return self._graphs

    @cuda_graph_strategy.setter
    def cuda_graph_strategy(self, strategy: Any) -> None:
        self._graphs = strategy


@held_to(real.IExecutionContext)
class Context:
    def __init__(self, engine: Engine) -> None:
        self._engine, self._state = engine, engine._state
        self._profile: int | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._memory: tuple[int, int] | None = None
        self._ran = False
        self._state.alive += 1

    def __del__(self) -> None:
        self._state.alive -= 1

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        if self._state.fails("set_optimization_profile_async"):
            return False
        assert stream_handle in self._state.cuda._queues
        self._profile = profile_index
        key = self._engine._name, *self._engine._profiles[profile_index]
        self._state.contexts[key] += 1  # type: ignore[index]
        return True

    def set_device_memory(self, memory: int, size: int) -> None:
        self._state.cuda.bytes_at(memory, size)
        self._memory = (memory, size)

    def set_input_shape(self, name: str, shape: Any) -> bool:
        assert self._profile is not None, "a shape before its profile"
        assert isinstance(shape, tuple | list)
        if self._state.fails("set_input_shape"):
            return False
        fits = tuple(shape) == self._engine._shape(name, self._profile)
        if fits:
            self._shapes[name] = tuple(shape)
        return fits

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if self._state.fails("set_tensor_address") or name not in self._engine._tensors:
            return False
        assert memory % 256 == 0
        assert not self._state.cuda._captures
        self._state.addressed[self._engine._name, id(self), name] += 1
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        engine, cuda, profile = self._engine, self._state.cuda, self._profile
        if self._state.fails("execute_async_v3"):
            return False
        if cuda.is_capturing(stream_handle) and not self._ran:
            cuda.break_capture(stream_handle)
            return False
        assert profile is not None
        assert set(self._shapes) == set(engine._of("INPUT", profile)), "a shape is missing"
        assert set(self._addresses) == set(engine._tensors), "an address is missing"
        assert self._memory is not None
        assert self._memory[1] >= engine.device_memory_size_v2, "too little memory"
        addresses, memory = dict(self._addresses), self._memory
        for name, pointer in addresses.items():
            cuda.bytes_at(pointer, engine._bytes(name, profile))
        for name in engine._aliased:
            assert addresses[name] == addresses[name + NEXT], "state in place has two places"
        self._ran = True

        def work() -> None:
            cuda.bytes_at(*memory).fill(0xFF)
            engine._run(profile, addresses)

        cuda.enqueue(stream_handle, work)
        return True


@held_to(real.IExecutionContext)
class RtxContext(Context):
    def is_stream_capturable(self, stream: int) -> bool:
        return self._state.capturable


@held_to(real.ICudaEngine)
class Engine:
    """One component of a bundle."""

    def __init__(self, state: State, described: dict[str, Any]) -> None:
        self._state, self._name = state, described["component"]
        self._profiles = [tuple(profile) for profile in described["profiles"]]
        self._budget, self._host = 0, described.get("host")
        bundle = Path(described["bundle"])
        graphs = {
            name: engine_entry(entry, described["cache_dtype"], described["in_place"])
            for name, entry in read_manifest(bundle).graphs.items()
            if entry.component == self._name
        }
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self._graphs: dict[int, tuple[GraphEntry, Any]] = {}
        for name, entry in graphs.items():
            tokens = int(name.rsplit("_", 1)[1]) if self._name == TALKER else 1
            path = str(bundle / read_manifest(bundle).graphs[name].file)
            self._graphs[tokens] = (entry, onnxruntime.InferenceSession(path, options))
        entry = self._graphs[min(self._graphs)][0]
        self._tensors = {t.name: ("INPUT", t.dtype) for t in entry.inputs}
        self._tensors |= {t.name: ("OUTPUT", t.dtype) for t in entry.outputs}
        self._aliased = entry.in_place

    def _spec(self, name: str, profile: int) -> TensorSpec:
        slots, tokens = self._profiles[profile]
        entry = self._graphs[tokens][0]
        specs = {t.name: t for t in (*entry.inputs, *entry.outputs)}
        return specs[name].sized(slots)

    def _shape(self, name: str, profile: int) -> tuple[int, ...]:
        return self._spec(name, profile).shape

    def _bytes(self, name: str, profile: int) -> int:
        spec = self._spec(name, profile)
        return math.prod(spec.shape) * _numpy(spec.dtype).itemsize

    def _of(self, mode: str, profile: int) -> list[str]:
        return [name for name, (is_, _) in self._tensors.items() if is_ == mode]

    def _run(self, profile: int, addresses: dict[str, int]) -> None:
        def view(name: str) -> np.ndarray:
            spec = self._spec(name, profile)
            raw = self._state.cuda.bytes_at(addresses[name], self._bytes(name, profile))
            return raw.view(_numpy(spec.dtype)).reshape(spec.shape)

        entry, session = self._graphs[self._profiles[profile][1]]
        feeds = {t.name: view(t.name) for t in entry.inputs}
        half = {name for name, value in feeds.items() if value.dtype.itemsize == 2}
        feeds = {n: v.astype(np.float32) if n in half else v.copy() for n, v in feeds.items()}
        names = [t.name for t in entry.outputs]
        for name, value in zip(names, session.run(names, feeds), strict=True):
            view(name)[...] = value

    @property
    def num_io_tensors(self) -> int:
        return len(self._tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._profiles)

    @property
    def streamable_weights_size(self) -> int:
        return 4096 if self._name == TALKER else 0

    @property
    def weight_streaming_budget_v2(self) -> int:
        return self._budget

    @weight_streaming_budget_v2.setter
    def weight_streaming_budget_v2(self, budget: int) -> None:
        self._budget = 1 if self._state.fails("weight_streaming_budget_v2") else budget

    @property
    def device_memory_size_v2(self) -> int:
        return max(
            self.get_device_memory_size_for_profile_v2(i) for i in range(len(self._profiles))
        )

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        slots, tokens = self._profiles[profile_index]
        return 512 * slots * tokens

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_mode(self, name: str) -> Any:
        return getattr(real.TensorIOMode, self._tensors[name][0])

    def get_tensor_dtype(self, name: str) -> Any:
        return getattr(real.DataType, _DTYPES[self._tensors[name][1]])

    def get_tensor_location(self, name: str) -> Any:
        return real.TensorLocation.HOST if name == self._host else real.TensorLocation.DEVICE

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Any]:
        return [real.Dims(self._shape(name, profile_index))] * 3

    def create_execution_context(self, strategy: Any) -> Any:
        assert strategy == real.ExecutionContextAllocationStrategy.USER_MANAGED
        return None if self._state.fails("create_execution_context") else Context(self)


@held_to(real.ICudaEngine)
class RtxEngine(Engine):
    def get_aliased_input_tensor(self, name: str) -> Any:
        source = name.removesuffix(NEXT)
        return source if name != source and source in self._aliased else None

    def create_runtime_config(self) -> Config:
        return Config(self._state)

    def create_execution_context(self, runtime_config: Config) -> Any:
        strategies = real.DynamicShapesKernelSpecializationStrategy
        allocation = real.ExecutionContextAllocationStrategy.USER_MANAGED
        assert runtime_config._strategy == allocation
        assert runtime_config.dynamic_shapes_kernel_specialization_strategy == strategies.EAGER
        assert runtime_config.cuda_graph_strategy == real.CudaGraphStrategy.DISABLED
        return None if self._state.fails("create_execution_context") else RtxContext(self)


@held_to(real.Runtime)
class Runtime:
    def __init__(self, state: State, logger: Any) -> None:
        self._state, self._host_code = state, False
        state.says = logger.log

    def deserialize_cuda_engine(self, serialized_engine: Any) -> Any:
        self._state.events.append(f"deserialize on {self._state.cuda.device}")
        content = bytes(memoryview(serialized_engine))
        try:
            if not content.startswith(MAGIC) or self._state.fails("deserialize_cuda_engine"):
                raise ValueError("magic tag does not match")
            kind = RtxEngine if self._state.rtx else Engine
            return kind(self._state, json.loads(content.removeprefix(MAGIC)))
        except ValueError as error:
            self._state.says(real.ILogger.ERROR, f"Serialization error: {error}")
            return None

    @property
    def engine_host_code_allowed(self) -> bool:
        return self._host_code

    @engine_host_code_allowed.setter
    def engine_host_code_allowed(self, allowed: bool) -> None:
        self._state.events.append(f"host code {allowed}")
        self._host_code = allowed


@held_to(real.Runtime)
class RtxRuntime(Runtime):
    @property
    def engine_header_size(self) -> int:
        return len(MAGIC)

    def get_engine_validity(self, buffer: Any) -> tuple[Any, int]:
        if self._state.fails("get_engine_validity"):
            return real.EngineValidity.INVALID, 1 | 4
        valid = bytes(buffer) == MAGIC
        return (real.EngineValidity.VALID, 0) if valid else (real.EngineValidity.INVALID, 32)


def fake_library(cuda: FakeCuda, target: str = "tensorrt-rtx") -> tuple[Library, State]:
    """A library for the target, and what is remembered of it."""
    state = State(cuda, rtx=target == "tensorrt-rtx")
    module = SimpleNamespace(
        Runtime=lambda logger: (RtxRuntime if state.rtx else Runtime)(state, logger),
        ExecutionContextAllocationStrategy=real.ExecutionContextAllocationStrategy,
        __version__=VERSION,
    )
    if target == "tensorrt-rtx":
        names = (
            "DynamicShapesKernelSpecializationStrategy", "CudaGraphStrategy", "EngineValidity",
            "EngineInvalidityDiagnostics",
        )  # fmt: skip
        vars(module).update({name: getattr(real, name) for name in names})
    library = Library(target, target.replace("-", "_"), VERSION, module, _make_logger(real))
    return library, state


def _numpy(dtype: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
