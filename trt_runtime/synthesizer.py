"""The loop: prompt → talker → tail → audio decoder, for one loaded folder and many requests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

import numpy as np

from trt_runtime.audio_decoder import AudioDecoder
from trt_runtime.contract import Geometry
from trt_runtime.errors import FolderError, NumericError, UserError
from trt_runtime.folder import OpenFolder, open_folder
from trt_runtime.manifest import TOKENIZER
from trt_runtime.noise import noise_source
from trt_runtime.printable import printable
from trt_runtime.prompt import GRAMMARS, build_prompt, check_tokenizer
from trt_runtime.request import Request, RequestOptions
from trt_runtime.speech import AudioChunk, FinishReason, Progress, Speech, Timings, Trace
from trt_runtime.tail import make_tail
from trt_runtime.talker import Talker, embed_prompt
from trt_runtime.text_tokenizer import TextTokenizer

STOP_THRESHOLD = 0.5


def load(
    engines: str | Path | None = None, *, threads: int | None = None, verify: bool = True
) -> Synthesizer:
    """Loads an engine folder or a bundle; None loads the embedded default.

    `threads` are the threads of one graph call (default: every core this process may use).
    `verify=False` skips hashing the files, not the other checks. Raises FolderError.
    """
    return Synthesizer(open_folder(engines, threads=threads, verify=verify))


class Synthesizer:
    """A loaded folder. Thread-safe: each request owns its state and shares only the weights."""

    def __init__(self, opened: OpenFolder) -> None:
        self._opened: OpenFolder | None = opened
        self.folder = opened.path
        self.geometry = opened.manifest.geometry
        grammar = GRAMMARS.get(opened.manifest.family)
        if grammar is None:
            raise FolderError(
                f"{opened.path} is of a family that this version cannot speak",
                expected=", ".join(GRAMMARS),
                found=printable(opened.manifest.family),
                do="update ming-trt",
            )
        self._grammar = grammar
        self._tokenizer = TextTokenizer.load(opened.path / TOKENIZER)
        check_tokenizer(self._tokenizer, grammar)
        if self._tokenizer.vocab_size > self.geometry.vocab_size:
            raise FolderError(
                f"The tokenizer of {opened.path} has more tokens than the talker has embeddings",
                expected=f"at most {self.geometry.vocab_size}",
                found=str(self._tokenizer.vocab_size),
                do="export again from a folder whose tokenizer belongs to its weights",
            )

    @property
    def sample_rate(self) -> int:
        """Samples a second of everything this speaks."""
        return self.geometry.sample_rate

    def synthesize(self, text: str, **options: Unpack[RequestOptions]) -> Speech:
        """Speaks `text` and returns the whole of it; options as in :func:`trt_runtime.synthesize`.

        Raises UserError before anything starts where a request cannot be met, and NumericError
        where a component's output is not finite.
        """
        run = self._start(text, options)
        chunks = list(run.chunks(chunk_patches=run.request.max_steps))
        assert run.finish_reason is not None
        return Speech(
            audio=np.concatenate([chunk.audio for chunk in chunks]),
            sample_rate=self.sample_rate,
            finish_reason=run.finish_reason,
            steps=run.steps,
            seed=run.request.seed,
            timings=run.timings(),
            trace=run.trace() if run.request.trace else None,
        )

    def stream(
        self, text: str, *, chunk_patches: int = 1, **options: Unpack[RequestOptions]
    ) -> Iterator[AudioChunk]:
        """Speaks `text` in chunks as they are made, `chunk_patches` patches each.

        The request is checked when this is called, not when the first chunk is asked for. The
        iterator may be left at any point: closing or dropping it frees the request's state.
        """
        if isinstance(chunk_patches, bool) or not isinstance(chunk_patches, int | np.integer):
            raise UserError(
                "chunk_patches is not a number",
                expected="a whole number from 1",
                found=repr(chunk_patches),
                do="give the number of patches a chunk",
            )
        if chunk_patches < 1:
            raise UserError(
                "chunk_patches is too small",
                expected="1 or more",
                found=str(chunk_patches),
                do="give 1 for the earliest audio",
            )
        return self._start(text, options).chunks(chunk_patches=int(chunk_patches))

    def warmup(self) -> None:
        """Runs one short request, so that the first real one does not pay for first touches."""
        steps = min(2, self.geometry.max_steps)
        self.synthesize("Warm up.", max_steps=steps, min_steps=steps)

    def close(self) -> None:
        """Lets go of the engines: requests that still run keep them to their end."""
        self._opened = None

    def __enter__(self) -> Synthesizer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(self, text: str, options: RequestOptions) -> _Run:
        opened = self._opened
        if opened is None:
            raise UserError("This synthesizer is closed", do="load the folder again")
        unknown = set(options) - set(Request.__dataclass_fields__)
        if unknown:
            raise UserError(
                f"No such option: {', '.join(sorted(unknown))}",
                expected=", ".join(name for name in Request.__dataclass_fields__ if name != "text"),
                found=", ".join(sorted(unknown)),
                do="check the spelling",
            )
        request = Request(text, **options)
        prompt = build_prompt(
            self._tokenizer, self._grammar, prompt=request.prompt_or_default, text=request.text
        )
        g = self.geometry
        tokens = len(prompt.ids)
        if tokens >= g.cache_length:
            raise UserError(
                "The text is too long for these engines",
                expected=f"fewer than {g.cache_length} tokens with its prompt",
                found=f"{tokens} tokens",
                do="shorten the text, speak it in parts, or export with a larger --cache-length",
            )
        if tokens + request.max_steps > g.cache_length:
            raise UserError(
                "The text leaves too little room for max_steps",
                expected=f"prompt tokens + max_steps of at most {g.cache_length}",
                found=f"{tokens} + {request.max_steps}",
                do=f"ask for max_steps={g.cache_length - tokens}, or shorten the text",
            )
        if request.max_steps > g.max_steps:
            raise UserError(
                "max_steps is more than these engines were exported for",
                expected=f"at most {g.max_steps}",
                found=str(request.max_steps),
                do="ask for fewer, or export with a larger --max-steps",
            )
        return _Run(opened, request, prompt.ids)


@dataclass
class _Run:
    """One request from its prompt to its last sample. Made by one call, used by one thread."""

    opened: OpenFolder
    request: Request
    prompt_ids: np.ndarray
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
            self._check_finite("talker", talker.hidden.read())
            with self._timed("flow"):
                tail.run(self._noise.initial(self.steps), self._noise.diffusion(self.steps))
            patch = tail.patch.read()[0]
            self._check_finite("flow", patch)
            stop = float(tail.stop_probability.read()[0])
            self._check_finite("flow_advance", tail.stop_probability.read())
            self._check_finite("flow_advance", talker.embedding.read())
            self._record(patch, stop, talker.hidden.read())
            self.steps += 1
            self.finish_reason = self._why_finished(stop)
            with self._timed("audio_decoder"):
                audio = decoder.decode(patch, last=self.finish_reason is not None)
            self._check_finite("audio_decoder", audio)
            if len(audio) and not self._first_audio:
                self._first_audio = time.perf_counter() - self._started
            parts.append(audio)
            if self.finish_reason is not None or len(parts) == chunk_patches:
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
        )

    def _check_finite(self, component: str, values: np.ndarray) -> None:
        if not np.isfinite(values).all():
            raise NumericError(
                f"{component} produced NaN or infinity at step {self.steps + 1}",
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
