"""SIGTERM as an interruption, and interruptions that wait."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from trt_runtime.interruption import interruptions_wait, termination_as_interruption


def test_sigterm_interrupts_within_and_is_as_before_outside() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), termination_as_interruption():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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
