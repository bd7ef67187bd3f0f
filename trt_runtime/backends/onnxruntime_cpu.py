"""ONNX Runtime on CPU: an engine folder of target `cpu`, or a bundle as it is.

Weights are resident once. A component with one graph gives its weights to the runtime, which packs
them for its kernels. A component with several graphs (the talker's buckets) shares one mapping of
the weights between their sessions, unpacked: packing would keep a copy for each session, and the
decode step, one row, is bound by memory and gains nothing from it.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trt_runtime.contract import FLOW_STEP, NEXT, ON_DEMAND, TAIL, TensorSpec
from trt_runtime.errors import FolderError, UserError
from trt_runtime.machine import describe_machine
from trt_runtime.manifest import ENGINES, GraphEntry, Manifest, StoredTensor
from trt_runtime.printable import shown
from trt_runtime.talker import Talker

log = logging.getLogger(__name__)

_MOST_THREADS = 1024
_PROVIDERS = ["CPUExecutionProvider"]
_SESSION_TYPES = {"float32": "tensor(float)", "int64": "tensor(int64)", "bool": "tensor(bool)"}


def import_onnxruntime() -> Any:
    """The onnxruntime module; a UserError with the command that installs it where it is missing."""
    try:
        import onnxruntime
    except ImportError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            # Interrupted while it loaded: its own code takes that for a missing library.
            raise error.__context__ from error
        raise UserError(
            "ONNX Runtime is not installed or cannot be loaded",
            expected="the package onnxruntime (CPU) or onnxruntime-gpu (CUDA), one of the two",
            found=str(error),
            do='pip install "ming-trt[cpu]"; `ming-trt doctor` shows what is installed',
        ) from error
    if not hasattr(onnxruntime, "InferenceSession"):
        raise UserError(
            "ONNX Runtime is damaged",
            expected="one of onnxruntime and onnxruntime-gpu",
            found="remains of both: one was removed after the other had overwritten its files",
            do="pip uninstall onnxruntime onnxruntime-gpu, then install one of them again",
        )
    return onnxruntime


class CpuBuffer:
    """A NumPy array and the runtime's view of the same memory."""

    def __init__(self, spec: TensorSpec, array: np.ndarray | None = None) -> None:
        self.spec = spec
        self._array = np.zeros(spec.shape, spec.dtype) if array is None else array
        self.value = import_onnxruntime().OrtValue.ortvalue_from_numpy(self._array)

    def rows(self, spec: TensorSpec, first: int) -> CpuBuffer:
        """The same memory as a tensor of `spec`, from row `first` on; itself where that is all.

        Raises ValueError where the rows are others, or not as many.
        """
        self.spec.check_rows(spec, first)
        if self.spec.shape == spec.shape:
            return self
        return CpuBuffer(spec, self._array[first : first + spec.shape[0]])

    def read(self) -> np.ndarray:
        return self._array

    def write(self, values: np.ndarray | float | int | bool) -> None:
        self._array[...] = values

    def write_slot(self, slot: int, values: np.ndarray | float | int | bool) -> None:
        self._array[slot] = values

    def copy_slot(self, source: int, to: int) -> None:
        self._array[to] = self._array[source]


class CpuBoundGraph:
    """A session with all tensors bound; see :class:`trt_runtime.backends.interface.BoundGraph`.

    State declared `in_place` has one buffer for input and output: the node that writes it finds
    both addresses equal and copies nothing. Other state is written beside its input and copied.
    """

    def __init__(
        self,
        session: Any,
        entry: GraphEntry,
        buffers: Mapping[str, CpuBuffer],
        *,
        first: int = 0,
        slots: int = 1,
    ) -> None:
        self._session = session
        self._binding = session.io_binding()
        self.buffers: dict[str, CpuBuffer] = {}
        self._moves: list[tuple[CpuBuffer, CpuBuffer]] = []

        def bound(tensor: TensorSpec) -> CpuBuffer:
            spec, given = tensor.sized(slots), buffers.get(tensor.name)
            return CpuBuffer(spec) if given is None else given.rows(spec, first)

        for tensor in entry.inputs:
            self.buffers[tensor.name] = buffer = bound(tensor)
            self._binding.bind_ortvalue_input(tensor.name, buffer.value)
        state = {name + NEXT: name for name in entry.state}
        for tensor in entry.outputs:
            source = state.get(tensor.name)
            if source in entry.in_place:
                buffer = self.buffers[source]
            else:
                self.buffers[tensor.name] = buffer = bound(tensor)
                if source is not None:
                    self._moves.append((buffer, self.buffers[source]))
            self._binding.bind_ortvalue_output(tensor.name, buffer.value)

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)
        for new, old in self._moves:
            old.write(new.read())


