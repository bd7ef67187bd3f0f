"""The errors that a caller can get: mistakes that the caller can mend, and faults of ours.

Every message says what was wrong, what was expected, what was found and what to do.
"""

from __future__ import annotations


class MingError(Exception):
    """Anything this project raises on purpose. Command lines print it and exit with status 2."""


class UserError(MingError, ValueError):
    """Bad input: a request, a file, a folder or an option that the caller can change."""

    def __init__(self, what: str, *, expected: str = "", found: str = "", do: str = "") -> None:
        parts = [what.rstrip(".") + "."]
        if expected:
            parts.append(f"Expected: {expected}.")
        if found:
            parts.append(f"Found: {found}.")
        if do:
            parts.append(f"What to do: {do}.")
        super().__init__("\n  ".join(parts))


class FolderError(UserError):
    """A bundle or engine folder that is missing, foreign, damaged or made for another machine."""


class NumericError(MingError):
    """A component produced NaN or infinity; the message names the component and the step."""
