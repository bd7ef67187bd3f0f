"""Standard output that refuses what is written: a full disk behind it, or none at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from trt_runtime.errors import UserError


@contextmanager
def explained() -> Iterator[None]:
    """Around writes to standard output: raises UserError where they fail.

    BrokenPipeError passes: a reader that has gone is no mistake.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        discard()
        raise UserError(
            "Standard output cannot be written",
            found=error.strerror or str(error),
            do="free some space where it goes to, or send it elsewhere",
        ) from error


def write(data: bytes) -> None:
    """Writes all of `data` at once; raises as :func:`explained`.

    Where Python runs unbuffered (PYTHONUNBUFFERED, as in many containers) standard output is a raw
    file, whose write may take a part and says so only by its result.
    """
    left = memoryview(data)
    with explained():
        while left:
            left = left[sys.stdout.buffer.write(left) :]
        sys.stdout.buffer.flush()


def flush() -> None:
    """Writes what is still held back; raises as :func:`explained`."""
    if sys.stdout is not None:  # None: the process was started without one
        with explained():
            sys.stdout.flush()


def discard() -> None:
    """Lets what is still held back go nowhere: the interpreter would flush it, and complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
