"""TensorRT and TensorRT-RTX: engine folders of the targets `tensorrt` and `tensorrt-rtx`.

A component has one engine, with its weights once on the device, and a captured CUDA graph for each
of its profiles that is used. A capture knows its addresses, so each has tensors of its own, a lane:
a bound graph copies its rows in, replays, and copies them out. However many requests come and go,
nothing is captured twice, and a lane of four slots that runs three writes nothing of anybody's
fourth. All work is on one stream, whichever thread asks for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trt_runtime.backends.cuda_memory import CudaStream
from trt_runtime.backends.device_array import Copy, DeviceArray, copies, device_arrays
from trt_runtime.backends.idle_talkers import IdleTalkers
from trt_runtime.backends.row_binding import bind_rows, buffer_name
from trt_runtime.backends.tensorrt_engine import Arena, Engine, Place, pieces
from trt_runtime.backends.tensorrt_talker import TalkerEngine, TalkerSlots, TensorrtTalker
from trt_runtime.contract import ON_DEMAND, TALKER, TensorSpec, talker_graph_name
from trt_runtime.cuda_devices import cuda_devices
from trt_runtime.manifest import Manifest
from trt_runtime.tensorrt_library import Library, load_library

log = logging.getLogger(__name__)


class _Lane:
    """A profile's context: tensors that nobody else writes, bound once and captured once."""

    def __init__(self, engine: Engine, slots: int, tokens: int) -> None:
        entry = engine.entry(tokens)
        in_place = {t.name: buffer_name(entry, t.name) for t in entry.outputs}
        in_place = {new: old for new, old in in_place.items() if old in entry.in_place}
        own = [t.sized(slots) for t in (*entry.inputs, *entry.outputs) if t.name not in in_place]
        #: By the name of the graph's tensor; state in place has one for input and output.
        self.tensors = device_arrays(engine.place.stream, own)
        self.tensors |= {new: self.tensors[old] for new, old in in_place.items()}
        # Held, since its context is what the capture runs.
        self._execution = engine.execution(slots, tokens)
        for name, tensor in self.tensors.items():
            self._execution.address(name, tensor.pointer)
        self._capture = self._execution.capture(self._execution.enqueue)

    def run(self) -> None:
        self._capture.launch()


class TensorrtBoundGraph:
    """See :class:`trt_runtime.backends.interface.BoundGraph`."""

    def __init__(
        self,
        backend: TensorrtBackend,
        graph: str,
        given: Mapping[str, DeviceArray],
        *,
        first: int,
        slots: int,
    ) -> None:
        self._stream = backend.place.stream
        engine, tokens = backend.engine_of(graph)
        entry = engine.entry(tokens)
        self.buffers: dict[str, DeviceArray] = bind_rows(
            entry, given, first=first, slots=slots,
            make=lambda specs: device_arrays(self._stream, specs),
        )  # fmt: skip
        by_slot = any(tensor.by_slot for tensor in entry.inputs)
        self._runs: list[tuple[tuple[Copy, ...], _Lane, tuple[Copy, ...]]] = []
        for at, size, rows in pieces(slots if by_slot else 1, engine.sizes(tokens)):
            lane = backend.lane(engine, size, tokens)

            def pair(
                tensor: TensorSpec, lane: _Lane = lane, at: int = at, rows: int = rows
            ) -> tuple[DeviceArray, DeviceArray]:
                mine = self.buffers[buffer_name(entry, tensor.name)]
                own, part = lane.tensors[tensor.name], tensor.sized(rows)
                if not tensor.by_slot:
                    return own, mine
                return own.rows(part, 0), mine.rows(part, at)

            into = copies([pair(tensor) for tensor in entry.inputs])
            out = copies([pair(tensor)[::-1] for tensor in entry.outputs])
            self._runs.append((into, lane, out))
        self._written = [self.buffers[buffer_name(entry, t.name)] for t in entry.outputs]

    def run(self) -> None:
        with self._stream.ordered():
            for into, lane, out in self._runs:
                self._stream.copy(*into)
                lane.run()
                self._stream.copy(*out)
        for buffer in self._written:
            buffer.changed()


class TensorrtBackend:
    """Loads what speaking needs of a folder; see `interface.Backend`.

    The GPU is CUDA's first. `library` and `cuda` are those of :func:`load_library` and
    :func:`~trt_runtime.backends.cuda_memory.import_cuda`, but in tests.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, *, library: Library | None = None, cuda: Any = None
    ) -> None:
        library = library or load_library(manifest.target)
        started = time.perf_counter()
        stream = CudaStream(0, cuda)
        with stream.ordered():
            # It executes code out of the folder, which only such engines ask for.
            host_code = not library.is_rtx and manifest.machine.get("version_compatible") is True
            runtime = library.make_runtime(host_code=host_code)
        gpu = next((f"{d.name}-{d.compute_capability}" for d in cuda_devices()), "gpu")
        self.place = Place(library, runtime, stream, Arena(stream), gpu)
        self._folder, self._manifest = folder, manifest
        self._engines: dict[str, Engine] = {}
        self._lanes: dict[tuple[str, int, int], _Lane] = {}
        self._idle: IdleTalkers[TalkerSlots] = IdleTalkers()
        for name, entry in manifest.graphs.items():
            if name not in ON_DEMAND:
                self._engine(entry.component)
        self._talker = TalkerEngine(self._engine(TALKER), manifest.geometry)
        # Once, for the largest: what is loaded on demand takes more only where it needs more.
        self.place.arena.take(max(engine.activation_bytes for engine in self._engines.values()))
        log.info(
            "%s %s: %d engines in %.2f s",
            library.name, library.version, len(self._engines), time.perf_counter() - started,
        )  # fmt: skip

    def has(self, graph: str) -> bool:
        return graph in self._manifest.graphs

    def buffer(self, spec: TensorSpec, slots: int = 1) -> DeviceArray:
        return device_arrays(self.place.stream, [spec.sized(slots)])[spec.name]

    def bind(
        self, graph: str, buffers: Mapping[str, DeviceArray], *, first: int = 0, slots: int = 1
    ) -> TensorrtBoundGraph:
        return TensorrtBoundGraph(self, graph, buffers, first=first, slots=slots)

    def talker(self, slots: int = 1) -> TensorrtTalker:
        """One that nobody uses any more, or a new one: making it captures its numbers of slots."""
        shared = self._talker
        with self.place.stream.ordered():
            kept = self._idle.take(slots, lambda: TalkerSlots(shared, slots))
            shared.engine.keep_kernels()
            talker = TensorrtTalker(kept)
        self._idle.keep_after(talker, slots, kept)
        return talker

    def engine_of(self, graph: str) -> tuple[Engine, int]:
        """The engine that runs a graph, and the tokens that a call of it takes."""
        engine = self._engine(self._manifest.graphs[graph].component)
        tokens = (of for _, of in engine.profiles if graph == talker_graph_name(of))
        return engine, next(tokens, 1)

    def lane(self, engine: Engine, slots: int, tokens: int) -> _Lane:
        """The captured graph of a profile, which all that bind it share."""
        key = (engine.component, slots, tokens)
        with self.place.stream.ordered():
            if key not in self._lanes:
                self._lanes[key] = _Lane(engine, slots, tokens)
                engine.keep_kernels()
            return self._lanes[key]

    def _engine(self, component: str) -> Engine:
        with self.place.stream.ordered():
            if component not in self._engines:
                self._engines[component] = Engine(
                    self.place, self._folder, self._manifest, component
                )
            return self._engines[component]
