"""`ming-trt voices`: voices made once from recordings, kept by name, and shared as files."""

from __future__ import annotations

import argparse
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_runtime.cli import Command, add_engine_arguments, add_voices_argument, inputs
from trt_runtime.cli.standard_output import print_json, print_line, warn
from trt_runtime.errors import UserError
from trt_runtime.exit_status import tell
from trt_runtime.printable import printable

if TYPE_CHECKING:
    from trt_runtime.voice import Voice
    from trt_runtime.voice_store import VoiceStore

#: Columns of a transcript that `list` shows.
_FIRST_WORDS = 40
_HEADINGS = ("name", "origin", "family", "seconds", "holds", "transcript")


@dataclass(frozen=True)
class _Action:
    """One subcommand of `voices`."""

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, VoiceStore], None]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(
        title="subcommands", metavar="SUBCOMMAND", dest="action", required=True
    )
    for action in _ACTIONS:
        subparser = subparsers.add_parser(action.name, help=action.help, description=action.help)
        action.add_arguments(subparser)
        add_voices_argument(subparser)


def _run(arguments: argparse.Namespace) -> int:
    from trt_runtime.voice_store import VoiceStore

    action = next(action for action in _ACTIONS if action.name == arguments.action)
    action.run(arguments, VoiceStore(arguments.voices))
    return 0


def _add_options(parser: argparse.ArgumentParser) -> None:
    _name_argument(parser)
    parser.add_argument(
        "references", metavar="REF", nargs="+", type=Path, help="recordings of the speaker"
    )
    parser.add_argument(
        "--text",
        help="the words of the recording; @FILE reads them (default: only the speaker's sound is "
        "kept)",
    )
    add_engine_arguments(parser)
    _replace_argument(parser, "a voice of that name")


def _add(arguments: argparse.Namespace, store: VoiceStore) -> None:
    from trt_runtime.reference_audio import read_references
    from trt_runtime.spoken_text import check_text

    # What can be refused at once is refused before gigabytes are loaded.
    store.check_addable(arguments.name, replace=arguments.replace)
    words = arguments.text
    if words is not None:
        words = check_text(inputs.value_or_file("--text", words), "--text")
    references: list[Path] = arguments.references
    read_references(references)

    from trt_runtime.synthesizer import load

    with load(arguments.engines, threads=arguments.threads) as synthesizer:
        voice = synthesizer.encode_voice(
            references if len(references) > 1 else references[0], words
        )
    place = store.add(arguments.name, voice, replace=arguments.replace)
    for warning in voice.warnings:
        warn(warning)
    tell(f"added {arguments.name}: {_seconds(voice)} s, {_holds(voice)}, in {place}")
    _tell_hidden(store, arguments.name)


def _list(arguments: argparse.Namespace, store: VoiceStore) -> None:
    found = [(name, _loaded(store, name)) for name in store.names()]
    if arguments.json:
        print_json([_facts(store, *item) for item in found])
    elif found:
        for line in _table(store, found):
            print_line(line)
    else:
        tell(f"no voices in {store.folder}; ming-trt voices add NAME REF.wav adds one")


def _loaded(store: VoiceStore, name: str) -> Voice | UserError:
    """A damaged file is told in its own line, and keeps no other from being listed."""
    try:
        return store.get(name)
    except UserError as error:
        return error


