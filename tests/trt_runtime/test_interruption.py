"""SIGTERM and SIGHUP as interruptions, and interruptions that wait."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from trt_runtime.interruption import (
    Termination,
    interruptions_wait,
    termination_as_interruption,
)

TERMINATIONS = [signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _not_ignored() -> Iterator[None]:
    """As where tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", TERMINATIONS)
def test_terminations_interrupt_within_and_are_as_before_outside(number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt) as caught, termination_as_interruption():
        os.kill(os.getpid(), number)
    assert isinstance(caught.value, Termination)
    assert caught.value.number == number
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", TERMINATIONS)
def test_what_is_ignored_stays_ignored(number: int) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with termination_as_interruption():
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_other_threads_change_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def work() -> None:
        with termination_as_interruption():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("number", [signal.SIGINT, *TERMINATIONS])
def test_interruptions_wait_for_the_end(number: int) -> None:
    before = signal.getsignal(signal.SIGINT)
    done = []

    def work() -> None:
        with termination_as_interruption(), interruptions_wait():
            os.kill(os.getpid(), number)
            done.append("the rest")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is before


def test_nothing_waits_that_raises_nothing() -> None:
    """SIGTERM's default, which ends the process, stays the default."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with interruptions_wait():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
