"""ONNX Runtime on a CUDA GPU, and the talker by our own kernels: engine folders of target `cuda`.

A graph has one session, with its weights once on the device, and a captured CUDA graph for each of
a few numbers of slots. A capture knows its addresses, so each has tensors of its own: a bound graph
copies its rows in, replays, and copies them out. However many requests come and go, nothing is
captured twice, and a graph of four slots that runs three writes nothing of anybody's fourth.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from trt_runtime.backends.device_buffer import INSTALL, DeviceBuffer, Place
from trt_runtime.backends.device_weights import load_weights
from trt_runtime.backends.idle_talkers import IdleTalkers
from trt_runtime.backends.interface import Talker
from trt_runtime.backends.onnxruntime_cpu import check_session, import_onnxruntime
from trt_runtime.backends.plugin_talker import Loop, PluginTalker
from trt_runtime.backends.row_binding import bind_rows, buffer_name
from trt_runtime.contract import ON_DEMAND, TALKER, TensorSpec
from trt_runtime.errors import FolderError, UserError
from trt_runtime.manifest import GraphEntry, Manifest, rebuild_command
from trt_runtime.talker_kernels import kernel_sizes

log = logging.getLogger(__name__)

_PROVIDER = "CUDAExecutionProvider"
#: Runs after which a session's memory is as large as it gets: it plans from what the first needed.
_SETTLING_RUNS = 3
_Result = TypeVar("_Result")


class _Lane:
    """A session for one number of slots: tensors that nobody else writes, bound and captured."""

    def __init__(self, session: Any, entry: GraphEntry, slots: int, place: Place) -> None:
        self._session, self._place = session, place
        self._options = import_onnxruntime().RunOptions()
        #: By the name of the graph's tensor. State is never written in place: what a session fuses
        #: when it loads may read it twice, and it is copied out for its owner in any case.
        self.tensors: dict[str, Any] = {}
        self._binding = session.io_binding()
        for tensor in entry.inputs:
            self._bind(self._binding.bind_input, tensor.sized(slots))
        for tensor in entry.outputs:
            self._bind(self._binding.bind_output, tensor.sized(slots))
        if place.stream is not None:
            self._capture(slots)

    def _capture(self, slots: int) -> None:
        """On zeros, so that nobody's state is advanced: captured, a graph cannot allocate."""
        settling = import_onnxruntime().RunOptions()
        settling.add_run_config_entry("gpu_graph_id", "-1")
        for _ in range(_SETTLING_RUNS):
            self._session.run_with_iobinding(self._binding, settling)
        self._options.add_run_config_entry("gpu_graph_id", str(slots))
        self.run()

    def _bind(self, bind: Callable[..., None], spec: TensorSpec) -> None:
        device = self._place.device
        tensor = self.tensors[spec.name] = self._place.zeros(spec.shape, spec.dtype)
        bind(
            spec.name, device.type, device.index or 0, np.dtype(spec.dtype).type,
            list(spec.shape), tensor.data_ptr(),
        )  # fmt: skip

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding, self._options)


class CudaBoundGraph:
    """See :class:`trt_runtime.backends.interface.BoundGraph`."""

    def __init__(
        self,
        backend: CudaBackend,
        lane: _Lane,
        entry: GraphEntry,
        buffers: Mapping[str, DeviceBuffer],
        *,
        first: int,
        slots: int,
    ) -> None:
        self._backend, self._lane = backend, lane
        self.buffers: dict[str, DeviceBuffer] = bind_rows(
            entry, buffers, first=first, slots=slots,
            make=lambda specs: {s.name: DeviceBuffer(backend.place, s) for s in specs},
        )  # fmt: skip
        into: list[tuple[Any, Any]] = []
        out: list[tuple[Any, Any]] = []
        for tensors, pairs in ((entry.inputs, into), (entry.outputs, out)):
            for tensor in tensors:
                mine = self.buffers[buffer_name(entry, tensor.name)].tensor
                own = lane.tensors[tensor.name]
                own = own[:slots] if tensor.by_slot else own
                pairs.append((own, mine) if pairs is into else (mine, own))
        self._into, self._out = _by_type(into), _by_type(out)
        self._written = [self.buffers[buffer_name(entry, t.name)] for t in entry.outputs]

    def run(self) -> None:
        self._backend.call(self._run)
        for buffer in self._written:
            buffer.changed()

    def _run(self) -> None:
        copy = self._backend.place.torch._foreach_copy_
        for targets, sources in self._into:
            copy(targets, sources)
        self._lane.run()
        for targets, sources in self._out:
            copy(targets, sources)


def _by_type(pairs: Iterable[tuple[Any, Any]]) -> list[tuple[list[Any], list[Any]]]:
    """(target, source) pairs as lists for one launch a type."""
    groups: dict[Any, tuple[list[Any], list[Any]]] = {}
    for target, source in pairs:
        targets, sources = groups.setdefault(target.dtype, ([], []))
        targets.append(target)
        sources.append(source)
    return list(groups.values())


