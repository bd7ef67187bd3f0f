"""One loaded folder and the requests made of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Unpack

from trt_runtime.conditioning import Conditioning, condition
from trt_runtime.errors import FolderError, UserError
from trt_runtime.folder import OpenFolder, open_folder
from trt_runtime.language_model import write_normalized
from trt_runtime.manifest import SPEAKER_ENCODER, TOKENIZER
from trt_runtime.numeric import whole_number
from trt_runtime.passages import Passage, passages
from trt_runtime.printable import printable, shown
from trt_runtime.prompt import (
    GRAMMARS,
    SPEECH_PROMPT,
    Prompt,
    build_prompt,
    check_tokenizer,
)
from trt_runtime.prompt_embedding import embed_context
from trt_runtime.reference_audio import read_references
from trt_runtime.request import Request, RequestOptions
from trt_runtime.scheduler import Scheduler
from trt_runtime.sources import is_list
from trt_runtime.speaking import Piece, Speaking, noise_of
from trt_runtime.speech import AudioChunk, Speech
from trt_runtime.spoken_text import check_text
from trt_runtime.stopwatch import Stopwatch
from trt_runtime.submission import Submission
from trt_runtime.text_tokenizer import TextTokenizer
from trt_runtime.voice import Voice
from trt_runtime.voice_encoder import VoiceEncoder
from trt_runtime.voice_store import VoiceStore

#: Submitted requests that are spoken at a time, and that wait beside them, where nothing else is
#: asked for.
SLOTS, WAITING = 8, 256
MOST_SLOTS = 256
#: Patches that are joined at a time while a whole speech is made.
_JOINED_PATCHES = 16


def load(
    engines: str | Path | None = None,
    *,
    threads: int | None = None,
    verify: bool = True,
    voices: str | os.PathLike[str] | None = None,
    slots: int = SLOTS,
    waiting: int = WAITING,
) -> Synthesizer:
    """Loads an engine folder or a bundle; None loads the embedded default.

    `threads` are the threads of one graph call (default: every core this process may use).
    `verify=False` skips hashing the files, not the other checks. `voices` is the folder of stored
    voices (default: MING_TRT_VOICES, or the user's). `slots` is the most requests of
    :meth:`Synthesizer.submit` that are spoken at a time, `waiting` the most that wait beside them.
    Raises FolderError, and UserError for a number that cannot be used.
    """
    opened = open_folder(engines, threads=threads, verify=verify)
    return Synthesizer(opened, voices, slots=slots, waiting=waiting)


class Synthesizer:
    """A loaded folder. Thread-safe: each request owns its state and shares only the weights."""

    def __init__(
        self,
        opened: OpenFolder,
        voices: str | os.PathLike[str] | None = None,
        *,
        slots: int = SLOTS,
        waiting: int = WAITING,
    ) -> None:
        self._opened: OpenFolder | None = opened
        self._slots = _at_least_one("slots", slots, most=MOST_SLOTS)
        self._waiting = _at_least_one("waiting", waiting)
        self._scheduling = threading.Lock()
        self._scheduler: Scheduler | None = None
        self._encoder = VoiceEncoder(opened)
        self._store = VoiceStore(voices)
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

    def synthesize(self, text: Any, **options: Unpack[RequestOptions]) -> Speech:
        """Speaks `text` and returns the whole of it; options as in :func:`trt_runtime.synthesize`.

        Raises UserError before anything starts where a request cannot be met, and NumericError
        where a component's output is not finite.
        """
        speaking = self._start(text, options)
        return speaking.speech(
            chunk.audio for chunk in speaking.chunks(chunk_patches=_JOINED_PATCHES)
        )

    def stream(
        self, text: Any, *, chunk_patches: int = 1, **options: Unpack[RequestOptions]
    ) -> Iterator[AudioChunk]:
        """Speaks `text` in chunks as they are made, `chunk_patches` patches each.

        The request is checked, and its references are encoded, when this is called and not when the
        first chunk is asked for. The iterator may be left at any point: closing or dropping it
        frees the request's state.
        """
        patches = _chunk_patches(chunk_patches)
        return self._start(text, options).chunks(chunk_patches=patches)

    def submit(
        self, text: Any, *, chunk_patches: int = 1, **options: Unpack[RequestOptions]
    ) -> Submission:
        """Speaks `text` beside other submitted requests: they share each step of the loop.

        Returns at once; see :class:`Submission` for the audio, the whole and cancelling. Requests
        begin in the order in which they were submitted, up to `slots` of :func:`load` at a time; a
        request is checked when its turn to be prepared comes, and what is wrong with it is raised
        by its `result`. Raises BusyError where `waiting` of :func:`load` wait already, and
        UserError for `chunk_patches`, which is as in :meth:`stream`.

        `on_progress` is called by the thread that steps all requests: it must not wait.
        """
        patches = _chunk_patches(chunk_patches)
        started, submission = time.perf_counter(), Submission()
        with self._scheduling:
            opened = self._require_open()
            if self._scheduler is None or self._scheduler.process != os.getpid():
                # A forked process has the threads of none of its parent's.
                self._scheduler = Scheduler(opened, slots=self._slots, waiting=self._waiting)
            scheduler = self._scheduler

        def prepare() -> Speaking:
            return self._start(
                text,
                options,
                opened=opened,
                started=started,
                cancelled=lambda: submission.cancelled,
            )

        scheduler.submit(submission, prepare, patches)
        return submission

    def encode_voice(self, reference: Any, reference_text: str | None = None) -> Voice:
        """A voice to keep: `voice=` then costs no encoding and gives the same samples.

        reference: a recording (path, or array and rate), or a list of one speaker's. With its words
        the voice has latents; without them, only the speaker embedding. Raises UserError.
        """
        if reference_text is not None:
            reference_text = check_text(reference_text, "reference_text")
        listed = list(reference) if is_list(reference) else [reference]
        if not listed:
            raise UserError("There is no recording", expected="one or more", do="give a reference")
        audios, warnings = read_references(listed)
        opened = self._require_open()
        return self._encoder.voice(
            audios,
            reference_text,
            # Latents alone are a voice too, where the checkpoint came without a speaker encoder.
            embed=reference_text is None or SPEAKER_ENCODER in opened.manifest.files,
            warnings=warnings,
        )

    def normalize_text(
        self, text: str, *, prompt: str = SPEECH_PROMPT, max_tokens: int = 200
    ) -> str:
        """`text` with numbers and signs spelled out, written by the model itself.

        Greedy decoding of the talker with its language-model head, as the reference's
        generate_text. Raises UserError where the model writes no end within `max_tokens`.
        """
        opened = self._require_open()
        ids = self._prompt(check_text(text), prompt=check_text(prompt, "prompt")).ids
        return write_normalized(opened, self._tokenizer, ids, max_tokens=max_tokens)

    def warmup(self, submitted: int = 0) -> None:
        """Runs a short request, so that the first real one does not pay for first touches.

        And so many submitted ones at once, up to `slots`: a GPU captures each number of requests
        that step together the first time that it meets it.
        """

        def options(steps: int) -> RequestOptions:
            steps = min(steps, self.geometry.max_steps)
            return RequestOptions(max_steps=steps, min_steps=steps)

        self.synthesize("Warm up.", **options(2))
        # One enters between two steps: the first must last until the last one is there.
        lasting = options(1 + min(submitted, self._slots))
        for submission in [self.submit("Warm up.", **lasting) for _ in range(submitted)]:
            submission.result()

    def close(self, *, cancel: bool = False) -> None:
        """Lets go of the engines: requests that still run, or wait, keep them to their end.

        With `cancel`, submitted requests are cancelled.
        """
        with self._scheduling:
            scheduler = self._scheduler
            self._opened = self._scheduler = None
        if cancel and scheduler is not None:
            scheduler.cancel()

    def __enter__(self) -> Synthesizer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        # Left by an error, Ctrl-C among them, nobody is there to listen.
        self.close(cancel=kind is not None)

    def _require_open(self) -> OpenFolder:
        if self._opened is None:
            raise UserError("This synthesizer is closed", do="load the folder again")
        return self._opened

    def _start(
        self,
        text: Any,
        options: RequestOptions,
        *,
        opened: OpenFolder | None = None,
        started: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Speaking:
        """`opened`: the folder when it was made, None: now; `started` likewise, perf_counter."""
        started = time.perf_counter() if started is None else started
        opened = opened or self._require_open()
        known = RequestOptions.__annotations__
        unknown = set(options) - set(known)
        if unknown:
            raise UserError(
                f"No such option: {', '.join(sorted(unknown))}",
                expected=", ".join(known),
                found=", ".join(sorted(unknown)),
                do="check the spelling",
            )
        request = Request(text, **options)
        spoken = passages(request)
        if request.noise is not None and len(spoken) > 1:
            raise UserError(
                "Recorded noise is for a text that is spoken in one go",
                expected="one passage",
                found=f"{len(spoken)} sentences",
                do="give split_limit=None, or a shorter text",
            )
        # Recorded noise that does not fit is refused before anything is encoded.
        noise_of(request, request.seed, self.geometry)
        stopwatch = Stopwatch()
        conditioning = condition(request, opened, self._encoder, self._store, stopwatch)
        pieces = [self._piece(request, passage, conditioning) for passage in spoken]
        context = embed_context(
            opened.backend, self.geometry, conditioning.speakers, conditioning.latents
        )
        warnings = self.warnings + request.warnings + conditioning.warnings
        return Speaking(
            opened,
            request,
            pieces,
            conditioning,
            context,
            warnings,
            stopwatch,
            started,
            cancelled,
        )

    def _piece(self, request: Request, passage: Passage, conditioning: Conditioning) -> Piece:
        prompt = self._prompt(
            passage.text,
            prompt=request.use.prompt,
            speakers=len(conditioning.speakers),
            prompt_text=conditioning.prompt_text,
            prompt_patches=len(conditioning.latents) // self.geometry.patch,
            instruction=request.instruction_text,
        )
        self._check_capacity(request, len(prompt.ids))
        return Piece(passage, prompt)

    def _prompt(self, text: str, **parts: Any) -> Prompt:
        return build_prompt(self._tokenizer, self._grammar, text=text, **parts)

    def _check_capacity(self, request: Request, tokens: int) -> None:
        """Raises UserError unless `tokens` of prompt and the request's steps fit the engines."""
        g, most = self.geometry, request.use.max_steps
        if tokens >= g.cache_length:
            raise UserError(
                "The text is too long for these engines",
                expected=f"fewer than {g.cache_length} tokens with its prompt",
                found=f"{tokens} tokens",
                do="shorten the text or the reference, leave split_limit at its default, or export "
                "with a larger --cache-length",
            )
        if tokens + most > g.cache_length:
            raise UserError(
                "The text leaves too little room for max_steps",
                expected=f"prompt tokens + max_steps of at most {g.cache_length}",
                found=f"{tokens} + {most}",
                do=f"ask for max_steps={min(g.cache_length - tokens, g.max_steps)}, or shorten the "
                "text or the reference",
            )
        if most > g.max_steps:
            raise UserError(
                "max_steps is more than these engines were exported for",
                expected=f"at most {g.max_steps}",
                found=str(most),
                do="ask for fewer, or export with a larger --max-steps",
            )


def _chunk_patches(value: Any) -> int:
    return _at_least_one("chunk_patches", value, "give 1 for the earliest audio")


def _at_least_one(
    name: str, value: Any, do: str = "leave it out for the default", most: int | None = None
) -> int:
    number = whole_number(value, 1, most)
    if number is None:
        raise UserError(
            f"{name} cannot be used",
            expected="a whole number of 1 or more" if most is None else f"1 to {most}",
            found=shown(value),
            do=do,
        )
    return number
