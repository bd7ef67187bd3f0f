"""One request from its first sentence to its last: guards, further attempts, chunks, positions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from trt_runtime.batch import Batch
from trt_runtime.conditioning import Conditioning
from trt_runtime.folder import OpenFolder
from trt_runtime.geometry import Geometry
from trt_runtime.guards import RUNAWAY, SILENT_STUB, expected_steps, is_silent_stub
from trt_runtime.loop import Run
from trt_runtime.noise import NoiseSource, derived_seed, noise_source
from trt_runtime.passages import Passage
from trt_runtime.prompt import Prompt
from trt_runtime.prompt_embedding import SpokenContext
from trt_runtime.request import Request
from trt_runtime.speech import (
    AudioChunk,
    FinishReason,
    Progress,
    Speech,
    SpokenSentence,
    Timings,
)
from trt_runtime.stopwatch import Stopwatch

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Piece:
    """A passage to speak, which is a sentence where the text is long, and its prompt."""

    passage: Passage
    prompt: Prompt


@dataclass
class Speaking:
    """A request that is being spoken. Made by one call, used by one thread.

    `cancelled` is asked before the first step and after each, beside the request's `on_progress`.
    """

    opened: OpenFolder
    request: Request
    pieces: Sequence[Piece]
    conditioning: Conditioning
    context: SpokenContext
    warnings: tuple[str, ...]
    stopwatch: Stopwatch
    started: float
    cancelled: Callable[[], bool] = lambda: False
    sentences: list[SpokenSentence] = field(default_factory=list, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    _first_audio: float = field(default=0.0, init=False)
    _finished: float = field(default=0.0, init=False)
    _samples: int = field(default=0, init=False)
    _steps: int = field(default=0, init=False)
    _chunks: int = field(default=0, init=False)

    def chunks(self, *, chunk_patches: int) -> Iterator[AudioChunk]:
        """The audio in chunks of `chunk_patches` patches; a sentence's last may be shorter."""
        batch = Batch(self.opened.backend, self.opened.manifest.geometry)
        for chunk in self.chunks_in(batch, chunk_patches=chunk_patches):
            if chunk is None:
                batch.step()
            else:
                yield chunk

    def chunks_in(self, batch: Batch, *, chunk_patches: int) -> Iterator[AudioChunk | None]:
        """As `chunks`, in a batch that others step: None each time that it needs a step."""
        if self.cancelled():
            yield self.nothing()
            return
        for index in range(len(self.pieces)):
            yield from self._speak(index, chunk_patches, batch)
            if self.finish_reason is not None:
                return

    def nothing(self) -> AudioChunk:
        """Ends a request that was cancelled before its first step: its one chunk, without audio."""
        self.finish_reason = FinishReason.CANCELLED
        return self._chunk((), 0, final=True)

    def speech(self, parts: Iterable[NDArray[np.float32]]) -> Speech:
        """The whole of a request that has ended; parts: the audio of its chunks."""
        audio = joined(parts)
        assert self.finish_reason is not None
        return Speech(
            audio=audio,
            sample_rate=self.opened.manifest.geometry.sample_rate,
            finish_reason=self.finish_reason,
            steps=sum(sentence.steps for sentence in self.sentences),
            seed=self.request.seed,
            timings=self.timings(),
            sentences=tuple(self.sentences),
            warnings=self.warnings,
        )

    def timings(self) -> Timings:
        """For a request that has ended."""
        return Timings(
            first_audio=self._first_audio,
            total=self._finished - self.started,
            audio=self._samples / self.opened.manifest.geometry.sample_rate,
            components=dict(self.stopwatch.seconds),
        )

    def _speak(self, index: int, chunk_patches: int, batch: Batch) -> Iterator[AudioChunk | None]:
        """One sentence: attempts until no guard objects, or none is left.

        With further attempts left nothing is given out before the sentence has ended: what was
        heard cannot be taken back.
        """
        request, piece = self.request, self.pieces[index]
        bound = expected_steps(request, piece.passage.text, self.opened.manifest.geometry)
        remarks: list[str] = []
        for attempt in range(request.retries + 1):
            spare = attempt < request.retries
            run = self._run(index, attempt, bound, cut=spare or request.on_runaway == "stop")
            parts: list[NDArray[np.float32]] = []
            # Closed here and not when it is collected: the slot is free once this is left.
            with closing(run.audio(batch)) as steps:
                for audio in steps:
                    if audio is None:
                        yield None
                        continue
                    parts.append(audio)
                    if not request.retries:
                        self._note_first_audio(audio)
                        if len(parts) == chunk_patches and run.finish_reason is None:
                            yield self._chunk(parts, index)
                            parts.clear()
            problem = _problem(run, bound, request.min_steps)
            seed = derived_seed(request.seed, attempt)
            if problem is not None:
                remarks.append(self._remark(index, problem, seed, run))
            if problem is None or not spare or run.cancelled:
                break
        if attempt:
            remarks.append(f"sentence {index + 1}: attempt {attempt + 1} was kept, seed {seed}")
        self._end(index, run, attempt, seed, tuple(remarks))
        if request.retries:
            self._note_first_audio(parts[-1])
            while len(parts) > chunk_patches:
                yield self._chunk(parts[:chunk_patches], index)
                del parts[:chunk_patches]
        yield self._chunk(parts, index, ended=True)

    def _run(self, index: int, attempt: int, bound: int | None, *, cut: bool) -> Run:
        request, piece = self.request, self.pieces[index]

        def on_step(step: int, stop: float) -> bool:
            if self.cancelled():
                return False
            if request.on_progress is None:
                return True
            seconds = time.perf_counter() - self.started
            progress = Progress(
                step, request.use.max_steps, stop, seconds, index, len(self.pieces), attempt
            )
            answer = request.on_progress(progress)
            return not (isinstance(answer, bool | np.bool_) and not answer)

        return Run(
            self.opened,
            request,
            piece.prompt,
            self.context,
            self._noise(derived_seed(request.seed, attempt)),
            bound if cut else None,
            on_step,
            self.stopwatch,
        )

    def _noise(self, seed: int) -> NoiseSource:
        return noise_of(self.request, seed, self.opened.manifest.geometry)

    def _remark(self, index: int, problem: str, seed: int, run: Run) -> str:
        remark = (
            f"{problem}: sentence {index + 1} of {len(self.pieces)}, seed {seed}: "
            + _WHAT_HAPPENED[problem].format(steps=run.steps, reason=run.finish_reason)
        )
        if not self.request.retries:
            remark += _WHAT_TO_TRY[problem]
        log.warning(remark)
        return remark

    def _end(self, index: int, run: Run, attempt: int, seed: int, remarks: tuple[str, ...]) -> None:
        passage = self.pieces[index].passage
        assert run.finish_reason is not None
        self.sentences.append(
            SpokenSentence(
                text=passage.text,
                start=passage.start,
                end=passage.end,
                first_sample=sum(sentence.samples for sentence in self.sentences),
                samples=run.samples,
                steps=run.steps,
                finish_reason=run.finish_reason,
                seed=seed,
                attempts=attempt + 1,
                warnings=remarks,
                trace=run.trace(self.conditioning.latents),
            )
        )
        self.warnings += remarks
        unspoken = index < len(self.pieces) - 1
        if not unspoken or run.cancelled:
            reasons = {sentence.finish_reason for sentence in self.sentences}
            if unspoken:
                reasons.add(FinishReason.CANCELLED)
            self.finish_reason = next(reason for reason in _GRAVEST_FIRST if reason in reasons)

    def _note_first_audio(self, audio: NDArray[np.float32]) -> None:
        if len(audio) and not self._first_audio:
            self._first_audio = time.perf_counter() - self.started

    def _chunk(
        self,
        parts: Sequence[NDArray[np.float32]],
        index: int,
        *,
        ended: bool = False,
        final: bool = False,
    ) -> AudioChunk:
        """The chunk of some steps' audio; with `ended` the sentence's last, perhaps of all."""
        audio = np.concatenate((np.empty(0, np.float32), *parts))
        self._steps += len(parts)
        chunk = AudioChunk(
            audio=audio,
            sample_rate=self.opened.manifest.geometry.sample_rate,
            start=self._samples,
            index=self._chunks,
            final=False,
            steps=self._steps,
            seed=self.request.seed,
            sentence=index,
            ended=self.sentences[-1] if ended else None,
        )
        self._samples += len(audio)
        self._chunks += 1
        self._finished = time.perf_counter()
        if (ended and self.finish_reason is not None) or final:
            return replace(
                chunk, final=True, finish_reason=self.finish_reason, warnings=self.warnings
            )
        return chunk


