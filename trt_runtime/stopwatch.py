"""Seconds spent by component, for a request's timings."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Stopwatch:
    """Adds up `seconds` by component name. Used by one thread."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, component: str) -> Iterator[None]:
        """Counts what runs within it to `component`, also where it fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add({component: time.perf_counter() - start})

    def add(self, seconds: Mapping[str, float]) -> None:
        """Counts seconds by component that something else has measured."""
        for component, spent in seconds.items():
            self.seconds[component] = self.seconds.get(component, 0.0) + spent
