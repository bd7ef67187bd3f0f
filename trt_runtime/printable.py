"""Values and text from strangers, made fit to be shown on a terminal or inside a message."""

from __future__ import annotations

from collections.abc import Callable


def printable(text: str) -> str:
    r"""`text` with every character that is not printable written as an escape, such as \x1b or \n.

    A name in a downloaded file may hold escape sequences that a terminal would obey, or a newline
    that would let the rest pass for a line of our own.
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(value: object, most: int = 80, form: Callable[[object], str] = repr) -> str:
    """`value` in a message: its repr, or its str, printable and cut to `most` characters.

    Never fails: a value without a repr, such as an integer of more digits than Python writes, is
    shown by its type.
    """
    try:
        text = form(value)
    except Exception:  # a stranger's __repr__ may raise anything
        text = f"<{type(value).__name__}>"
    text = printable(text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 3]}..."
