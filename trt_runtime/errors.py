"""The errors that a caller can get: mistakes that the caller can mend, and faults of ours.

Every message says what was wrong, what was expected, what was found and what to do.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from trt_runtime.printable import printable


class MingError(Exception):
    """Anything this project raises on purpose. Command lines print it and exit with status 2."""


class ExplainedError(MingError):
    """An error whose message is made of its fields, `do` among them: nobody is left without.

    `what` and `do` are always there; `expected` and `found` are "" where there is nothing to say.
    """

    def __init__(self, what: str, *, expected: str = "", found: str = "", do: str) -> None:
        # Names out of a stranger's file must not reach a terminal as they are.
        what, expected, found, do = (printable(part) for part in (what, expected, found, do))
        self.what, self.expected, self.found, self.do = what, expected, found, do
        parts = [_sentence(what)]
        if expected:
            parts.append(_sentence(f"Expected: {expected}"))
        if found:
            parts.append(_sentence(f"Found: {found}"))
        parts.append(_sentence(f"What to do: {do}"))
        super().__init__("\n  ".join(parts))

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled by their message alone, which could not make this one again.
        make = partial(type(self), expected=self.expected, found=self.found, do=self.do)
        return make, (self.what,)


def _sentence(text: str) -> str:
    """`text` with a full stop, also where it ends with one, or with three, of its own."""
    return text if text.endswith(".") else f"{text}."


def reason_of(error: BaseException) -> str:
    """What the system says of an error, in its words alone; for a message's `found`."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


class UserError(ExplainedError, ValueError):
    """Bad input: a request, a file, a folder or an option that the caller can change."""


class FolderError(UserError):
    """A bundle or engine folder that is missing, foreign, damaged or made for another machine."""


class BusyError(ExplainedError):
    """Too many requests wait already; this one was not taken."""


class NumericError(ExplainedError):
    """A component produced NaN or infinity; the message names the component and the step."""
