"""Submitted requests: batched, cancelled, refused, awaited, and each as if it were alone."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Folders
from tests.goldens import relative_error
from tests.trt_runtime.test_batch import TOLERANCE, alone, options_of
from trt_runtime import BusyError, FolderError, Submission, UserError, load
from trt_runtime.backends.onnxruntime_cpu import CpuBuffer
from trt_runtime.batch import Batch
from trt_runtime.speech import FinishReason
from trt_runtime.synthesizer import Synthesizer

ROOT = Path(__file__).resolve().parents[2]
LONG = {"text": "Say this.", "min_steps": 200, "max_steps": 200}


@pytest.fixture(scope="module")
def speaker(dense: Folders) -> Iterator[Synthesizer]:
    with load(dense.engines, threads=1, slots=4, waiting=100) as synthesizer:
        yield synthesizer


def submit(speaker: Synthesizer, options: dict[str, Any]) -> Submission:
    given = dict(options)
    return speaker.submit(given.pop("text"), **given)


def wait_for_the_end() -> None:
    """Until the thread that speaks has nothing left to do."""
    for _ in range(200):
        if not any(thread.name == "ming-trt speaks" for thread in threading.enumerate()):
            return
        time.sleep(0.05)
    raise AssertionError("it still speaks")


def memory() -> int:
    """Bytes of this process that no file backs, and that somebody still holds."""
    # An error that was raised here refers to this test's frames, and they to the submissions.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(text.split("RssAnon:")[1].split()[0])


def count_buffers() -> int:
    """The buffers, of slots and of decoders, that somebody still holds."""
    gc.collect()
    return sum(type(thing) is CpuBuffer for thing in gc.get_objects())


def load_of_64(speaker: Synthesizer, expected: dict[int, Any]) -> list[int]:
    """64 requests, a third cancelled at some time, some wrong; returns how many ended how."""
    rng = np.random.default_rng(5)
    numbers = [int(number) for number in rng.permutation(64)]
    submitted: dict[int, Submission] = {}
    for number in numbers:
        options = options_of(number % 8) if number % 9 else {"text": "x", "seed": -number - 1}
        submitted[number] = submit(speaker, options)
    for number in rng.choice(numbers, 64 // 3, replace=False):
        time.sleep(float(rng.random()) * 0.01)
        submitted[int(number)].cancel()
    ended = [0, 0, 0]
    for number, submission in submitted.items():
        if not number % 9:
            with pytest.raises(UserError, match="seed"):
                submission.result(60)
            ended[2] += 1
            continue
        speech, wanted = submission.result(60), expected[number % 8]
        if speech.finish_reason is FinishReason.CANCELLED:
            assert submission.cancelled
            assert speech.steps <= wanted.steps
            ended[1] += 1
            continue
        assert (speech.steps, speech.finish_reason) == (wanted.steps, wanted.finish_reason)
        assert relative_error(speech.audio, wanted.audio) <= TOLERANCE, number
        ended[0] += 1
    return ended


def test_sixty_four_at_once(speaker: Synthesizer) -> None:
    """Each is what it is alone; no slot and no memory is kept."""
    expected = {number: alone(speaker, options_of(number)) for number in range(8)}
    spoken, cancelled, wrong = load_of_64(speaker, expected)
    assert wrong == 8
    assert cancelled >= 5
    assert spoken + cancelled == 56
    wait_for_the_end()
    before, buffers = memory(), count_buffers()
    for _ in range(2):
        load_of_64(speaker, expected)
        wait_for_the_end()
    # A round makes some 100 MB: caches of four slots, and of a decoder for each request. What the
    # system's allocator keeps between rounds depends on who else is in this process.
    assert memory() - before < 100 << 20
    assert count_buffers() == buffers
    scheduler = speaker._scheduler
    assert scheduler is not None
    assert (scheduler._waiting, len(scheduler._ready)) == (0, 0)


def test_it_streams_what_it_speaks(speaker: Synthesizer) -> None:
    options = options_of(5) | {"max_steps": 9}
    submission = submit(speaker, options)
    chunks = list(submission.chunks())
    assert [chunk.index for chunk in chunks] == list(range(9))
    assert [chunk.final for chunk in chunks] == [False] * 8 + [True]
    speech = submission.result(0)
    np.testing.assert_array_equal(np.concatenate([chunk.audio for chunk in chunks]), speech.audio)
    assert [chunk.index for chunk in submission.chunks()] == list(range(9)), "read a second time"
    assert submission.done()
    assert speech.timings.first_audio > 0


def test_it_is_awaited(speaker: Synthesizer) -> None:
    async def speak() -> None:
        first, second = (submit(speaker, options_of(number)) for number in (5, 6))
        heard = [chunk.audio async for chunk in first]
        speech = await first
        np.testing.assert_array_equal(np.concatenate(heard), speech.audio)
        assert (await asyncio.gather(first, second))[1].steps == (await second).steps
        with pytest.raises(UserError, match="seed"):
            await submit(speaker, {"text": "x", "seed": -1})
        with pytest.raises(UserError, match="seed"):
            async for _ in submit(speaker, {"text": "x", "seed": -1}):
                pass
        # Left in the middle, and cancelled: the rest is not waited for.
        third = submit(speaker, LONG)
        async for chunk in third:
            assert not chunk.final
            third.cancel()
            break
        assert (await third).finish_reason is FinishReason.CANCELLED

    asyncio.run(asyncio.wait_for(speak(), 60))


def test_first_come_first_served_and_nobody_waits_for_the_longest(speaker: Synthesizer) -> None:
    """Four slots, one of them taken by a long request: the others go on changing hands."""
    long = submit(speaker, LONG)
    begun: list[int] = []

    def noting(number: int) -> Any:
        def on_progress(progress: Any) -> None:
            if progress.step == 1:
                begun.append(number)

        return on_progress

    short = [
        submit(speaker, options_of(n) | {"max_steps": 5, "on_progress": noting(n)})
        for n in range(12)
    ]
    for submission in short:
        assert submission.result(60).steps == 5
    assert begun == list(range(12))
    assert not long.done()
    long.cancel()
    assert 0 < long.result(60).steps < 200


def test_one_that_waits_is_cancelled_before_it_begins(dense: Folders) -> None:
    with load(dense.engines, threads=1, slots=1) as speaker:
        first, second = submit(speaker, LONG), submit(speaker, options_of(2))
        second.cancel()
        first.cancel()
        speech = second.result(60)
        assert (speech.steps, len(speech.audio)) == (0, 0)
        assert speech.finish_reason is FinishReason.CANCELLED
        (chunk,) = second.chunks()
        assert (chunk.final, chunk.finish_reason) == (True, FinishReason.CANCELLED)


def test_too_many_that_wait_are_refused(dense: Folders) -> None:
    with load(dense.engines, threads=1, slots=1, waiting=2) as speaker:
        taken: list[Submission] = []

        def submit_many() -> None:
            for _ in range(10):
                taken.append(submit(speaker, LONG))

        with pytest.raises(BusyError, match=r"at most 2[\s\S]*What to do"):
            submit_many()
        assert 2 <= len(taken) <= 4
        for submission in taken:
            submission.cancel()
        for submission in taken:
            submission.result(60)
        assert submit(speaker, options_of(1)).result(60).steps


def test_a_callers_error_is_its_requests_alone(speaker: Synthesizer) -> None:
    def failing(progress: Any) -> None:
        raise RuntimeError("of the caller")

    beside = submit(speaker, options_of(5))
    failed = submit(speaker, options_of(6) | {"on_progress": failing})
    with pytest.raises(RuntimeError, match="of the caller"):
        failed.result(60)
    with pytest.raises(RuntimeError, match="of the caller"):
        list(failed.chunks())
    assert relative_error(beside.result(60).audio, alone(speaker, options_of(5)).audio) < TOLERANCE


def test_a_step_that_fails_ends_those_in_it_and_nobody_else(
    speaker: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = Batch.step, iter(range(10**6))

    def step(self: Batch) -> None:
        if next(calls) == 3:
            raise RuntimeError("the runtime fell over")
        original(self)

    monkeypatch.setattr(Batch, "step", step)
    submitted = [submit(speaker, options_of(5) | {"max_steps": 6}) for _ in range(8)]
    with pytest.raises(RuntimeError, match="fell over"):
        submitted[0].result(60)
    assert [submission.result(60).steps for submission in submitted[4:]] == [6] * 4


def test_close_lets_the_submitted_end(dense: Folders) -> None:
    speaker = load(dense.engines, threads=1, slots=1)
    submitted = [submit(speaker, options_of(number) | {"max_steps": 3}) for number in range(4)]
    speaker.close()
    assert [submission.result(60).steps for submission in submitted] == [3] * 4
    with pytest.raises(UserError, match="closed"):
        submit(speaker, options_of(1))


@pytest.mark.parametrize("name", ["slots", "waiting"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "8", None, True])
def test_numbers_that_cannot_be_used(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=name):
        load(**{name: value})


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, asyncio.CancelledError])
def test_a_callback_that_fails_harms_nobody(
    speaker: Synthesizer, error: type[BaseException]
) -> None:
    def failing(future: Any) -> None:
        raise error("of a callback")

    first, beside = (submit(speaker, options_of(number)) for number in (5, 6))
    first.future.add_done_callback(failing)
    assert first.result(60).steps
    assert beside.result(60).steps
    assert list(first.chunks())[-1].final
    assert submit(speaker, options_of(5)).result(60).steps


def test_a_callback_may_wait_for_a_reader(speaker: Synthesizer) -> None:
    """Who reads the chunks is not kept from it by the callback that waits for it."""
    submission, read = submit(speaker, options_of(5)), threading.Event()
    reader = threading.Thread(target=lambda: (list(submission.chunks()), read.set()))
    submission.future.add_done_callback(lambda _: read.wait(30))
    reader.start()
    submission.result(60)
    assert read.wait(30)
    reader.join()


def test_an_error_that_is_kept_keeps_nothing_of_the_batch(
    speaker: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_the_end()
    before = count_buffers()

    def failing(progress: Any) -> None:
        raise RuntimeError("of the caller")

    def step(self: Batch) -> None:
        raise RuntimeError("the runtime fell over")

    kept = [submit(speaker, options_of(6) | {"on_progress": failing})]
    assert kept[0].future.exception(60) is not None
    with monkeypatch.context() as patch:
        patch.setattr(Batch, "step", step)
        kept += [submit(speaker, options_of(number)) for number in range(3)]
        assert all(submission.future.exception(60) is not None for submission in kept)
    wait_for_the_end()
    assert count_buffers() == before


def test_one_that_is_cancelled_waits_no_more(dense: Folders) -> None:
    """It ends while the slot is taken, and makes room for another."""
    with load(dense.engines, threads=1, slots=1, waiting=1) as speaker:
        long = submit(speaker, LONG)
        next(long.chunks())
        waits = submit(speaker, options_of(1))
        with pytest.raises(BusyError):
            submit(speaker, options_of(2))
        waits.cancel()
        assert waits.result(60).steps == 0
        third = submit(speaker, options_of(2))
        assert not long.done()
        long.cancel()
        assert third.result(60).steps


def test_free_slots_are_room_too(dense: Folders) -> None:
    with load(dense.engines, threads=1, slots=3, waiting=1) as speaker:
        taken = [submit(speaker, options_of(number) | {"max_steps": 3}) for number in range(4)]
        assert [submission.result(60).steps for submission in taken] == [3] * 4


def test_the_interpreter_ends_with_what_was_submitted(dense: Folders, tmp_path: Path) -> None:
    """What runs is spoken to its end; what is submitted later is an error; nothing hangs."""
    program = f"""
