"""Builds a component for TensorRT or TensorRT-RTX: one engine, a profile a bucket, weights once.

The library builds in a process of its own (:mod:`engines.tensorrt_child`): it can crash, and there
it can be stopped. What it says is kept in the folder, `COMPONENT.build.log`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

from engines.cache import link_or_copy
from engines.operator_forms import NATIVE
from engines.precision import find_precision
from engines.prepared_graph import Prepared, prepare
from engines.targets import Built, ComponentJob
from engines.tensorrt_job import EngineJob
from engines.tensorrt_process import run_job
from trt_runtime.contract import NEXT
from trt_runtime.errors import MingError
from trt_runtime.manifest import GraphEntry
from trt_runtime.operators import CACHED_ATTENTION
from trt_runtime.tensorrt_check import (
    AMPERE_PLUS,
    COMPUTE_CAPABILITIES,
    HARDWARE_COMPATIBILITY,
)
from trt_runtime.tensorrt_library import TENSORRT, TENSORRT_RTX, load_library

#: By ONNX operator of a native form: the library's layer.
_LAYERS = {
    "Attention": "ATTENTION_INPUT",
    "RotaryEmbedding": "ROTARY_EMBEDDING",
    "TensorScatter": "KV_CACHE_UPDATE",
}
#: First versions whose parser makes native layers of the operators in :data:`_LAYERS`: TensorRT's
#: changelog for the KV-cache update, and what was tried for TensorRT-RTX.
_NATIVE_SINCE = {TENSORRT: (10, 15), TENSORRT_RTX: (1, 7)}
#: In an engine folder of target `tensorrt`: what the library measured while it built.
TIMING_CACHE = "timing.cache"
#: Measured with TensorRT-RTX 1.7 on two cores (benchmarks/tensorrt_build.py), for the estimate:
#: seconds a node and profile, and a gigabyte of weights; bytes held a byte of weights, and beside.
_SECONDS_A_NODE, _SECONDS_A_GIGABYTE, _HELD, _BESIDE = 0.004, 10.0, 5.0, 0.5e9


def build_component(job: ComponentJob) -> Built:
    """One engine of the component's first graph, which for a talker stands for all its buckets.

    Raises UserError with the reason where the library refuses or fails, FolderError where the
    bundle is damaged.
    """
    first = next(iter(job.graphs))
    low = find_precision(job.options.precision).low_type(job.name)
    native = load_library(job.target).numbers[:2] >= _NATIVE_SINCE[job.target]
    several = len(job.graphs) > 1
    with job.step(job.name) as scratch:
        prepared = prepare(job.graph(first, scratch), low, native=native, any_tokens=several)
        path = _written(prepared, job.bundle, scratch)
        profiles = _profiles(job)
        job.say(_estimate(job.name, prepared, len(profiles)))
        kinds = Counter(node.op_type for node in prepared.model.graph.node)
        machine = job.machine
        engine = EngineJob(
            target=job.target,
            component=job.name,
            graph=str(path),
            engine=str(job.out / f"{job.name}.engine"),
            profiles=profiles,
            types=prepared.types,
            casts=tuple(sorted(prepared.casts)),
            layers={layer: kinds[kind] for kind, layer in _LAYERS.items() if kinds[kind]},
            sources=prepared.sources,
            compute_capability=tuple(machine[COMPUTE_CAPABILITIES])
            if job.target == TENSORRT_RTX
            else (),
            ampere_and_later=machine[HARDWARE_COMPATIBILITY] == AMPERE_PLUS,
            version_compatible=job.options.version_compatible,
            timing_cache=_timing_cache(job),
            weight_streaming=job.options.weight_streaming > 0,
        )
        figures = run_job(engine, job)
    in_place = prepared.forms.get(CACHED_ATTENTION) == NATIVE
    graphs = {
        name: _entry(graph, prepared.entry, Path(engine.engine).name, in_place)
        for name, graph in job.graphs.items()
    }
    return Built(graphs, profiles=profiles, operators=prepared.forms, figures=figures)


def _timing_cache(job: ComponentJob) -> str:
    """The file that keeps what TensorRT measured, begun with that of the folder's last build.

    "" for TensorRT-RTX, which measures where it runs and keeps its own.
    """
    if job.target != TENSORRT:
        return ""
    path, before = job.out / TIMING_CACHE, job.replaces / TIMING_CACHE
    if not path.exists() and before.is_file():
        path.write_bytes(before.read_bytes())
    return str(path)


def _written(prepared: Prepared, bundle: Path, scratch: Path) -> Path:
    """The prepared graph in the scratch folder, with the bundle's weights beside it."""
    for file in {tensor.file for tensor in prepared.entry.initializers.values()}:
        link_or_copy(bundle / file, scratch / file)
    path = scratch / prepared.entry.file
    path.write_bytes(prepared.model.SerializeToString(deterministic=True))
    return path


def _profiles(job: ComponentJob) -> tuple[tuple[int, int], ...]:
    """(slots, tokens) of each bucket: decoding for every number of slots, then prefill."""
    by_slot = any(t.by_slot for graph in job.graphs.values() for t in graph.inputs)
    decoding = [(slots, 1) for slots in job.options.slots] if by_slot else [(1, 1)]
    prefill = [
        (1, graph.inputs[0].shape[1])
        for graph in list(job.graphs.values())[1:]
    ]  # fmt: skip
    return (*decoding, *prefill)


def _entry(graph: GraphEntry, prepared: GraphEntry, file: str, in_place: bool) -> GraphEntry:
    """A graph of the contract as the engine has it: its own sizes, the engine's types."""
    types = {t.name: t.dtype for t in (*prepared.inputs, *prepared.outputs)}

    def typed(graph: GraphEntry) -> GraphEntry:
        return replace(
            graph,
            inputs=tuple(replace(t, dtype=types[t.name]) for t in graph.inputs),
            outputs=tuple(replace(t, dtype=types[t.name]) for t in graph.outputs),
        )

    if missing := {t.name for t in (*graph.inputs, *graph.outputs)} - set(types):
        raise MingError(f"The engine has no tensors {sorted(missing)}")
    kept = graph.in_place if in_place else ()
    assert all(name + NEXT in types for name in kept)
    return replace(typed(graph), file=file, in_place=kept, initializers={})


def _estimate(component: str, prepared: Prepared, profiles: int) -> str:
    weights = sum(4 * math.prod(t.shape) for t in prepared.entry.initializers.values())
    nodes = len(prepared.model.graph.node)
    seconds = _SECONDS_A_NODE * nodes * profiles + _SECONDS_A_GIGABYTE * weights / 1e9
    memory = _HELD * weights + _BESIDE
    return (
        f"{component}: {nodes} nodes, {profiles} profiles; about {seconds:,.0f} s "
        f"and {memory / 1e9:.1f} GB of memory"
    )
