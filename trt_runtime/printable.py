"""Text from a stranger's file, made fit to be shown on a terminal or inside a message."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""`text` with every character that is not printable written as an escape, such as \x1b or \n.

    A name in a downloaded file may hold escape sequences that a terminal would obey, or a newline
    that would let the rest pass for a line of our own.
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