import atexit, threading, trt_runtime
speaker = trt_runtime.load({str(dense.engines)!r}, threads=1, slots=2)
first = speaker.submit("Say this.", max_steps=3)
def late():
    try:
        speaker.submit("Too late.", max_steps=3)
    except RuntimeError as error:
        print("refused")
atexit.register(late)
atexit.register(lambda: print(first.result(60).steps))
"""
    found = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=60, text=True, cwd=ROOT,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert found.stdout.split() == ["3", "refused"]


def test_warmup_speaks_as_many_as_are_asked_for(
    dense: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    original = Batch.step

    def step(self: Batch) -> None:
        sizes.append(len(self))
        original(self)

    monkeypatch.setattr(Batch, "step", step)
    with load(dense.engines, threads=1, slots=4) as speaker:
        speaker.warmup(submitted=6)
    # Every number of requests that step together, up to the slots: what a GPU captures.
    assert set(sizes) == {1, 2, 3, 4}


def test_leaving_by_an_error_cancels_what_was_submitted(dense: Folders) -> None:
    submitted: list[Submission] = []

    def leave() -> None:
        with load(dense.engines, threads=1, slots=1) as speaker:
            submitted.extend(submit(speaker, LONG) for _ in range(3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()
    ends = {submission.result(60).finish_reason for submission in submitted}
    assert ends == {FinishReason.CANCELLED}


def test_awaiting_takes_an_error_that_no_future_takes(speaker: Synthesizer) -> None:
    def failing(progress: Any) -> None:
        raise StopIteration

    submission = Submission()
    submission._end(StopIteration("of a caller"))
    with pytest.raises(RuntimeError, match="StopIteration"):
        submission.result(0)
    with pytest.raises(RuntimeError):
        submit(speaker, options_of(6) | {"on_progress": failing}).result(60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_speaks_too(dense: Folders) -> None:
    program = f"""
