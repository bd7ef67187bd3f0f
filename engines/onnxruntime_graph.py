"""Builds one graph for ONNX Runtime: optimised offline or as it is, its weights in one file."""

from __future__ import annotations

import errno
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import onnxruntime as ort
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto, numpy_helper

from engines.graph_file import (
    ELEMENT_TYPES,
    all_graphs,
    check_external_data,
    check_graph,
    check_tensors,
    external_of,
    read_graph,
    tensor_of,
)
from engines.targets import Built, ComponentJob, GraphJob
from engines.weights import Chunks, WeightStore
from trt_runtime.contract import NEXT, TensorSpec
from trt_runtime.errors import FolderError, MingError
from trt_runtime.manifest import GraphEntry, StoredTensor, export_command
from trt_runtime.raw_tensors import DTYPE_BYTES, read_chunks

log = logging.getLogger(__name__)

#: Tensors of fewer bytes stay inside the graph's file.
SMALLEST_EXTERNAL = 1024

# ONNX Runtime does not say why a write failed. With less than this free, the disk is why.
_DISK_FULL = 1 << 20

_SCRATCH_WEIGHTS = "scratch.weights"
_SESSION_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
}


def build_with(
    job: GraphJob,
    level: ort.GraphOptimizationLevel,
    *,
    change: Callable[[onnx.ModelProto], None] | None = None,
    check: Callable[[onnx.ModelProto, GraphJob], None] | None = None,
) -> GraphEntry:
    """Writes `job.out / job.entry.file` and the weights it needs; returns its manifest entry.

    `change` may replace nodes of the bundle's model before it is optimised at `level`, `check` may
    refuse what comes out.

    Raises FolderError where the bundle's graph is damaged or contradicts its manifest, OSError
    where the disk is full, MingError where what was built does not load.
    """
    model = read_graph(job.bundle, job.entry)
    check_external_data(job.bundle, job.entry, model, job.files)
    check_graph(job.bundle, job.entry, model)
    if change is not None:
        change(model)
    optimized = _optimize(model, job, level)
    if check is not None:
        check(optimized, job)
    entry = _written(optimized, job, job.scratch)
    _verify(job.out, entry)
    return entry


def write_prepared(job: GraphJob, model: onnx.ModelProto) -> GraphEntry:
    """The same of a model that is written as it is, its large tensors still in the bundle.

    No provider that is here need have kernels for its types, so that only its form is checked.
    """
    entry = _written(model, job, job.bundle)
    onnx.checker.check_model(str(job.out / entry.file))
    return entry


def _written(model: onnx.ModelProto, job: GraphJob, tensors: Path) -> GraphEntry:
    """Writes the model, whose large tensors lie in the folder `tensors`; its manifest entry."""
    initializers = _move_weights(model, tensors, job.weights)
    _make_reproducible(model, job.name)
    (job.out / job.entry.file).write_bytes(model.SerializeToString(deterministic=True))
    job.weights.flush()
    return GraphEntry(
        job.entry.file,
        job.entry.component,
        job.entry.inputs,
        job.entry.outputs,
        job.entry.state,
        _still_in_place(model.graph, job),
        initializers,
    )


def build_graphs(job: ComponentJob, build_graph: Callable[[GraphJob], GraphEntry]) -> Built:
    """Every graph of the component, one after the other."""
    graphs = {}
    for name in job.graphs:
        with job.step(name) as scratch:
            graphs[name] = build_graph(job.graph(name, scratch))
    return Built(graphs)


def _options(level: ort.GraphOptimizationLevel) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    # Nothing runs here. Prepacking would copy every weight once more; an arena would keep the
    # memory of one graph while the next is built.
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    return options


def _optimize(
    model: onnx.ModelProto, job: GraphJob, level: ort.GraphOptimizationLevel
) -> onnx.ModelProto:
    """The model as ONNX Runtime optimises it; large tensors lie in the scratch folder."""
    options = _options(level)
    path = job.scratch / job.entry.file
    options.optimized_model_filepath = str(path)
    prefix = "session.optimized_model_external_initializers_"
    options.add_session_config_entry(prefix + "file_name", _SCRATCH_WEIGHTS)
    options.add_session_config_entry(prefix + "min_size_in_bytes", str(SMALLEST_EXTERNAL))
    # From memory: what was checked is what is loaded. Only the weights come from the bundle.
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(job.bundle)
    )
    source = job.bundle / job.entry.file
    optimized = onnx.ModelProto()
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        optimized.ParseFromString(path.read_bytes())
    # ONNX Runtime's own exceptions share no base class but Exception.
    except Exception as error:
        needed = 4 * sum(math.prod(tensor.shape) for tensor in job.entry.initializers.values())
        written = sum(file.stat().st_size for file in job.scratch.iterdir())
        if shutil.disk_usage(job.scratch).free < max(needed - written, _DISK_FULL):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(job.scratch)) from error
        if isinstance(error, DecodeError | OSError):
            raise MingError(
                f"ONNX Runtime wrote no readable model for {source}: {error}"
            ) from error
        raise FolderError(
            f"ONNX Runtime refuses {source}",
            expected="a graph that it can load",
            found=str(error),
            do=f"make the bundle again: {export_command(job.bundle)}",
        ) from error
    return optimized


