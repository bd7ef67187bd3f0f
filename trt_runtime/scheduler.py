"""Continuous batching: submitted requests that step together, each entering when a slot is free.

One thread prepares requests (text, references), another speaks. Between two steps at most one
request is admitted, in the order in which they came, so that those who speak are delayed by one new
prompt at most; a further sentence of one that speaks reads its own besides. The thread that speaks
ends when nothing is left to do, and its batch with it.
"""

from __future__ import annotations

import logging
import os
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from trt_runtime.batch import Batch
from trt_runtime.errors import BusyError, UserError
from trt_runtime.folder import OpenFolder
from trt_runtime.speaking import Speaking
from trt_runtime.speech import AudioChunk, Speech
from trt_runtime.submission import Submission

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Entry:
    """A submitted request on its way: prepared by `prepare`, then spoken chunk by chunk."""

    submission: Submission
    prepare: Callable[[], Speaking]
    chunk_patches: int
    speaking: Speaking | None = None
    chunks: Iterator[AudioChunk | None] | None = field(default=None, repr=False)

    def end(self, outcome: Speech | BaseException) -> None:
        """Gives the submission its end, and keeps nothing of the batch: callers keep errors."""
        self.chunks = self.speaking = None
        if isinstance(outcome, BaseException):
            traceback.clear_frames(outcome.__traceback__)
        self.submission._end(outcome)


class Scheduler:
    """Speaks submitted requests of one folder in up to `slots` slots; at most `waiting` wait."""

    def __init__(self, opened: OpenFolder, *, slots: int, waiting: int) -> None:
        self.process = os.getpid()
        self._opened = opened
        self._slots = slots
        self._most_waiting = waiting
        self._lock = threading.Condition()
        self._ready: deque[_Entry] = deque()
        self._live: weakref.WeakSet[_Entry] = weakref.WeakSet()
        # Those that are not in a slot yet, prepared or not; and those that are.
        self._waiting = self._spoken = 0
        self._preparing = ThreadPoolExecutor(1, "ming-trt prepares")
        self._thread: threading.Thread | None = None

    def submit(
        self, submission: Submission, prepare: Callable[[], Speaking], chunk_patches: int
    ) -> None:
        """Takes a request; raises BusyError where too many wait, and nothing is begun then."""
        entry = _Entry(submission, prepare, chunk_patches)
        submission._withdraw = partial(self._withdraw, entry)
        with self._lock:
            if self._waiting >= self._most_waiting + self._slots - self._spoken:
                raise BusyError(
                    "Too many requests wait to be spoken",
                    expected=f"at most {self._most_waiting} that wait, beside {self._slots} "
                    "that are spoken",
                    found=f"{self._waiting} that wait, {self._spoken} that are spoken",
                    do="submit again when one has ended, or load(..., waiting=...) with more room",
                )
            self._waiting += 1
            self._live.add(entry)
            try:
                self._preparing.submit(self._prepare, entry)
            except BaseException:  # the interpreter ends
                self._waiting -= 1
                self._lock.notify()
                raise

    def cancel(self) -> None:
        """Cancels every request that has not ended."""
        with self._lock:
            live = list(self._live)
        for entry in live:
            entry.submission.cancel()

    def _prepare(self, entry: _Entry) -> None:
        try:
            # Prepared even where it was cancelled: bad input is an error in either case.
            entry.speaking = entry.prepare()
            with self._lock:
                self._ready.append(entry)
                if self._thread is None:
                    thread = threading.Thread(target=self._speak, name="ming-trt speaks")
                    thread.start()
                    self._thread = thread
                self._lock.notify()
        except BaseException as error:
            with self._lock:
                self._waiting -= 1
                if entry in self._ready:
                    self._ready.remove(entry)
                self._lock.notify()
            entry.end(error)
            return
        if entry.submission.cancelled:
            self._withdraw(entry)

    def _withdraw(self, entry: _Entry) -> None:
        """Ends a request that was cancelled, where it waits for a slot."""
        with self._lock:
            if entry not in self._ready:
                return
            self._ready.remove(entry)
            self._waiting -= 1
            self._lock.notify()
        assert entry.speaking is not None
        entry.submission._give(entry.speaking.nothing())
        entry.end(entry.speaking.speech(()))

    def _speak(self) -> None:
        """Steps while there is anything to step; the thread's whole life."""
        active: list[_Entry] = []
        batch: Batch | None = None
        while True:
            if not active and not self._ready:
                # Nothing of it is kept while nobody speaks; another thread may begin with its own.
                batch = None
            if not self._wait_for_work(active):
                return
            try:
                if batch is None:
                    geometry = self._opened.manifest.geometry
                    batch = Batch(self._opened.backend, geometry, self._slots)
                self._admit(active, batch)
                active = [entry for entry in active if self._advance(entry)]
                if active:
                    batch.step()
            except BaseException as error:
                full = isinstance(error, MemoryError | ValueError)
                if batch is None and full and not isinstance(error, UserError):
                    error = UserError(
                        f"There is no memory for {self._slots} requests at a time",
                        expected="caches for each of them beside the weights",
                        found=str(error),
                        do="load(..., slots=...) with fewer",
                    )
                # Of the step itself, and so of all that took part in it; the rest begin afresh.
                failed = active or self._next()
                log.exception("a step failed: %d requests end with it", len(failed))
                _end_all(failed, error)
                active, batch = [], None

    def _wait_for_work(self, active: list[_Entry]) -> bool:
        """Whether there is a request to step or to admit; False ends the thread."""
        with self._lock:
            self._spoken = len(active)
            while not active and not self._ready:
                if not self._waiting:
                    self._thread = None
                    return False
                self._lock.wait()  # some are still being prepared
        return True

    def _next(self) -> list[_Entry]:
        """The request whose turn it is, taken out of the queue; none where none is ready."""
        with self._lock:
            if not self._ready:
                return []
            self._waiting -= 1
            self._spoken += 1
            return [self._ready.popleft()]

    def _admit(self, active: list[_Entry], batch: Batch) -> None:
        """Adds the next request where a slot is free."""
        if len(active) == self._slots:
            return
        for entry in self._next():
            assert entry.speaking is not None
            entry.chunks = entry.speaking.chunks_in(batch, chunk_patches=entry.chunk_patches)
            active.append(entry)

    @staticmethod
    def _advance(entry: _Entry) -> bool:
        """Brings a request to its next step, or to its end: whether it needs another step."""
        assert entry.chunks is not None
        assert entry.speaking is not None
        try:
            for chunk in entry.chunks:
                if chunk is None:
                    return True
                entry.submission._give(chunk)
            entry.end(entry.speaking.speech(entry.submission._audio()))
        except BaseException as error:
            # Also what a caller's on_progress raises: it is that request's, and its slot is free.
            entry.end(error)
        return False


def _end_all(entries: list[_Entry], error: BaseException) -> None:
    for entry in entries:
        entry.end(error)
