"""The line of work that takes long: on a terminal, after two seconds, and gone at the end."""

from __future__ import annotations

import io
import sys

import pytest

from trt_runtime import progress_bar
from trt_runtime.progress_bar import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that it is, in a list of one."""
    now = [100.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    return now


def test_it_shows_after_two_seconds_and_clears_itself(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with ProgressBar("loading", 4_000_000_000) as bar:
        clock[0] += 1.9
        bar.add(1_000_000_000)
        assert sys.stderr.getvalue() == ""
        clock[0] += 0.2
        bar.add(1_000_000_000)
        shown = sys.stderr.getvalue()
        assert shown.startswith("\rloading [###############               ] 2.0 of 4.0 GB")
        bar.add(1_000_000_000)
        # Not at every piece.
        assert sys.stderr.getvalue() == shown
    assert sys.stderr.getvalue() == shown + "\r" + " " * (len(shown) - 1) + "\r"


def test_it_is_silent_where_nobody_looks(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with ProgressBar("loading", 0) as bar:
        clock[0] += 10
        bar.add(5)
    assert sys.stderr.getvalue() == ""
