"""Being told to end, by Ctrl-C or a signal: by an exception, so that files are cleaned up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

#: What ends a process by default, before any temporary file is deleted: SIGTERM of `kill`,
#: `timeout` and service managers, and SIGHUP of a terminal that is closed (not on Windows).
_TERMINATIONS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Termination(KeyboardInterrupt):
    """Ended by a signal other than Ctrl-C's."""

    @property
    def number(self) -> int:
        """The signal's."""
        return int(self.args[0])


@contextmanager
def termination_as_interruption() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP raise :class:`Termination`, a KeyboardInterrupt as Ctrl-C's.

    One that is ignored, as SIGHUP is by `nohup`, stays so. Changes nothing outside the main thread,
    where Python lets no handler be set.
    """
    before: dict[int, Any] = {}
    try:
        if _may_set_handlers():
            for number in _TERMINATIONS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, _interrupt)
        yield
    finally:
        for number, handler in before.items():
            # None stands for a handler that Python did not set and cannot set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def interruptions_wait() -> Iterator[None]:
    """Within it Ctrl-C and those signals wait for its end, and raise there.

    For calls into C code that calls Python back: an exception raised in there is printed and lost,
    and the C code goes on with a wrong answer.
    """
    waiting: list[tuple[int, FrameType | None]] = []
    before: dict[int, Any] = {}
    try:
        if _may_set_handlers():
            for number in (signal.SIGINT, *_TERMINATIONS):
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
    raise Termination(number)
