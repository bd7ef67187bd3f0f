"""How much memory there is for an export, and how much comparing a graph's values asks for."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")

#: Float32 copies of the weights that a comparison holds: torch's, the evaluator's, one in between.
_COPIES = 3


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
    return 2 * _COPIES * 4 * parameters
