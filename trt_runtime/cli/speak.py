"""`ming-trt speak TEXT -o FILE`: text to a file or a pipe, whole or as it is made."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trt_runtime.cli import Command, at_least_one, standard_output
from trt_runtime.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trt_runtime.speech import Progress
    from trt_runtime.synthesizer import Synthesizer

    Write = Callable[[NDArray[np.float32]], None]

PIPE = "-"
#: Those of the options that go to `synthesize` as they are.
_OPTIONS = ("prompt", "seed", "guidance", "sigma", "temperature", "min_steps", "max_steps")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help="what to say; - reads it from standard input")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True,
        help="audio file, its format given by the extension; - writes raw PCM to standard output",
    )  # fmt: skip
    parser.add_argument(
        "--engines", metavar="DIR", help="engine folder or bundle (default: the one that ships)"
    )
    request = parser.add_argument_group("request")
    request.add_argument(
        "--prompt", help="literal text of the task prompt (default: the reference's for speech)"
    )
    request.add_argument("--seed", type=int, help="seed of the noise (default: 0)")
    request.add_argument("--guidance", type=float, help="classifier-free guidance (default: 2.0)")
    request.add_argument(
        "--sigma", type=float, help="noise inside the solver at temperature 1 (default: 0.25)"
    )
    request.add_argument("--temperature", type=float, help="0: deterministic solver (default: 0.0)")
    request.add_argument("--min-steps", type=int, help="steps before it may stop (default: 5)")
    request.add_argument("--max-steps", type=int, help="steps after which it ends (default: 200)")
    output = parser.add_argument_group("output")
    output.add_argument("--stream", action="store_true", help="write audio as it is made")
    output.add_argument(
        "--chunk-patches", type=at_least_one, metavar="N",
        help="steps a chunk, with --stream (default: 1)",
    )  # fmt: skip
    output.add_argument(
        "--pcm", choices=("s16", "f32"), help="raw PCM, with -o -; little-endian (default: s16)"
    )
    parser.add_argument("--threads", type=at_least_one, metavar="N", help="(default: every core)")
    parser.add_argument("--quiet", action="store_true", help="print warnings and errors only")


@dataclass(frozen=True)
class _Summary:
    """What is told after speaking."""

    seed: int
    finish_reason: str
    steps: int
    duration: float
    first_audio: float
    real_time_factor: float
    warnings: tuple[str, ...] = ()


def _run(arguments: argparse.Namespace) -> int:
    if arguments.pcm is not None and arguments.output != PIPE:
        raise UserError("--pcm is for -o -", do="give the format by the file's extension")
    if arguments.chunk_patches is not None and not arguments.stream:
        raise UserError("--chunk-patches is for --stream", do="give --stream too")
    text = _read_text(arguments.text)
    options = {
        name: getattr(arguments, name) for name in _OPTIONS if getattr(arguments, name) is not None
    }
    _check_before_loading(text, options, arguments.output)

    from trt_runtime.synthesizer import load

    with load(arguments.engines, threads=arguments.threads) as synthesizer:
        if arguments.output == PIPE and not arguments.quiet:
            _tell(
                f"raw PCM to standard output: {arguments.pcm or 's16'} little-endian, mono, "
                f"{synthesizer.sample_rate} Hz"
            )
        progress = _ProgressLine(silent=arguments.quiet)
        options["on_progress"] = progress.show
        with _opened_output(arguments, synthesizer.sample_rate) as write:
            try:
                if arguments.stream:
                    chunk_patches = arguments.chunk_patches or 1
                    summary = _stream(synthesizer, text, options, chunk_patches, write)
                else:
                    summary = _speak_whole(synthesizer, text, options, write)
            finally:
                progress.clear()
        _report(arguments, synthesizer, summary)
    return 0


def _read_text(text: str) -> str:
    """The argument, or standard input as UTF-8 without its last newline."""
    if text != PIPE:
        return text
    from trt_runtime.prompt import LONGEST_TEXT

    try:
        # No more than any text may have: standard input may never end.
        read = sys.stdin.buffer.read(4 * LONGEST_TEXT + 8).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            "Standard input is not text",
            expected="UTF-8",
            found=f"byte 0x{error.object[error.start]:02X} at offset {error.start}",
            do="convert it first, for example with iconv -t UTF-8",
        ) from error
    return read.replace("\r\n", "\n").removesuffix("\n")


def _check_before_loading(text: str, options: dict[str, Any], output: str) -> None:
    """What can be refused at once is refused before gigabytes are loaded."""
    from trt_runtime.audio_file import check_destination
    from trt_runtime.request import Request

    Request(text, **options)
    if output != PIPE:
        check_destination(output)
    elif sys.stdout is None:
        raise UserError(
            "There is no standard output",
            expected="a pipe or a file",
            found="a closed one",
            do="give -o FILE, or start the command without >&-",
        )
    elif sys.stdout.isatty():
        raise UserError(
            "Standard output is a terminal, and raw PCM is no text",
            do="pipe it to a player (... -o - | aplay -f S16_LE -r RATE), or give -o FILE",
        )


@contextlib.contextmanager
def _opened_output(arguments: argparse.Namespace, sample_rate: int) -> Iterator[Write]:
    """A function that writes audio, (samples,) float32, to the file or the pipe."""
    if arguments.output == PIPE:

        def write(audio: NDArray[np.float32]) -> None:
            standard_output.write(to_pcm(audio, arguments.pcm or "s16"))

        yield write
        return

    from trt_runtime.audio_file import AudioFileWriter

    with AudioFileWriter(arguments.output, sample_rate) as file:
        yield file.write


def to_pcm(audio: NDArray[np.float32], encoding: str) -> bytes:
    """audio: (samples,) float32 to little-endian bytes: "s16" (clipped at full scale) or "f32"."""
    import numpy as np

    if encoding == "f32":
        return audio.astype("<f4").tobytes()
    return np.clip(np.rint(audio * 32768.0), -32768, 32767).astype("<i2").tobytes()


def _speak_whole(
    synthesizer: Synthesizer, text: str, options: dict[str, Any], write: Write
) -> _Summary:
    speech = synthesizer.synthesize(text, **options)
    write(speech.audio)
    return _Summary(
        seed=speech.seed,
        finish_reason=str(speech.finish_reason),
        steps=speech.steps,
        duration=speech.duration,
        first_audio=speech.timings.first_audio,
        real_time_factor=speech.timings.real_time_factor,
        warnings=speech.warnings,
    )


def _stream(
    synthesizer: Synthesizer,
    text: str,
    options: dict[str, Any],
    chunk_patches: int,
    write: Write,
) -> _Summary:
    from trt_runtime.speech import Timings

    start = time.perf_counter()
    first_audio = None
    samples = 0
    last = None
    for chunk in synthesizer.stream(text, chunk_patches=chunk_patches, **options):
        if first_audio is None and len(chunk.audio):
            first_audio = time.perf_counter() - start
        write(chunk.audio)
        samples += len(chunk.audio)
        last = chunk
    if last is None:
        raise RuntimeError("the stream ended without a chunk")
    total = time.perf_counter() - start
    duration = samples / last.sample_rate
    first_audio = total if first_audio is None else first_audio
    return _Summary(
        seed=last.seed,
        finish_reason=str(last.finish_reason),
        steps=last.steps,
        duration=duration,
        first_audio=first_audio,
        real_time_factor=Timings(first_audio, total, duration).real_time_factor,
        warnings=last.warnings,
    )


def _report(arguments: argparse.Namespace, synthesizer: Synthesizer, summary: _Summary) -> None:
    for warning in summary.warnings:
        _tell(f"warning: {warning}")
    if summary.finish_reason == "max_steps":
        # Also where --quiet is asked for: what was said may end in the middle of a word.
        _tell(f"warning: ended at the limit of {summary.steps} steps (--max-steps)")
    if arguments.quiet:
        return
    where = "standard output" if arguments.output == PIPE else arguments.output
    ended = {"stop": "the model stopped", "max_steps": "the step limit was reached"}
    reason = summary.finish_reason
    _tell(f"wrote             {where}")
    _tell(f"duration          {summary.duration:.2f} s at {synthesizer.sample_rate} Hz")
    _tell(f"finish reason     {reason} ({ended.get(reason, 'ended early')})")
    _tell(f"steps             {summary.steps}")
    _tell(f"seed              {summary.seed}")
    _tell(f"first audio       {summary.first_audio:.3f} s")
    _tell(f"real-time factor  {summary.real_time_factor:.3f} (below 1: faster than it plays)")
    _tell(f"engines           {synthesizer.folder}")


def _tell(line: str) -> None:
    """To standard error: standard output may carry the audio."""
    print(line, file=sys.stderr, flush=True)


class _ProgressLine:
    """One line that is rewritten, on a terminal, once a request has taken two seconds."""

    def __init__(self, *, silent: bool) -> None:
        self._on = not silent and sys.stderr.isatty()
        self._length = 0

    def show(self, progress: Progress) -> None:
        if self._on and progress.seconds > 2:
            line = f"step {progress.step} of at most {progress.max_steps}, {progress.seconds:.0f} s"
            print("\r" + line.ljust(self._length), end="", file=sys.stderr, flush=True)
            self._length = len(line)

    def clear(self) -> None:
        if self._length:
            print("\r" + " " * self._length + "\r", end="", file=sys.stderr, flush=True)
            self._length = 0


command = Command("speak", "speak a text to an audio file or a pipe", _add_arguments, _run)
