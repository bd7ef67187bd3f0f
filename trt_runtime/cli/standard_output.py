"""What a command prints: in any encoding, to a disk that is full, or to no output at all."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trt_runtime.cli import wording
from trt_runtime.errors import UserError, reason_of
from trt_runtime.exit_status import discard, tell
from trt_runtime.printable import printable


def check_there(do: str = "start the command without >&-, or send it to a file") -> None:
    """Raises UserError, with what to `do`, where the process was started without the output."""
    if sys.stdout is None:
        raise UserError(
            "There is no standard output",
            expected="a pipe, a file or a terminal",
            found="a closed one",
            do=do,
        )


@contextmanager
def explained() -> Iterator[None]:
    """Around writes to standard output: raises UserError where there is none, or they fail.

    BrokenPipeError passes: a reader that has gone is no mistake.
    """
    check_there()
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        discard(sys.stdout)
        raise UserError(
            "Standard output cannot be written",
            found=reason_of(error),
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


def print_line(line: str) -> None:
    """A line to standard output that moves no cursor; raises as :func:`explained`."""
    print_text(printable(line))


def print_text(text: str) -> None:
    """A text to standard output, its tabs and line breaks kept; raises as :func:`explained`.

    Other control characters are written as escapes, and so is what the output's encoding lacks:
    an unknown character is no reason to fail.
    """
    shown = "".join(printable(c) if _is_control(c) else c for c in text)
    encoding = _encoding()
    with explained():
        print(shown.encode(encoding, "backslashreplace").decode(encoding))


def print_json(value: Any) -> None:
    """A value to standard output as JSON, in every script; raises as :func:`explained`.

    Characters that a terminal would obey are written as JSON's escapes, and all but ASCII are where
    the output's encoding lacks some.
    """
    text = json.dumps(value, ensure_ascii=False, indent=1)
    text = "".join(c if c.isprintable() or c == "\n" else _json_escape(c) for c in text)
    try:
        text.encode(_encoding())
    except UnicodeEncodeError:
        text = "".join(c if c.isascii() else _json_escape(c) for c in text)
    with explained():
        print(text)


def warn(warning: str) -> None:
    """A warning of the runtime, in the command line's words, to standard error."""
    tell(f"warning: {wording.in_options(warning)}")


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t"


def _json_escape(character: str) -> str:
    escape = json.dumps(character)[1:-1]  # a pair beyond U+FFFF
    return f"\\u{ord(character):04x}" if escape == character else escape


def flush() -> None:
    """Writes what is still held back; raises as :func:`explained`."""
    if sys.stdout is not None:  # where nothing was printed that is no mistake
        with explained():
            sys.stdout.flush()
