"""How much memory this process needs, and has needed so far."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def peak_memory() -> int | None:
    """Most resident bytes of this process since it started; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows has no such module
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def peak_memory_text() -> str:
    """The same as part of a progress line."""
    peak = peak_memory()
    return "peak memory unknown" if peak is None else f"peak memory {peak / 1e6:,.0f} MB"


def resident_memory() -> int | None:
    """Resident bytes of this process now; None where the system does not say (Linux does)."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
