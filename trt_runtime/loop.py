"""The loop of one sentence: prompt → talker → tail → audio decoder, step by step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trt_runtime.audio_decoder import AudioDecoder
from trt_runtime.batch import Batch, Slot
from trt_runtime.errors import NumericError
from trt_runtime.folder import OpenFolder
from trt_runtime.geometry import Geometry
from trt_runtime.noise import NoiseSource
from trt_runtime.prompt import Prompt
from trt_runtime.prompt_embedding import SpokenContext, embed_prompt
from trt_runtime.request import Request
from trt_runtime.speech import FinishReason, Trace
from trt_runtime.stopwatch import Stopwatch

log = logging.getLogger(__name__)

STOP_THRESHOLD = 0.5


@dataclass
class Run:
    """One attempt at one sentence, from its prompt to its last sample; used by one thread.

    `cut_at`: steps after which it ends as a runaway; None never. `on_step(step, stop_probability)`
    is called after each step; returning False cancels. `cancelled` is also true of a run that was
    cancelled at its last step, whose finish_reason is its own.
    """

    opened: OpenFolder
    request: Request
    prompt: Prompt
    context: SpokenContext
    noise: NoiseSource
    cut_at: int | None
    on_step: Callable[[int, float], bool]
    stopwatch: Stopwatch
    steps: int = field(default=0, init=False)
    samples: int = field(default=0, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    cancelled: bool = field(default=False, init=False)
    _power: float = field(default=0.0, init=False)
    _latents: list[np.ndarray] = field(default_factory=list, init=False)
    _stops: list[float] = field(default_factory=list, init=False)
    _hidden: list[np.ndarray] = field(default_factory=list, init=False)

    @property
    def geometry(self) -> Geometry:
        return self.opened.manifest.geometry

    @property
    def root_mean_square(self) -> float:
        """Of the audio so far."""
        return float(np.sqrt(self._power / self.samples)) if self.samples else 0.0

    def audio(self, batch: Batch) -> Generator[NDArray[np.float32] | None]:
        """None each time that it needs a step of the batch, then what became final with that step.

        The audio is (samples,) float32, once a step. Closing the iterator frees the slot.
        """
        backend, g, request = self.opened.backend, self.geometry, self.request
        timed = self.stopwatch.timed
        slot = batch.join(
            guidance=request.use.guidance,
            noise_scale=request.noise_scale,
            history=self.context.history,
        )
        damaged = False
        try:
            decoder = AudioDecoder(backend, g)
            with timed("prompt_embedding"):
                embeddings = embed_prompt(backend, g, self.prompt, self.context)
            with timed("prefill"):
                slot.prefill(embeddings)
            while self.finish_reason is None:
                slot.draw(self.noise.initial(self.steps), self.noise.diffusion(self.steps))
                yield None
                self.stopwatch.add(batch.seconds)
                self._check_step(slot)
                patch, stop = slot.patch, slot.stop_probability
                self._record(patch, stop, slot.hidden)
                self.steps += 1
                self.finish_reason = self._why_finished(stop)
                with timed("audio_decoder"):
                    audio = decoder.decode(patch, last=self.finish_reason is not None)
                self._check_finite("audio_decoder", self.steps, audio)
                self.samples += len(audio)
                self._power += float(np.square(audio, dtype=np.float64).sum())
                if self.finish_reason is not None:
                    log.info(
                        "%d prompt tokens, %d steps, ended by %s",
                        len(self.prompt.ids), self.steps, self.finish_reason,
                    )  # fmt: skip
                yield audio
        except NumericError:
            damaged = True
            raise
        finally:
            slot.leave(damaged=damaged)

    def _check_step(self, slot: Slot) -> None:
        step = self.steps + 1
        self._check_finite("talker", step, slot.hidden)
        self._check_finite("flow", step, slot.patch)
        self._check_finite("flow_advance", step, np.float32(slot.stop_probability))
        self._check_finite("flow_advance", step, slot.embedding)

    def _why_finished(self, stop: float) -> FinishReason | None:
        request = self.request
        reason = None
        if stop > STOP_THRESHOLD and self.steps >= request.min_steps:
            reason = FinishReason.STOP
        elif self.steps >= request.use.max_steps:
            reason = FinishReason.MAX_STEPS
        elif self.cut_at is not None and self.steps >= self.cut_at:
            reason = FinishReason.RUNAWAY
        self.cancelled = not self.on_step(self.steps, stop)
        if self.cancelled and reason is None:
            reason = FinishReason.CANCELLED
        return reason

    def _check_finite(self, component: str, step: int, values: np.ndarray | np.float32) -> None:
        if not np.isfinite(values).all():
            raise NumericError(
                f"{component} produced NaN or infinity at step {step}",
                expected="finite numbers",
                found=f"{int((~np.isfinite(values)).sum())} of {values.size} that are not; "
                "nothing was spoken from this step on",
                do="check the checkpoint (python -m export --check) and the precision of the "
                "engines",
            )

    def _record(self, patch: np.ndarray, stop: float, hidden: np.ndarray) -> None:
        if self.request.trace:
            self._latents.append(patch.copy())
            self._stops.append(stop)
            self._hidden.append(hidden.copy())

    def trace(self, reference_latents: NDArray[np.float32]) -> Trace | None:
        """What the request asked to keep, None where it did not; for a run that has ended."""
        if not self.request.trace:
            return None
        return Trace(
            prompt_ids=self.prompt.ids,
            reference_latents=reference_latents,
            latents=np.stack(self._latents),
            stop_probabilities=np.array(self._stops, np.float32),
            hidden=np.stack(self._hidden),
        )
