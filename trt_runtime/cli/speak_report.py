"""What `ming-trt speak` tells: how far it is, how it ended, and where each sentence lies."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from trt_runtime.cli.inputs import PIPE
from trt_runtime.cli.rewritten_line import RewrittenLine
from trt_runtime.cli.standard_output import warn
from trt_runtime.errors import UserError
from trt_runtime.exit_status import tell

if TYPE_CHECKING:
    from trt_runtime.speech import Progress, SpokenSentence

#: Sentences that one warning names.
_MOST_NAMED = 10
_ENDED = {
    "stop": "the model stopped",
    "max_steps": "the step limit was reached",
    "cancelled": "it was asked to",
    "runaway": "stopped where speech was far longer than its text",
}


@dataclass(frozen=True)
class Summary:
    """What is told after speaking; times in seconds, as in :class:`trt_runtime.Timings`."""

    sample_rate: int
    seed: int
    finish_reason: str
    steps: int
    duration: float
    first_audio: float
    real_time_factor: float
    sentences: Sequence[SpokenSentence]
    warnings: Sequence[str] = ()


def report(summary: Summary, *, where: str, engines: Path, quiet: bool) -> None:
    """Tells of what was written to `where`; with `quiet` only what may be wrong with it."""
    for warning in (*summary.warnings, *_limit_warnings(summary)):
        warn(warning)
    if quiet:
        return
    if len(summary.sentences) > 1:
        for line in sentence_lines(summary):
            tell(line)
    reason = summary.finish_reason
    tell(f"wrote             {where}")
    tell(f"duration          {summary.duration:.2f} s at {summary.sample_rate} Hz")
    tell(f"finish reason     {reason} ({_ENDED.get(reason, 'ended early')})")
    tell(f"steps             {summary.steps}")
    tell(f"seed              {summary.seed}")
    tell(f"first audio       {summary.first_audio:.3f} s")
    tell(f"real-time factor  {summary.real_time_factor:.3f} (below 1: faster than it plays)")
    tell(f"engines           {engines}")


def sentence_lines(summary: Summary) -> Iterator[str]:
    """A line a sentence: its number, from when to when, and how it ended."""
    width = len(str(len(summary.sentences)))
    for number, sentence in enumerate(summary.sentences, 1):
        first, last = _from_to(sentence, summary.sample_rate)
        attempts = f", {sentence.attempts} attempts" if sentence.attempts > 1 else ""
        yield (
            f"sentence {number:>{width}}  {first:.2f} to {last:.2f} s, {sentence.steps} steps, "
            f"{sentence.finish_reason}{attempts}"
        )


def _limit_warnings(summary: Summary) -> Iterator[str]:
    """Also where --quiet is asked for: what was said may end in the middle of a word."""
    numbers = [n for n, s in enumerate(summary.sentences, 1) if s.finish_reason == "max_steps"]
    if not numbers:
        return
    steps = summary.sentences[numbers[0] - 1].steps
    named = ""
    if len(summary.sentences) > 1:
        more = len(numbers) - _MOST_NAMED
        named = ", ".join(map(str, numbers[:_MOST_NAMED])) + (f" and {more} more" * (more > 0))
        named = f"sentence{'s' * (len(numbers) > 1)} {named} "
    yield f"{named}ended at the limit of {steps} steps (--max-steps)"


def check_sentences_destination(path: str, output: str) -> None:
    """Raises UserError where :class:`SentencesFile` could not write `path`, before any work."""
    from trt_runtime.whole_file import check_writable

    if path == PIPE:
        raise UserError(
            "--sentences writes to a file only", found=path, do="give the name of a file"
        )
    if Path(os.path.realpath(path)) == Path(os.path.realpath(output)):
        raise UserError(
            "--sentences and -o name one file", found=path, do="give each a name of its own"
        )
    check_writable(Path(path))


class SentencesFile:
    """Where each sentence lies, as JSON in `path`: a context manager; with None it does nothing.

    :meth:`write` makes the file under a temporary name, and with :meth:`appear` it is there or
    replaces the one that was; until then nothing is, and after any failure nothing is left behind.
    Both raise UserError, for a folder that is not writable and a disk that fills.
    """

    def __init__(self, path: str | None) -> None:
        # A link is followed, so that the file it names is replaced and not the link.
        self._target = None if path is None else Path(os.path.realpath(path))
        self._written = contextlib.ExitStack()
        self._temporary: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        # Closed and not exited: a failure that comes by here is not about this file.
        self._written.close()

    def write(self, summary: Summary) -> None:
        """Writes what is known of each sentence."""
        from trt_runtime.whole_file import written_beside

        if self._target is not None:
            data = json.dumps(sentences_value(summary), ensure_ascii=False, indent=1) + "\n"
            self._temporary = self._written.enter_context(
                written_beside(self._target, data.encode("utf-8"))
            )

    def appear(self) -> None:
        """Gives what was written its name."""
        with self._written:
            if self._temporary is not None and self._target is not None:
                self._temporary.replace(self._target)


def sentences_value(summary: Summary) -> dict[str, Any]:
    """Where each sentence lies, as values that JSON holds.

    `start` and `end` count characters of the text as it was given, `seconds` is from when to when
    it is heard.
    """
    return {
        "sample_rate": summary.sample_rate,
        "sentences": [
            {
                "text": sentence.text,
                "start": sentence.start,
                "end": sentence.end,
                "first_sample": sentence.first_sample,
                "samples": sentence.samples,
                "seconds": _from_to(sentence, summary.sample_rate),
                "steps": sentence.steps,
                "finish_reason": sentence.finish_reason,
                "seed": sentence.seed,
                "attempts": sentence.attempts,
                "warnings": sentence.warnings,
            }
            for sentence in summary.sentences
        ],
    }


def _from_to(sentence: SpokenSentence, sample_rate: int) -> tuple[float, float]:
    first = sentence.first_sample
    return first / sample_rate, (first + sentence.samples) / sample_rate


class ProgressLine(RewrittenLine):
    """One line that is rewritten, on a terminal, once a request has taken two seconds."""

    def show(self, progress: Progress) -> None:
        if progress.seconds > 2:
            self.write(progress_text(progress))


def progress_text(progress: Progress) -> str:
    """How far a request is, in a line."""
    parts = []
    if progress.sentences > 1:
        parts.append(f"sentence {progress.sentence + 1} of {progress.sentences}")
    if progress.attempt:
        parts.append(f"attempt {progress.attempt + 1}")
    parts.append(f"step {progress.step} of at most {progress.max_steps}")
    return ", ".join([*parts, f"{progress.seconds:.0f} s"])
