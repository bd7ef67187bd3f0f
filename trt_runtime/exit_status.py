"""How a command ends: its exit status, and what it says on standard error, which may not be there.

One for `ming-trt`, `build-engines` and `python -m export`, so that all three end alike.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import TextIO

from trt_runtime.errors import MingError
from trt_runtime.interruption import Termination, termination_as_interruption
from trt_runtime.printable import printable

USER_ERROR = 2
#: A shell reports what a signal ended as 128 and the signal's number; SIGPIPE is 13.
_BY_SIGNAL = 128
BROKEN_PIPE = _BY_SIGNAL + 13


def exit_status(
    run: Callable[[], int],
    name: str,
    *,
    interrupted: str,
    in_words: Callable[[str], str] = str,
) -> int:
    """What `run` returns, or the status of what it raised, which is told on standard error.

    2: a MingError, told after `name` as `in_words` says it. 130, 143, 129: ended by Ctrl-C, SIGTERM
    or SIGHUP, told by the line `interrupted`. Notes of either (PEP 678) are told after it. 141:
    whoever read standard output has gone. Other exceptions are faults of ours and pass.
    """
    _fill_standard_descriptors()
    try:
        with termination_as_interruption():
            return run()
    except MingError as error:
        for line in f"{name}: {in_words(str(error))}".split("\n"):
            tell(line)
        _tell_notes(error)
        return USER_ERROR
    except KeyboardInterrupt as error:
        tell(interrupted)
        _tell_notes(error)
        return _BY_SIGNAL + (error.number if isinstance(error, Termination) else signal.SIGINT)
    except BrokenPipeError:
        discard(sys.stdout)
        return BROKEN_PIPE
    finally:
        # What logging could not write would be tried once more at the interpreter's end, and the
        # exit status be another for it.
        write_error("")


def _tell_notes(error: BaseException) -> None:
    for note in getattr(error, "__notes__", ()):
        tell(note)


def tell(line: str) -> None:
    """A line to standard error that moves no cursor: standard output may carry the audio."""
    write_error(f"{printable(line)}\n")


def write_error(text: str) -> None:
    """`text` to standard error as it is; nowhere where that is closed, full or has no reader.

    What is said there is never worth the work that it is about.
    """
    if sys.stderr is None:  # the process was started without one
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):  # ValueError: closed since
        discard(sys.stderr)


def discard(stream: TextIO | None) -> None:
    """Lets what `stream` still holds back go nowhere: the interpreter would flush it, and complain.

    So does all that is written to it from now on.
    """
    if stream is None:
        return
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # a stream in memory, or a closed one
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def _fill_standard_descriptors() -> None:
    """Puts the null device where a standard stream was closed when the process was started.

    Else the next file that is opened gets its number, and libraries in C write their warnings into
    the audio.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest number that is free is the one that an open gets.
            os.open(os.devnull, os.O_RDWR)
