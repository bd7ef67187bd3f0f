"""How much memory there is for an export, and how much comparing a graph's values asks for.

Measured by benchmarks/export_memory.py.
"""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")

#: What an export may take where the caller says nothing.
DEFAULT_MEMORY = 6_000_000_000

#: Of an export that compares no values: torch, onnx and a graph.
BASE_MEMORY = 800_000_000
#: A parameter of a graph that is compared: as stored, cast, and copied where an operator does.
_COMPARED_BYTES = 14


def free_memory() -> int | None:
    """Bytes that can be had without swapping, where the system says so (Linux)."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def free_to_compare(parameters: int) -> int:
    """Bytes that must be free before the values of a graph of so many parameters are compared.

    Twice what that takes: the machine is not ours alone.
    """
    return 2 * _COMPARED_BYTES * parameters


def memory_to_compare(parameters: int) -> int:
    """The peak of an export, in bytes, while it compares the values of a graph of so many."""
    return BASE_MEMORY + _COMPARED_BYTES * parameters
