"""What an export tells: shares that never fall, times that are learnt, a line for a terminal."""

from __future__ import annotations

import io
import os
import re

import pytest

import export.terminal_line
from export.durations import about
from export.progress import READ, TRACE, WRITE, Progress
from export.terminal_line import TerminalLine


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "about 0 s"),
        (119, "about 119 s"),
        (121, "about 2 minutes"),
        (3600, "about 60 minutes"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert about(seconds) == text


def test_the_time_left_is_learnt(clock: Clock) -> None:
    lines: list[str] = []
    progress = Progress(lines.append, clock=clock)
    for _ in range(4):
        progress.plan(WRITE, 10e9)
    # As guessed: 4 s a gigabyte.
    assert progress.state() == "0 % done, about 3 minutes left"
    with progress.step("one", WRITE, 10e9):
        clock.now += 10
        assert progress.seconds == 10
    progress.done("one")
    with progress.step("two", WRITE, 10e9):
        clock.now += 30
    progress.done("two")
    # 20 s for each of the two that are left.
    assert lines == ["one; 25 % done, about 30 s left", "two; 50 % done, about 40 s left"]


def test_kinds_are_learnt_apart(clock: Clock) -> None:
    progress = Progress(print, clock=clock)
    progress.plan(READ, 1e9)
    progress.plan(WRITE, 1e9)
    for units in (5.0, 5.0, 10.0):
        progress.plan(TRACE, units)
    assert progress.state() == "0 % done, about 25 s left"
    with progress.step("read", READ, 1e9):
        clock.now += 100  # a slow disk says nothing about graphs
    assert progress.state().endswith("about 24 s left")
    with progress.step("write", WRITE, 1e9):
        clock.now += 1
    with progress.step("graph", TRACE, 5.0):
        clock.now += 15
    # Graphs take three times the estimate: 15 s and 30 s.
    assert progress.state().endswith("about 45 s left")


def test_what_is_kept_costs_no_time_and_teaches_none(clock: Clock) -> None:
    progress = Progress(print, clock=clock)
    progress.plan(TRACE, 10.0)
    progress.plan(TRACE, 30.0)
    progress.keep(TRACE, 30.0)
    assert progress.state() == "75 % done, about 10 s left"
    with progress.step("graph", TRACE, 10.0):
        clock.now += 20
    assert progress.state() == "100 % done"


def test_nothing_is_done_before_it_is_done(clock: Clock) -> None:
    progress = Progress(print, clock=clock)
    progress.plan(WRITE, 1e12)
    with progress.step("nearly all", WRITE, 1e12 - 1):
        clock.now += 1
    assert progress.state().startswith("99 % done")


def test_long_steps_are_shown_while_they_run(clock: Clock) -> None:
    shown: list[str] = []
    progress = Progress(print, shown.append, clock)
    progress.plan(WRITE, 100.0)
    progress.plan(WRITE, 100.0)
    with progress.step("quick", WRITE, 100.0):
        for _ in range(10):
            clock.now += 0.19
            progress.advance(10)
    assert shown == [""]
    shown.clear()
    with progress.step("slow", WRITE, 100.0):
        for _ in range(100):
            clock.now += 0.1
            progress.advance(1)
    assert shown[0].startswith("slow [####................] 21 %; 60 % done, about ")
    assert shown[-1] == ""
    seen = [int(re.findall(r"(\d+) % done", text)[0]) for text in shown[:-1]]
    assert seen == sorted(seen)
    assert 95 <= seen[-1] < 100
    # Not faster than the eye.
    assert len(shown) <= 1 + 8 / 0.2 + 1


def test_the_counts_are_those_of_the_step_however_it_was_counted(clock: Clock) -> None:
    progress = Progress(print, clock=clock)
    progress.plan(WRITE, 100.0)
    progress.plan(WRITE, 100.0)
    with progress.step("a", WRITE, 100.0):
        clock.now += 5
        progress.advance(30)
        clock.now += 5
    assert progress.state() == "50 % done, about 10 s left"


def test_a_step_that_fails_leaves_no_line(clock: Clock) -> None:
    shown: list[str] = []
    progress = Progress(print, shown.append, clock)
    with pytest.raises(RuntimeError), progress.step("a", WRITE, 1.0):
        raise RuntimeError
    assert shown == [""]


def test_a_terminal_shows_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    size = os.terminal_size((10, 24))
    monkeypatch.setattr(export.terminal_line.shutil, "get_terminal_size", lambda: size)
    stream = io.StringIO()
    line = TerminalLine(stream)
    line.show("")
    assert stream.getvalue() == ""
    line.show("a line that is too long")
    line.show("b")
    line.show("")
    line.show("")
    assert stream.getvalue() == "\r\x1b[Ka line th\r\x1b[Kb\r\x1b[K"
