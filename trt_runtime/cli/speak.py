"""`ming-trt speak TEXT -o FILE`: text to a file or a pipe, whole or as it is made."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from trt_runtime.cli import (
    Command,
    add_engine_arguments,
    at_least_one,
    speak_files,
    speak_options,
    speak_report,
    standard_output,
)
from trt_runtime.cli.inputs import PIPE
from trt_runtime.cli.speak_report import Summary
from trt_runtime.errors import UserError
from trt_runtime.exit_status import tell
from trt_runtime.interruption import interruptions_wait

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trt_runtime.speech import SpokenSentence
    from trt_runtime.synthesizer import Synthesizer

    Write = Callable[[NDArray[np.float32]], None]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True,
        help="audio file, its format given by the extension; - writes raw PCM to standard output",
    )  # fmt: skip
    add_engine_arguments(parser)
    speak_options.add_arguments(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--stream", action="store_true", help="write audio as it is made")
    output.add_argument(
        "--chunk-patches", type=at_least_one, metavar="N",
        help="steps a chunk, with --stream (default: 1)",
    )  # fmt: skip
    output.add_argument(
        "--pcm", choices=("s16", "f32"), help="raw PCM, with -o -; little-endian (default: s16)"
    )
    output.add_argument(
        "--sentences", metavar="FILE", help="also write where each sentence lies, as JSON"
    )
    parser.add_argument("--quiet", action="store_true", help="print warnings and errors only")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.pcm is not None and arguments.output != PIPE:
        raise UserError("--pcm is for -o -", do="give the format by the file's extension")
    if arguments.chunk_patches is not None and not arguments.stream:
        raise UserError("--chunk-patches is for --stream", do="give --stream too")
    content, options = speak_options.content_and_options(arguments)
    # What can be refused at once is refused before gigabytes are loaded.
    speak_options.check_request(content, options, arguments.voices)
    speak_files.check_destinations(arguments, options)

    from trt_runtime.synthesizer import load

    with load(arguments.engines, threads=arguments.threads, voices=arguments.voices) as synthesizer:
        if arguments.output == PIPE and not arguments.quiet:
            tell(
                f"raw PCM to standard output: {arguments.pcm or 's16'} little-endian, mono, "
                f"{synthesizer.sample_rate} Hz"
            )
        progress = speak_report.ProgressLine(silent=arguments.quiet)
        options["on_progress"] = progress.show
        with _outputs(arguments, synthesizer.sample_rate) as (write, write_sentences):
            try:
                if arguments.stream:
                    chunk_patches = arguments.chunk_patches or 1
                    summary = _stream(synthesizer, content, options, chunk_patches, write)
                else:
                    summary = _speak_whole(synthesizer, content, options, write)
            finally:
                progress.clear()
            write_sentences(summary)
        where = "standard output" if arguments.output == PIPE else arguments.output
        speak_report.report(summary, where=where, engines=synthesizer.folder, quiet=arguments.quiet)
    return 0


@contextlib.contextmanager
def _outputs(
    arguments: argparse.Namespace, sample_rate: int
) -> Iterator[tuple[Write, Callable[[Summary], None]]]:
    """Functions that write the audio, and where its sentences lie if that is asked for.

    Both files appear at the end of the `with` block, or neither.
    """
    with (
        speak_report.SentencesFile(arguments.sentences) as sentences,
        contextlib.ExitStack() as audio,
    ):
        write = audio.enter_context(_opened_output(arguments, sample_rate))
        yield write, sentences.write
        with interruptions_wait():
            audio.close()
            sentences.appear()


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
    synthesizer: Synthesizer, content: Any, options: dict[str, Any], write: Write
) -> Summary:
    speech = synthesizer.synthesize(content, **options)
    write(speech.audio)
    return Summary(
        sample_rate=speech.sample_rate,
        seed=speech.seed,
        finish_reason=speech.finish_reason,
        steps=speech.steps,
        duration=speech.duration,
        first_audio=speech.timings.first_audio,
        real_time_factor=speech.timings.real_time_factor,
        sentences=speech.sentences,
        warnings=speech.warnings,
    )


def _stream(
    synthesizer: Synthesizer,
    content: Any,
    options: dict[str, Any],
    chunk_patches: int,
    write: Write,
) -> Summary:
    from trt_runtime.speech import Timings

    start = time.perf_counter()
    first_audio = None
    samples = 0
    sentences: list[SpokenSentence] = []
    last = None
    for chunk in synthesizer.stream(content, chunk_patches=chunk_patches, **options):
        if first_audio is None and len(chunk.audio):
            first_audio = time.perf_counter() - start
        write(chunk.audio)
        samples += len(chunk.audio)
        if chunk.ended is not None:
            sentences.append(chunk.ended)
        last = chunk
    if last is None:
        raise RuntimeError("the stream ended without a chunk")
    total = time.perf_counter() - start
    duration = samples / last.sample_rate
    first_audio = total if first_audio is None else first_audio
    return Summary(
        sample_rate=last.sample_rate,
        seed=last.seed,
        finish_reason=str(last.finish_reason),
        steps=last.steps,
        duration=duration,
        first_audio=first_audio,
        real_time_factor=Timings(first_audio, total, duration).real_time_factor,
        sentences=sentences,
        warnings=last.warnings,
    )


command = Command("speak", "speak a text to an audio file or a pipe", _add_arguments, _run)
