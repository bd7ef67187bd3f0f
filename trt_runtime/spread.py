"""How repeated measurements lie: what every result tells of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most of the values, of which there is one at least."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
