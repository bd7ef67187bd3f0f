"""What an export will need: memory, disk and time, estimated from the sizes.

The rates were measured with the random 0.5B checkpoint of benchmarks/full_size_checkpoint.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from export.families import Family
from export.free_memory import BASE_MEMORY, DEFAULT_MEMORY, free_to_compare, memory_to_compare
from export.graph_weights import weight_components
from export.safetensors_header import TensorInfo
from export.sizes import ModelSizes
from trt_runtime.contract import TAIL, GraphSpec, graph_specs
from trt_runtime.geometry import Geometry
from trt_runtime.raw_tensors import DTYPE_BYTES

_SECONDS_A_GRAPH = 2.5  # tracing one of no size
_SECONDS_A_PARAMETER = 60e-9  # running and comparing, each time that a graph uses it
_SECONDS_A_BYTE = 4e-9  # reading, checking, writing and hashing
_GRAPH_BYTES = 5_000_000

BASIS = (
    "measured on 2 cores of an x86-64 server with the random 0.5B checkpoint; scaled by parameters"
)


@dataclass(frozen=True)
class ExportNeeds:
    """What an export takes, in bytes and seconds.

    `memory` is its peak where every graph's values are compared, which is done where the caller
    allows that much and `free_memory` is free for the largest graph; `memory_form_only` is the peak
    where none are. `seconds` is the time within :data:`export.free_memory.DEFAULT_MEMORY`. `disk`
    is the bundle's.
    """

    memory: int
    free_memory: int
    memory_form_only: int
    disk: int
    seconds: float


def estimate_needs(
    family: Family, sizes: ModelSizes, geometry: Geometry, tensors: Mapping[str, TensorInfo]
) -> ExportNeeds:
    """The needs of exporting `tensors`; those that are missing are counted as bfloat16."""
    parameters: dict[str, int] = {}
    disk, largest = _GRAPH_BYTES, 0
    for row in family.layout_of(sizes, tensors).components(sizes):
        parameters[row.component] = parameters.get(row.component, 0) + row.elements
        stored = [tensors[name].dtype for name in row.sources if name in tensors]
        size = row.elements * DTYPE_BYTES["float32" if "float32" in stored else "bfloat16"]
        disk, largest = disk + size, max(largest, size)
    specs = graph_specs(geometry).values()
    graphs = [sum(parameters.get(name, 0) for name in weight_components(spec)) for spec in specs]
    return ExportNeeds(
        memory=memory_to_compare(max(graphs)),
        free_memory=free_to_compare(max(graphs)),
        memory_form_only=BASE_MEMORY + largest,
        disk=disk,
        seconds=_SECONDS_A_BYTE * disk
        + sum(
            graph_seconds(
                spec, parameters, geometry, compared=memory_to_compare(count) <= DEFAULT_MEMORY
            )
            for spec, count in zip(specs, graphs, strict=True)
        ),
    )


def graph_seconds(
    spec: GraphSpec, parameters: Mapping[str, int], geometry: Geometry, *, compared: bool
) -> float:
    """What tracing a graph takes, and comparing its values where they are.

    `parameters` counts those of each component.
    """
    used = sum(parameters.get(name, 0) for name in weight_components(spec))
    times = 1.0
    if spec.name == TAIL:  # the flow, unrolled: joined and not traced, but compared as it is
        used += (geometry.solver_steps - 1) * parameters.get("flow", 0)
        times = 0.5
    return _SECONDS_A_GRAPH * times + (_SECONDS_A_PARAMETER * used if compared else 0.0)
