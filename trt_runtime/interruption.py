"""Being told to end, by Ctrl-C or SIGTERM: always by an exception, so that files are cleaned up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def termination_as_interruption() -> Iterator[None]:
    """Within it SIGTERM raises KeyboardInterrupt, as Ctrl-C does.

    SIGTERM is what `kill`, `timeout` and service managers send; by default it ends the process
    before any temporary file is deleted. Changes nothing outside the main thread, where Python lets
    no handler be set.
    """
    if not _may_set_handlers():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        # None stands for a handler that Python did not set and cannot set again.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@contextmanager
def interruptions_wait() -> Iterator[None]:
    """Within it both wait for its end, and raise there.

    For calls into C code that calls Python back: an exception raised in there is printed and lost,
    and the C code goes on with a wrong answer.
    """
    waiting: list[tuple[int, FrameType | None]] = []
    before: dict[int, Any] = {}
    try:
        if _may_set_handlers():
            for number in (signal.SIGINT, signal.SIGTERM):
                # Others (default, ignored) raise nothing and may act at once.
                if callable(signal.getsignal(number)):
                    before[number] = signal.signal(number, lambda *seen: waiting.append(seen))
        yield
    finally:
        for replaced, handler in before.items():
            signal.signal(replaced, handler)
        for sent, frame in waiting:
            before[sent](sent, frame)


def _may_set_handlers() -> bool:
    return threading.current_thread() is threading.main_thread()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
