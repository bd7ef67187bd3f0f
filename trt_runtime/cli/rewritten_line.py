"""A line on standard error that is written over, where that is a terminal."""

from __future__ import annotations

import sys

from trt_runtime.exit_status import write_error
from trt_runtime.printable import printable


class RewrittenLine:
    """How far something is; nothing with `silent`, and where standard error is no terminal."""

    def __init__(self, *, silent: bool) -> None:
        self._on = not silent and sys.stderr is not None and sys.stderr.isatty()
        self._length = 0

    def write(self, line: str) -> None:
        """Puts `line` in place of the last one."""
        if self._on:
            line = printable(line)
            write_error("\r" + line.ljust(self._length))
            self._length = len(line)

    def clear(self) -> None:
        """Leaves nothing of it."""
        if self._length:
            write_error("\r" + " " * self._length + "\r")
            self._length = 0
