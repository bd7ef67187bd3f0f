"""One loaded folder and the requests made of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Unpack

import numpy as np

from trt_runtime.errors import FolderError, UserError
from trt_runtime.folder import OpenFolder, open_folder
from trt_runtime.loop import Run
from trt_runtime.manifest import TOKENIZER
from trt_runtime.printable import printable
from trt_runtime.prompt import GRAMMARS, build_prompt, check_tokenizer
from trt_runtime.request import Request, RequestOptions
from trt_runtime.speech import AudioChunk, Speech
from trt_runtime.text_tokenizer import TextTokenizer


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
        note = opened.manifest.source.get("note")
        #: What the folder's maker wants every user to be told; each result repeats it.
        self.warnings = (printable(note),) if isinstance(note, str) else ()
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
            warnings=self.warnings,
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

    def _start(self, text: str, options: RequestOptions) -> Run:
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
                do=f"ask for max_steps={min(g.cache_length - tokens, g.max_steps)}, or shorten the "
                "text",
            )
        if request.max_steps > g.max_steps:
            raise UserError(
                "max_steps is more than these engines were exported for",
                expected=f"at most {g.max_steps}",
                found=str(request.max_steps),
                do="ask for fewer, or export with a larger --max-steps",
            )
        return Run(opened, request, prompt.ids, self.warnings)
