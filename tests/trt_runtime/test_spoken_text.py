"""What text may be spoken, and what is refused by name."""

from __future__ import annotations

import pytest

from trt_runtime.errors import UserError
from trt_runtime.spoken_text import check_text


@pytest.mark.parametrize(
    "text", ["Hello.", "a\tb\nc", "今天。", "e\u0301", "😀", "\u200b", "?", "\xa0a"]
)
def test_text_that_can_be_spoken(text):
    assert check_text(text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"blank[\s\S]*an empty text"),
        (" \n\t\u3000", r"blank[\s\S]*4 characters of white space"),
        ("a\x00b", r"control character[\s\S]*U\+0000 at index 1"),
        ("a\r\n", r"control character[\s\S]*U\+000D at index 1"),
        ("\x1b[31m", r"U\+001B at index 0"),
        ("ab\x85", r"U\+0085 at index 2"),
        ("a\x7f", r"U\+007F"),
        ("a\ud800", r"surrogate pair[\s\S]*U\+D800 at index 1"),
        (None, r"not text[\s\S]*NoneType"),
        (b"abc", r"not text[\s\S]*bytes[\s\S]*decode"),
        (1, r"not text"),
    ],
)
def test_text_that_cannot_be_spoken(text, message):
    with pytest.raises(UserError, match=message):
        check_text(text)


def test_a_blank_prompt_may_be_allowed():
    assert check_text(" ", "prompt", may_be_blank=True) == " "
    with pytest.raises(UserError, match=r"prompt holds a control character"):
        check_text("\x00", "prompt", may_be_blank=True)