def _move_weights(
    model: onnx.ModelProto, scratch: Path, weights: WeightStore
) -> dict[str, StoredTensor]:
    """Moves large initialisers to the component's file, small and inner ones into the graph."""
    outer, *inner = all_graphs(model.graph)
    first_use: dict[str, int] = {}
    for node in outer.node:
        for name in node.input:
            first_use.setdefault(name, len(first_use))
    # ONNX Runtime keeps initialisers in a hash table. In order of use, the file is the same each
    # time, and a first run reads it from front to back.
    ordered = sorted(outer.initializer, key=lambda t: (first_use.get(t.name, math.inf), t.name))
    stored: dict[str, StoredTensor] = {}
    for tensor in ordered:
        if _bytes_of(tensor) < SMALLEST_EXTERNAL or tensor.data_type not in ELEMENT_TYPES:
            _bring_inside(tensor, scratch)
            continue
        dtype = ELEMENT_TYPES[tensor.data_type]
        place = weights.add(dtype, tuple(tensor.dims), _chunks_of(tensor, scratch))
        tensor.CopyFrom(_external_tensor(tensor, place))
        stored[tensor.name] = place
    # One repeated field cannot be filled from itself.
    copies = [TensorProto.FromString(tensor.SerializeToString()) for tensor in ordered]
    del outer.initializer[:]
    outer.initializer.extend(copies)
    for graph in inner:
        for tensor in graph.initializer:
            _bring_inside(tensor, scratch)
    return stored


def _bytes_of(tensor: TensorProto) -> int:
    dtype = ELEMENT_TYPES.get(tensor.data_type)
    return 0 if dtype is None else DTYPE_BYTES[dtype] * math.prod(tensor.dims)


def _chunks_of(tensor: TensorProto, scratch: Path) -> Chunks:
    if tensor.data_location == TensorProto.EXTERNAL:
        where = external_of(tensor)
        return lambda: read_chunks(scratch / where.location, where.offset, _bytes_of(tensor))

    def inside() -> Iterator[bytes]:
        yield numpy_helper.to_array(tensor).tobytes()

    return inside


def _bring_inside(tensor: TensorProto, scratch: Path) -> None:
    if tensor.data_location != TensorProto.EXTERNAL:
        return
    tensor.raw_data = b"".join(bytes(chunk) for chunk in _chunks_of(tensor, scratch)())
    del tensor.external_data[:]
    tensor.data_location = TensorProto.DEFAULT


def _external_tensor(tensor: TensorProto, place: StoredTensor) -> TensorProto:
    external = TensorProto(
        name=tensor.name,
        data_type=tensor.data_type,
        dims=tensor.dims,
        data_location=TensorProto.EXTERNAL,
    )
    for key, value in (("location", place.file), ("offset", place.offset), ("length", place.bytes)):
        external.external_data.add(key=key, value=str(value))
    return external


def _make_reproducible(model: onnx.ModelProto, name: str) -> None:
    """Leaves nothing that depends on where, when or in which order the model was made."""
    used = {""}
    for graph in all_graphs(model.graph):
        graph.doc_string = ""
        del graph.metadata_props[:]
        infos = sorted(graph.value_info, key=lambda info: info.name)
        copies = [onnx.ValueInfoProto.FromString(info.SerializeToString()) for info in infos]
        del graph.value_info[:]
        graph.value_info.extend(copies)
        for node in graph.node:
            node.doc_string = ""
            del node.metadata_props[:]  # exporters keep source paths here
            used.add(node.domain)
    for function in model.functions:
        used.update((function.domain, *(node.domain for node in function.node)))
    imports = sorted(
        (entry.domain, entry.version) for entry in model.opset_import if entry.domain in used
    )
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(*entry) for entry in imports)
    model.graph.name = name
    model.doc_string = model.producer_version = model.domain = ""
    model.producer_name = "ming-trt"
    del model.metadata_props[:]


def _still_in_place(graph: onnx.GraphProto, job: GraphJob) -> tuple[str, ...]:
    """The state whose one reader is still the node that writes its successor."""
    kept = []
    for name in job.entry.in_place:
        readers = [node for inner in all_graphs(graph) for node in inner.node if name in node.input]
        if len(readers) == 1 and name + NEXT in readers[0].output:
            kept.append(name)
        else:
            log.warning("%s: optimised, %s is no longer updated in place", job.name, name)
    return tuple(kept)


def _verify(folder: Path, entry: GraphEntry) -> None:
    """Loads what was written, as it is, and compares its inputs and outputs with the manifest's."""
    path = folder / entry.file
    options = _options(ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise MingError(f"The built graph {entry.file} does not load: {error}") from error
    check_tensors(
        f"the built {entry.file}",
        entry,
        [_session_tensor(node) for node in session.get_inputs()],
        [_session_tensor(node) for node in session.get_outputs()],
        "report it: the optimiser changed the graph's contract",
    )


def _session_tensor(node: ort.NodeArg) -> TensorSpec:
    return tensor_of(node.name, _SESSION_TYPES.get(node.type, node.type), node.shape)
