"""What may be spoken at all: text without characters that are none."""

from __future__ import annotations

import unicodedata

from trt_runtime.errors import UserError
from trt_runtime.printable import shown

#: Beyond this a tokenizer takes minutes and gigabytes before it can say how many tokens there are.
LONGEST_TEXT = 200_000


def check_text(text: object, name: str = "text", *, may_be_blank: bool = False) -> str:
    """`text` as str; raises UserError unless it can be spoken.

    Refused: what is no str; an empty or blank text, unless `may_be_blank`; control characters
    (Unicode category Cc) other than newline and tab; halves of surrogate pairs, which are no text.
    """
    if not isinstance(text, str):
        raise UserError(
            f"{name} is not text",
            expected="a str",
            found=type(text).__name__,
            do="decode bytes first, for example text.decode('utf-8')",
        )
    # A subclass may say anything of itself; an enumeration's str() is its name.
    text = str.__str__(text)
    if len(text) > LONGEST_TEXT:
        raise UserError(
            f"{name} is too long",
            expected=f"at most {LONGEST_TEXT:,} characters, far more than any model's context",
            found=f"{len(text):,}",
            do="speak it in parts",
        )
    for index, character in enumerate(text):
        category = unicodedata.category(character)
        if category == "Cs" or (category == "Cc" and character not in "\n\t"):
            kind = "half of a surrogate pair" if category == "Cs" else "a control character"
            raise UserError(
                f"{name} holds {kind}",
                expected="letters, punctuation, spaces, tabs and newlines",
                found=f"U+{ord(character):04X} at index {index}",
                do="remove it",
            )
    if not may_be_blank and not text.strip():
        raise UserError(
            f"{name} is blank",
            expected="at least one character that is not white space",
            found=f"{len(text)} characters of white space" if text else "an empty text",
            do="give some words to speak",
        )
    return text


def check_line(text: object, name: str, *, why: str, do: str) -> str:
    """`text` without white space around it; raises UserError unless it can be spoken and is a line.

    `why` says what asks for one line, `do` what to do with a line break.
    """
    line = check_text(text, name).strip()
    if len(line.splitlines()) > 1:
        raise UserError(
            f"{name} holds a line break", expected=f"one line: {why}", found=shown(line), do=do
        )
    return line
