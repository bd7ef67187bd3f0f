from __future__ import annotations

import pytest

from trt_runtime.printable import printable, shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("model.layers.0.weight", "model.layers.0.weight"),
        ("你好 é", "你好 é"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nWhat to do: rm -rf", "a\\nWhat to do: rm -rf"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
        ("", ""),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


class Untold:
    def __repr__(self):
        raise RuntimeError("nobody shall know")


@pytest.mark.parametrize(
    "value",
    [10**5000, Untold(), [Untold()], "\x1b[31m" * 100, "a" * 500],
    ids=["long", "untold", "list", "escapes", "letters"],
)
def test_any_value_is_shown_in_a_line(value):
    text = shown(value)
    assert text.isprintable()
    assert 0 < len(text) <= 80