class CpuBackend:
    """Loads the graphs of the folder that speaking needs; see `interface.Backend`."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int | None = None) -> None:
        check_threads(threads)
        self._ort = import_onnxruntime()
        self._folder = folder
        self._manifest = manifest
        self._threads = threads or usable_cores()
        self._mappings: dict[str, np.ndarray] = {}
        self._shared: dict[tuple[str, int], Any] = {}
        # Where both are there, the loop: each node of the unrolled tail would pack its own weights.
        names = [
            name for name in manifest.graphs if name != TAIL or FLOW_STEP not in manifest.graphs
        ]
        self._users = Counter(manifest.graphs[name].component for name in names)
        self._lock = threading.Lock()
        self._sessions: dict[str, Any] = {
            name: None if name in ON_DEMAND else self._load(name) for name in names
        }

    def has(self, graph: str) -> bool:
        return graph in self._sessions

    def buffer(self, spec: TensorSpec, slots: int = 1) -> CpuBuffer:
        return CpuBuffer(spec.sized(slots))

    def talker(self, slots: int = 1) -> Talker:
        return Talker(self, self._manifest.geometry, slots)

    def bind(
        self, graph: str, buffers: Mapping[str, CpuBuffer], *, first: int = 0, slots: int = 1
    ) -> CpuBoundGraph:
        entry = self._manifest.graphs[graph]
        return CpuBoundGraph(self._session(graph), entry, buffers, first=first, slots=slots)

    def _session(self, name: str) -> Any:
        with self._lock:
            if self._sessions[name] is None:
                self._sessions[name] = self._load(name)
            return self._sessions[name]

    def _load(self, name: str) -> Any:
        entry = self._manifest.graphs[name]
        shared = self._users[entry.component] > 1
        options = self._ort.SessionOptions()
        options.intra_op_num_threads = self._threads
        # Every session has its own threads, which wait for more work by spinning: the graphs of a
        # step would take the cores from each other.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.log_severity_level = 3
        levels = self._ort.GraphOptimizationLevel
        if self._manifest.kind == ENGINES:
            options.graph_optimization_level = levels.ORT_DISABLE_ALL
            if shared:
                options.add_session_config_entry("session.disable_prepacking", "1")
                for key, tensor in entry.initializers.items():
                    # Shares the mapping; add_external_initializers would copy it a session.
                    options.add_initializer(key, self._weight(tensor))
        else:
            # A bundle is optimised as it loads; its casts are folded, a float32 copy a session.
            options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED
        path = self._folder / entry.file
        try:
            session = self._ort.InferenceSession(str(path), options, providers=_PROVIDERS)
        except Exception as error:  # onnxruntime has a dozen classes without a common base
            raise FolderError(
                f"ONNX Runtime {self._ort.__version__} cannot load {path}",
                expected="a graph that build-engines wrote for this version",
                found=str(error).splitlines()[0] if str(error) else type(error).__name__,
                do=f"build it again: build-engines SOURCE --target cpu --out {self._folder}",
            ) from error
        check_session(path, entry, session)
        return session

    def _weight(self, tensor: StoredTensor) -> Any:
        """The runtime's view of an initialiser in the mapped weights file, made once a tensor."""
        key = (tensor.file, tensor.offset)
        if key not in self._shared:
            if tensor.file not in self._mappings:
                with (self._folder / tensor.file).open("rb") as file:
                    mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self._mappings[tensor.file] = np.frombuffer(mapping, np.uint8)
            raw = self._mappings[tensor.file][tensor.offset : tensor.offset + tensor.bytes]
            array = raw.view(tensor.dtype).reshape(tensor.shape)
            self._shared[key] = self._ort.OrtValue.ortvalue_from_numpy(array)
        return self._shared[key]


def check_session(path: Path, entry: GraphEntry, session: Any) -> None:
    """Raises FolderError where the session has other tensors than the manifest's entry."""
    for specs, found in (
        (entry.inputs, session.get_inputs()),
        (entry.outputs, session.get_outputs()),
    ):
        wanted = [(spec.name, _SESSION_TYPES[spec.dtype], spec.axes) for spec in specs]
        actual = [(node.name, node.type, list(node.shape)) for node in found]
        if wanted != actual:
            raise FolderError(
                f"{path} has other inputs or outputs than the manifest says",
                expected=_difference(wanted, actual),
                found=_difference(actual, wanted),
                do="build the folder again",
            )


def _difference(rows: list[Any], others: list[Any]) -> str:
    """Those of `rows` that `others` lacks: all that a reader needs of two long lists."""
    return ", ".join(str(row) for row in rows if row not in others) or "no others"


def check_threads(threads: int | None) -> None:
    """Raises UserError for a number of threads that cannot be."""
    whole = isinstance(threads, int) and not isinstance(threads, bool)
    if threads is not None and not (whole and 1 <= threads <= _MOST_THREADS):
        raise UserError(
            "threads cannot be used",
            expected=f"a whole number from 1 to {_MOST_THREADS}",
            found=shown(threads),
            do="leave it out to use every core",
        )


def usable_cores() -> int:
    """Physical cores that this process may use: the default number of threads."""
    cores = describe_machine()["physical_cores"]
    return cores if isinstance(cores, int) else max(1, os.cpu_count() or 1)
