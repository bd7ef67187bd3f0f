"""The files of `ming-trt speak`: none that it reads may be one that it writes."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trt_runtime.cli import inputs, speak_report, speak_voices, standard_output
from trt_runtime.cli.inputs import PIPE
from trt_runtime.errors import UserError

#: Options whose value is read from a file where it begins with "@".
_FROM_FILES = ("sound_event", "style", "instruction", "prompt", "reference_text")


def check_destinations(arguments: argparse.Namespace, options: Mapping[str, Any]) -> None:
    """Raises UserError where an output could not be written, or would replace an input.

    `options` are those of the request, in which speakers and their files are told apart.
    """
    from trt_runtime.audio_file import check_destination

    if arguments.output != PIPE:
        check_destination(arguments.output)
    else:
        standard_output.check_there("give -o FILE, or start the command without >&-")
        if sys.stdout.isatty():
            raise UserError(
                "Standard output is a terminal, and raw PCM is no text",
                do="pipe it to a player (... -o - | aplay -f S16_LE -r RATE), or give -o FILE",
            )
    if arguments.sentences is not None:
        speak_report.check_sentences_destination(arguments.sentences, arguments.output)
    read = list(_files_read(arguments, options))
    for output, path in (("-o", arguments.output), ("--sentences", arguments.sentences)):
        if path in (None, PIPE):
            continue
        inputs.check_not_read(output, path, read)


def _files_read(
    arguments: argparse.Namespace, options: Mapping[str, Any]
) -> Iterator[tuple[str, int | str | Path]]:
    """Each file that a request comes from, its path or descriptor, after what names it."""
    from trt_runtime.voice_store import VoiceStore

    for option, file in _texts_read(arguments):
        if file != PIPE:
            yield option, file
        else:
            with contextlib.suppress(OSError, ValueError):  # a stream in memory
                yield "standard input", sys.stdin.fileno()
    if arguments.script is not None:
        yield "--script", arguments.script
    if arguments.speaker_embedding not in (None, *speak_voices.EMBEDDINGS):
        yield "--speaker-embedding", arguments.speaker_embedding
    for name in ("reference", "voice"):
        for value in _values(options.get(name)):
            yield speak_voices.option(name), value
    for value in _values(options.get("voice")):
        with contextlib.suppress(UserError):  # a path, and no name
            yield "--voice", VoiceStore(arguments.voices).path(value)
    if arguments.engines is not None:
        yield from inputs.folder_files("--engines", arguments.engines)


def _texts_read(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Each file of a text after its option; "-" is standard input."""
    if arguments.text == PIPE:
        yield "TEXT", PIPE
    if arguments.text_file is not None:
        yield "--text-file", arguments.text_file
    for name in _FROM_FILES:
        for value in _values(getattr(arguments, name)):
            of_a_speaker = name == "reference_text" and arguments.script is not None
            file = inputs.named_file(value.partition("=")[2] if of_a_speaker else value)
            if file is not None:
                yield speak_voices.option(name), file


def _values(given: Any) -> list[str]:
    """The values of an option that takes one, several, or one a speaker."""
    if isinstance(given, Mapping):
        return list(given.values())
    return [] if given is None else [given] if isinstance(given, str) else list(given)
