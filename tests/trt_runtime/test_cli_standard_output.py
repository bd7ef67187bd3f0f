"""What a command prints, by the encoding of where it goes."""

from __future__ import annotations

import io
import json
import sys

import pytest

from trt_runtime.cli import standard_output

#: Chinese, one beyond U+FFFF, and what a terminal would obey or turn round.
VALUE = {"小明": "𝄞 \u202e \x9b \x7f \x1b \U000e0001 \ud800"}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "gbk"])
def test_json_is_in_every_script_that_the_output_can_show(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", output)
    standard_output.print_json(VALUE)
    output.flush()
    data = output.buffer.getvalue()
    text = data.decode(encoding)
    assert json.loads(text) == VALUE
    assert all(c.isprintable() or c == "\n" for c in text)
    assert ("小明" in text) == ("𝄞" in text) == (encoding == "utf-8")


def test_a_line_moves_no_cursor_and_fits_the_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    standard_output.print_line("小\x1b[2J\ta")
    standard_output.print_text("小\x1b[2J\ta\n")
    output.flush()
    lines = output.buffer.getvalue().splitlines()
    assert lines == [rb"\u5c0f\x1b[2J\ta", b"\\u5c0f\\x1b[2J\ta", b""]
