"""A line on the terminal for work that takes longer than two seconds."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

_WIDTH = 30
_AFTER_SECONDS = 2.0
_BETWEEN_SECONDS = 0.1


class ProgressBar:
    """Counts bytes towards `total`; silent where stderr is no terminal. Use as a context manager.

    `add` may be called from several threads.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, max(total, 1)
        self._done, self._shown = 0, 0
        self._started = self._last = time.monotonic()
        self._lock = threading.Lock()
        self._on = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> ProgressBar:
        return self

    def add(self, size: int) -> None:
        with self._lock:
            self._done += size
            now = time.monotonic()
            if (
                self._on
                and now - self._started > _AFTER_SECONDS
                and now - self._last > _BETWEEN_SECONDS
            ):
                self._last = now
                self._show()

    def _show(self) -> None:
        filled = _WIDTH * self._done // self._total
        line = (
            f"{self._what} [{'#' * filled:<{_WIDTH}}] "
            f"{self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB"
        )
        sys.stderr.write("\r" + line.ljust(self._shown))
        sys.stderr.flush()
        self._shown = len(line)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