import os, sys, trt_runtime
speaker = trt_runtime.load({str(dense.engines)!r}, threads=1, slots=2)
assert speaker.submit("Say this.", max_steps=3).result(30).steps == 3
child = os.fork()
if child == 0:
    steps = speaker.submit("Say this.", max_steps=3).result(30).steps
    os._exit(0 if steps == 3 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    found = subprocess.run([sys.executable, "-c", program], timeout=90, cwd=ROOT, check=False)
    assert found.returncode == 0


def test_more_slots_than_any_machine_steps_are_refused() -> None:
    with pytest.raises(UserError, match=r"slots[\s\S]*1 to 256"):
        load(slots=1000)


def test_what_explains_itself_is_not_taken_for_missing_memory(
    speaker: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Batch, *_: Any) -> None:
        raise FolderError("talker cannot be captured", do="build it again")

    wait_for_the_end()
    with monkeypatch.context() as patch:
        patch.setattr(Batch, "__init__", broken)
        with pytest.raises(FolderError, match=r"^talker cannot be captured"):
            speaker.submit("Say this.", max_steps=2).result(60)


def test_slots_that_find_no_memory_are_told(
    speaker: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Batch, *_: Any) -> None:
        raise MemoryError("Unable to allocate 977. GiB")

    wait_for_the_end()
    with monkeypatch.context() as patch:
        patch.setattr(Batch, "__init__", full)
        with pytest.raises(UserError, match=r"no memory for 4 requests[\s\S]*slots="):
            submit(speaker, options_of(5)).result(60)
    assert submit(speaker, options_of(5)).result(60).steps
