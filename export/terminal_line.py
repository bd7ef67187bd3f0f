"""The last line of a terminal, written over and over."""

from __future__ import annotations

import shutil
from typing import TextIO

_CLEAR = "\r\x1b[K"


class TerminalLine:
    """Shows one line on `stream`, a terminal, in place of the one before."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = False

    def show(self, text: str) -> None:
        """`text` without its end where it is wider than the terminal; "" leaves an empty line."""
        if not text and not self._shown:
            return
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(_CLEAR + text[:width])
        self._stream.flush()
        self._shown = bool(text)
