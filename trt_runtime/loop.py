"""The loop of one request: prompt → talker → tail → audio decoder, step by step."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from trt_runtime.audio_decoder import AudioDecoder
from trt_runtime.contract import Geometry
from trt_runtime.errors import NumericError
from trt_runtime.folder import OpenFolder
from trt_runtime.noise import noise_source
from trt_runtime.request import Request
from trt_runtime.speech import AudioChunk, FinishReason, Progress, Timings, Trace
from trt_runtime.tail import make_tail
from trt_runtime.talker import Talker, embed_prompt

log = logging.getLogger(__name__)

STOP_THRESHOLD = 0.5


@dataclass
class Run:
    """One request from its prompt to its last sample. Made by one call, used by one thread."""

    opened: OpenFolder
    request: Request
    prompt_ids: np.ndarray
    warnings: tuple[str, ...] = ()
    steps: int = field(default=0, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    _seconds: dict[str, float] = field(default_factory=dict, init=False)
    _first_audio: float = field(default=0.0, init=False)
    _started: float = field(default_factory=time.perf_counter, init=False)
    _finished: float = field(default=0.0, init=False)
    _samples: int = field(default=0, init=False)
    _latents: list[np.ndarray] = field(default_factory=list, init=False)
    _stops: list[float] = field(default_factory=list, init=False)
    _hidden: list[np.ndarray] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        g = self.geometry
        self._noise = noise_source(
            self.request.noise,
            seed=self.request.seed,
            noise_scale=self.request.noise_scale,
            patch=g.patch,
            latent_dim=g.latent_dim,
            solver_steps=g.solver_steps,
        )

    @property
    def geometry(self) -> Geometry:
        return self.opened.manifest.geometry

    @contextmanager
    def _timed(self, component: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self._seconds[component] = self._seconds.get(component, 0.0) + spent

    def chunks(self, *, chunk_patches: int) -> Iterator[AudioChunk]:
        backend, g, request = self.opened.backend, self.geometry, self.request
        talker = Talker(backend, g)
        tail = make_tail(
            backend,
            g,
            talker.hidden,
            talker.embedding,
            guidance=request.guidance,
            noise_scale=request.noise_scale,
        )
        decoder = AudioDecoder(backend, g)
        with self._timed("prompt_embedding"):
            embeddings = embed_prompt(backend, g, self.prompt_ids)
        with self._timed("prefill"):
            talker.prefill(embeddings)
        parts: list[np.ndarray] = []
        index = 0
        while self.finish_reason is None:
            if self.steps:
                with self._timed("talker"):
                    talker.decode()
            step = self.steps + 1
            self._check_finite("talker", step, talker.hidden.read())
            with self._timed("flow"):
                tail.run(self._noise.initial(self.steps), self._noise.diffusion(self.steps))
            patch = tail.patch.read()[0]
            self._check_finite("flow", step, patch)
            stop = float(tail.stop_probability.read()[0])
            self._check_finite("flow_advance", step, tail.stop_probability.read())
            self._check_finite("flow_advance", step, talker.embedding.read())
            self._record(patch, stop, talker.hidden.read())
            self.steps += 1
            self.finish_reason = self._why_finished(stop)
            with self._timed("audio_decoder"):
                audio = decoder.decode(patch, last=self.finish_reason is not None)
            self._check_finite("audio_decoder", step, audio)
            if len(audio) and not self._first_audio:
                self._first_audio = time.perf_counter() - self._started
            parts.append(audio)
            if self.finish_reason is not None or len(parts) == chunk_patches:
                if self.finish_reason is not None:
                    self._log_end()
                yield self._chunk(np.concatenate(parts), index)
                parts.clear()
                index += 1

    def _why_finished(self, stop: float) -> FinishReason | None:
        request = self.request
        reason = None
        if stop > STOP_THRESHOLD and self.steps >= request.min_steps:
            reason = FinishReason.STOP
        elif self.steps >= request.max_steps:
            reason = FinishReason.MAX_STEPS
        if request.on_progress is not None:
            seconds = time.perf_counter() - self._started
            progress = Progress(self.steps, request.max_steps, stop, seconds)
            if request.on_progress(progress) is False and reason is None:
                reason = FinishReason.CANCELLED
        return reason

    def _log_end(self) -> None:
        log.info(
            "%d prompt tokens, %d steps, ended by %s, first audio after %.3f s; seconds: %s",
            len(self.prompt_ids), self.steps, self.finish_reason, self._first_audio,
            {name: round(seconds, 3) for name, seconds in self._seconds.items()},
        )  # fmt: skip

    def _chunk(self, audio: np.ndarray, index: int) -> AudioChunk:
        start = self._samples
        self._samples += len(audio)
        self._finished = time.perf_counter()
        return AudioChunk(
            audio=audio,
            sample_rate=self.geometry.sample_rate,
            start=start,
            index=index,
            final=self.finish_reason is not None,
            finish_reason=self.finish_reason,
            steps=self.steps,
            seed=self.request.seed,
            warnings=self.warnings if self.finish_reason is not None else (),
        )

    def _check_finite(self, component: str, step: int, values: np.ndarray) -> None:
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
            self._hidden.append(hidden[0, 0].copy())

    def timings(self) -> Timings:
        return Timings(
            first_audio=self._first_audio,
            total=self._finished - self._started,
            audio=self._samples / self.geometry.sample_rate,
            components=dict(self._seconds),
        )

    def trace(self) -> Trace:
        return Trace(
            prompt_ids=self.prompt_ids,
            latents=np.stack(self._latents),
            stop_probabilities=np.array(self._stops, np.float32),
            hidden=np.stack(self._hidden),
        )