class CudaBackend:
    """Loads what speaking needs of a folder; see `interface.Backend`.

    `device` is CUDA's first, but in tests, which run all of this on a CPU. `make_loop(weights,
    slots)` makes the talker's loop, where a test has one of its own.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        *,
        device: str = "cuda:0",
        make_loop: Callable[[dict[str, Any], int], Loop] | None = None,
    ) -> None:
        self.place = Place(device)
        self._folder, self._manifest = folder, manifest
        self._sizes = kernel_sizes(manifest.components[TALKER].sizes)
        self._make_loop = make_loop or self._plugin_loop
        self._ort = import_onnxruntime()
        # ONNX Runtime keeps its captures a thread, so that one thread makes and replays all.
        self._worker = ThreadPoolExecutor(1, "ming-trt-cuda")
        if self.place.stream is not None:
            _check_provider(self._ort)
            if hasattr(self._ort, "preload_dlls"):
                self._ort.preload_dlls()
        started = time.perf_counter()
        self._sessions: dict[str, Any] = {}
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._idle: IdleTalkers[Loop] = IdleTalkers()
        self._weights = load_weights(folder, manifest.components[TALKER].tensors, self.place)
        log.info("the talker's weights: %.2f s", time.perf_counter() - started)
        for name in manifest.graphs:
            if name not in ON_DEMAND:
                self.call(partial(self._session, name))

    def call(self, work: Callable[[], _Result]) -> _Result:
        """Does the work on the backend's own thread, in the order of its stream."""

        def ordered() -> _Result:
            with self.place.ordered():
                return work()

        return self._worker.submit(ordered).result()

    def has(self, graph: str) -> bool:
        return graph in self._manifest.graphs

    def buffer(self, spec: TensorSpec, slots: int = 1) -> DeviceBuffer:
        return DeviceBuffer(self.place, spec.sized(slots))

    def bind(
        self, graph: str, buffers: Mapping[str, DeviceBuffer], *, first: int = 0, slots: int = 1
    ) -> CudaBoundGraph:
        entry = self._manifest.graphs[graph]
        lane = self.call(partial(self._lane, graph, bucket(slots)))
        return CudaBoundGraph(self, lane, entry, buffers, first=first, slots=slots)

    def talker(self, slots: int = 1) -> Talker:
        """One that nobody uses any more, or a new one: making it compiles and captures."""
        make = partial(self._make_loop, self._weights, slots)
        loop = self._idle.take(slots, lambda: self.call(make))
        talker = PluginTalker(self.place, loop)
        self._idle.keep_after(talker, slots, loop)
        return talker

    def _plugin_loop(self, weights: dict[str, Any], slots: int) -> Loop:
        from trt_runtime.plugins.loop import PluginLoop

        length = self._manifest.geometry.cache_length
        return PluginLoop(self._sizes, weights, slots=slots, cache_length=length)

    def _lane(self, graph: str, slots: int) -> _Lane:
        if (graph, slots) not in self._lanes:
            entry = self._manifest.graphs[graph]
            session = self._session(graph)
            self._lanes[graph, slots] = _Lane(session, entry, slots, self.place)
        return self._lanes[graph, slots]

    def _session(self, name: str) -> Any:
        if name not in self._sessions:
            self._sessions[name] = self._load(name)
        return self._sessions[name]

    def _load(self, name: str) -> Any:
        entry = self._manifest.graphs[name]
        options = self._ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        options.graph_optimization_level = self._ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        # Weights beside the arena, which would keep twice of what grew it.
        options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
        providers: list[Any] = ["CPUExecutionProvider"]
        stream = self.place.stream
        if stream is not None:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
            providers = [(_PROVIDER, self._provider_options(stream))]
        path = self._folder / entry.file
        try:
            session = self._ort.InferenceSession(str(path), options, providers=providers)
        except Exception as error:  # onnxruntime has a dozen classes without a common base
            raise FolderError(
                f"ONNX Runtime {self._ort.__version__} cannot run {path} on the GPU",
                expected="a graph that build-engines wrote, and CUDA libraries of the same version",
                found=str(error).splitlines()[0] if str(error) else type(error).__name__,
                do="ming-trt doctor shows what is installed; build it again: "
                + rebuild_command(self._manifest, self._folder),
            ) from error
        if stream is not None and session.get_providers()[0] != _PROVIDER:
            raise UserError(
                "ONNX Runtime cannot use the GPU",
                expected=_PROVIDER,
                found=", ".join(session.get_providers()),
                do=f"install CUDA libraries that fit it: {INSTALL}; ming-trt doctor shows more",
            )
        check_session(path, entry, session)
        return session

    def _provider_options(self, stream: Any) -> dict[str, str]:
        return {
            "device_id": str(self.place.device.index or 0),
            "user_compute_stream": str(stream.cuda_stream),
            "enable_cuda_graph": "1",
            # Float32 is what the folder promises.
            "use_tf32": "0",
            "arena_extend_strategy": "kSameAsRequested",
        }


def bucket(slots: int) -> int:
    """The number of slots that is captured for so many: the next power of two."""
    return 1 << (slots - 1).bit_length()


def _check_provider(ort: Any) -> None:
    found = ort.get_available_providers()
    if _PROVIDER not in found:
        raise UserError(
            "The ONNX Runtime that is installed has no CUDA",
            expected=_PROVIDER,
            found=", ".join(found),
            do=f"pip uninstall onnxruntime, then {INSTALL}",
        )
