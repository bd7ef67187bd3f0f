"""A submitted request: what is heard of it while others are spoken beside it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trt_runtime.speech import AudioChunk, Speech

log = logging.getLogger(__name__)


class Submission:
    """One request among others; every method may be called from any thread.

    Its audio comes by :meth:`chunks` or `async for`, and the whole by :meth:`result` or `await`.
    All may be used together and again: chunks are kept until the submission is dropped. An error of
    the request is raised by each of them, and by no other request's.
    """

    def __init__(self) -> None:
        #: The whole speech, for code that composes futures.
        self.future: Future[Speech] = Future()
        # Nobody cancels a future that runs; `cancel` is how a request ends early.
        self.future.set_running_or_notify_cancel()
        self._chunks: list[AudioChunk] = []
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._ended = False
        self._cancelled = threading.Event()
        #: What takes it out of its queue, where it waits.
        self._withdraw: Callable[[], None] = lambda: None

    def result(self, timeout: float | None = None) -> Speech:
        """The whole speech; waits at most `timeout` seconds, then raises TimeoutError.

        A request that was cancelled gives what was made of it, perhaps nothing, with the
        finish_reason `cancelled`.
        """
        return self.future.result(timeout)

    def done(self) -> bool:
        """Whether it has ended, in whichever way."""
        return self.future.done()

    def cancel(self) -> None:
        """Ends the request after the step that is being made; one that still waits, at once."""
        self._cancelled.set()
        self._withdraw()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled.is_set()

    def chunks(self) -> Iterator[AudioChunk]:
        """The chunks from the first on, each as soon as it is made."""
        index = 0
        while True:
            with self._changed:
                while len(self._chunks) == index and not self._ended:
                    self._changed.wait()
                new = self._chunks[index:]
            if not new:
                self.future.result()
                return
            yield from new
            index += len(new)

    def __await__(self) -> Generator[Any, None, Speech]:
        return asyncio.wrap_future(self.future).__await__()

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            # A loop that was closed meanwhile has nobody to wake.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(changed.set)

        with self._changed:
            self._listeners.append(wake)
        try:
            index = 0
            while True:
                changed.clear()
                ended, new = self._ended, self._chunks[index:]
                for chunk in new:
                    yield chunk
                index += len(new)
                if ended and index == len(self._chunks):
                    self.future.result()
                    return
                if not new:
                    await changed.wait()
        finally:
            with self._changed:
                self._listeners.remove(wake)

    def _audio(self) -> Iterator[NDArray[np.float32]]:
        return (chunk.audio for chunk in self._chunks)

    def _give(self, chunk: AudioChunk) -> None:
        """A further chunk; called by what speaks the request."""
        with self._changed:
            self._chunks.append(chunk)
            self._notify()

    def _end(self, speech: Speech | BaseException) -> None:
        """The whole speech, or what went wrong; called by what speaks the request. Never raises.

        Readers first, and the future not under the lock: callers' callbacks run in it, and may wait
        for readers.
        """
        with self._changed:
            self._ended = True
            self._notify()
        if isinstance(speech, StopIteration):
            # No awaiting future takes one.
            speech = RuntimeError(f"the request raised {speech!r}")
        try:
            if isinstance(speech, BaseException):
                self.future.set_exception(speech)
            else:
                self.future.set_result(speech)
        except InvalidStateError:
            log.debug("ended twice")
        except BaseException:
            # Of a callback: the future logs an Exception itself, and lets others through.
            log.exception("a callback of a submission failed")

    def _notify(self) -> None:
        self._changed.notify_all()
        for wake in self._listeners:
            wake()