def _table(store: VoiceStore, found: Iterable[tuple[str, Voice | UserError]]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [_HEADINGS]
    for name, voice in found:
        origin = _origin(store, name)
        if isinstance(voice, UserError):
            rows.append((name, origin, f"cannot be used: {printable(voice.what)}"))
        else:
            words = "" if voice.transcript is None else _first_words(voice.transcript)
            rows.append((name, origin, voice.family, _seconds(voice), _holds(voice), words))
    whole = [row for row in rows if len(row) == len(_HEADINGS)]
    widths = [max(map(_columns, column)) for column in zip(*whole, strict=True)]
    widths[:2] = (max(_columns(row[index]) for row in rows) for index in range(2))
    for row in rows:
        cells = (
            cell + " " * (width - _columns(cell)) for cell, width in zip(row, widths, strict=False)
        )
        yield "  ".join(cells).rstrip()


def _show(arguments: argparse.Namespace, store: VoiceStore) -> None:
    voice = store.get(arguments.name)
    facts = _facts(store, arguments.name, voice)
    if arguments.json:
        print_json(facts)
        return
    warnings = facts.pop("warnings")
    del facts["shipped"], facts["hides_shipped"]
    facts |= {
        "checkpoint": voice.checkpoint or "unknown",
        "seconds": _seconds(voice),
        "speaker_embedding": "no" if voice.speaker_embedding is None else "yes",
        "transcript": "none" if voice.transcript is None else voice.transcript,
    }
    head = [("name", facts.pop("name")), ("origin", _origin(store, arguments.name))]
    rows = [*head, *facts.items(), *(("warning", warning) for warning in warnings)]
    for name, value in rows:
        print_line(f"{name:<17}  {value}")


def _facts(store: VoiceStore, name: str, voice: Voice | UserError) -> dict[str, Any]:
    """What is told of a voice, as values that JSON holds."""
    facts: dict[str, Any] = {
        "name": name,
        "file": str(store.path(name)),
        "shipped": store.is_shipped(name),
        "hides_shipped": store.hides_shipped(name),
    }
    if isinstance(voice, UserError):
        return facts | {"error": voice.what}
    return facts | {
        "family": voice.family,
        "checkpoint": voice.checkpoint,
        "sample_rate": voice.sample_rate,
        "samples": voice.samples,
        "seconds": voice.duration,
        "speaker_embedding": voice.speaker_embedding is not None,
        "latents": 0 if voice.latent_mean is None else len(voice.latent_mean),
        "patch": voice.patch,
        "transcript": voice.transcript,
        "warnings": list(voice.warnings),
    }


def _origin(store: VoiceStore, name: str) -> str:
    if store.is_shipped(name):
        return "shipped"
    return "own, hides the shipped one" if store.hides_shipped(name) else "own"


def _tell_hidden(store: VoiceStore, name: str) -> None:
    if store.hides_shipped(name):
        tell(f"{name} is now this voice, which hides the shipped one of that name")


def _remove(arguments: argparse.Namespace, store: VoiceStore) -> None:
    store.remove(arguments.name)
    tell(f"removed {arguments.name}")
    if store.is_shipped(arguments.name):
        tell(f"{arguments.name} is the shipped voice again")


def _export_options(parser: argparse.ArgumentParser) -> None:
    _name_argument(parser)
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="file that ends in .safetensors, or a folder"
    )
    _replace_argument(parser, "a file that is there")


def _export(arguments: argparse.Namespace, store: VoiceStore) -> None:
    written = store.export(arguments.name, arguments.file, replace=arguments.replace)
    tell(f"wrote {written}")


def _import_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="file that export wrote")
    parser.add_argument("--name", help="(default: the file's)")
    _replace_argument(parser, "a voice of that name")


def _import(arguments: argparse.Namespace, store: VoiceStore) -> None:
    name = store.import_(arguments.file, arguments.name, replace=arguments.replace)
    tell(f"added {name}")
    _tell_hidden(store, name)


def _name_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the voice's name")


def _json_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def _named_json_options(parser: argparse.ArgumentParser) -> None:
    _name_argument(parser)
    _json_argument(parser)


def _replace_argument(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--replace", action="store_true", help=f"replace {what}")


def _seconds(voice: Voice) -> str:
    return "?" if voice.duration is None else f"{voice.duration:.1f}"


def _holds(voice: Voice) -> str:
    speaker = [] if voice.speaker_embedding is None else ["speaker"]
    return " + ".join([*speaker, *([] if voice.latent_mean is None else ["latents"])])


def _first_words(text: str) -> str:
    """The beginning of a text, fit for a terminal, in at most `_FIRST_WORDS` columns."""
    text = printable(" ".join(text[: 4 * _FIRST_WORDS].split()))
    if _columns(text) <= _FIRST_WORDS:
        return text
    while _columns(text) > _FIRST_WORDS - 1:
        text = text[:-1]
    return text.rstrip() + "…"


def _columns(text: str) -> int:
    """Columns that a terminal takes for a text: Chinese takes two a character, a mark none."""
    return sum(
        0
        if unicodedata.category(character) in ("Mn", "Me")
        else 2
        if unicodedata.east_asian_width(character) in ("W", "F")
        else 1
        for character in text
    )


#: Adding a subcommand is adding a row.
_ACTIONS = (
    _Action("add", "make a voice from a recording and keep it", _add_options, _add),
    _Action("list", "print every voice, of your own and shipped", _json_argument, _list),
    _Action("show", "print what a voice holds", _named_json_options, _show),
    _Action("remove", "delete a voice of your own", _name_argument, _remove),
    _Action("export", "write a voice to a file", _export_options, _export),
    _Action("import", "keep a voice from a file", _import_options, _import),
)

command = Command("voices", "make, list and share stored voices", _add_arguments, _run)
