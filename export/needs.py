"""What an export will need: memory, disk and time, estimated from the sizes.

The rates were measured with the random 0.5B checkpoint of benchmarks/full_size_checkpoint.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from export.families import Family
from export.safetensors_header import TensorInfo
from export.sizes import ModelSizes

#: For each graph that is exported, with the default options: the components whose weights it holds.
_GRAPHS: tuple[tuple[str, ...], ...] = (
    ("prompt_embedding",),
    ("speaker_projection",),
    ("talker",),
    ("talker",),
    ("talker",),
    ("flow",),
    ("flow_advance",),
    ("flow", "flow_advance"),
    ("audio_decoder",),
)

_BASE_MEMORY = 800_000_000  # torch, onnx and a graph
_COMPARED_BYTES = 18  # a parameter: float32 copies of a graph's weights, in torch and NumPy
_BASE_SECONDS = 30.0  # tracing a model of no size
_SECONDS_A_PARAMETER = 120e-9  # tracing, running and comparing, for every graph that uses it
_GRAPH_BYTES = 5_000_000

BASIS = (
    "measured on 2 cores of an x86-64 server with the random 0.5B checkpoint; scaled by parameters"
)


@dataclass(frozen=True)
class ExportNeeds:
    """Bytes of peak memory with and without comparing values, bytes of disk, and seconds."""

    memory: int
    memory_form_only: int
    disk: int
    seconds: float


def estimate_needs(
    family: Family, sizes: ModelSizes, tensors: Mapping[str, TensorInfo]
) -> ExportNeeds:
    """The needs of exporting `tensors`; those that are missing are counted as bfloat16."""
    parameters: dict[str, int] = {}
    disk, largest = _GRAPH_BYTES, 0
    for row in family.components(sizes):
        parameters[row.component] = parameters.get(row.component, 0) + row.elements
        stored = [tensors[name].dtype for name in row.sources if name in tensors]
        size = row.elements * (4 if "float32" in stored else 2)
        disk, largest = disk + size, max(largest, size)
    graphs = [sum(parameters.get(name, 0) for name in graph) for graph in _GRAPHS]
    return ExportNeeds(
        memory=_BASE_MEMORY + _COMPARED_BYTES * max(graphs),
        memory_form_only=_BASE_MEMORY + largest,
        disk=disk,
        seconds=_BASE_SECONDS + _SECONDS_A_PARAMETER * sum(graphs),
    )
