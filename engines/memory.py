"""How much memory this process has needed so far."""

from __future__ import annotations

import sys


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