def joined(parts: Iterable[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The parts one after the other, in an array that grows as they come: none is held twice."""
    whole = np.empty(0, np.float32)
    for part in parts:
        start = len(whole)
        # The array is ours alone; debuggers and tracers hold references that are none.
        whole.resize(start + len(part), refcheck=False)
        whole[start:] = part
    return whole


#: A request of several sentences ended as the gravest of them.
_GRAVEST_FIRST = (
    FinishReason.CANCELLED,
    FinishReason.RUNAWAY,
    FinishReason.MAX_STEPS,
    FinishReason.STOP,
)

_WHAT_HAPPENED = {
    SILENT_STUB: "the model stopped at the earliest step allowed ({steps}) and the audio is near "
    "silence",
    RUNAWAY: "far more than its text can take: {steps} steps, ended by {reason}",
}
_WHAT_TO_TRY = {
    SILENT_STUB: "; try another seed, or retries=2",
    RUNAWAY: '; try another seed, retries=2, or on_runaway="stop"',
}


def noise_of(request: Request, seed: int, g: Geometry) -> NoiseSource:
    """The noise of an attempt; raises UserError where recorded noise does not fit the model."""
    return noise_source(
        request.noise,
        seed=seed,
        noise_scale=request.noise_scale,
        patch=g.patch,
        latent_dim=g.latent_dim,
        solver_steps=g.solver_steps,
    )


def _problem(run: Run, bound: int | None, min_steps: int) -> str | None:
    """The label of what a guard has to say about a run that has ended."""
    reason = run.finish_reason
    if reason is FinishReason.CANCELLED:
        return None
    if reason is FinishReason.STOP:
        if is_silent_stub(run.root_mean_square, run.steps, min_steps):
            return SILENT_STUB
        return RUNAWAY if bound is not None and run.steps > bound else None
    return RUNAWAY if bound is not None and run.steps >= bound else None
