"""Whose voice `ming-trt speak` is asked for: its arguments, and the options that they make."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trt_runtime.cli import add_voices_argument, inputs
from trt_runtime.errors import UserError

#: Words in place of a file of embeddings.
EMBEDDINGS = ("auto", "zero", "none")


def add_arguments(group: Any) -> None:
    """The arguments that say whose voice it is."""
    group.add_argument(
        "--voice",
        metavar="NAME",
        action="append",
        help="a stored voice (ming-trt voices list), the file of one, or a recording",
    )
    group.add_argument(
        "--reference", metavar="FILE", action="append",
        help="a recording to clone; several are several speakers, in the reference's own dialogue "
        "form (several recordings of one speaker: ming-trt voices add)",
    )  # fmt: skip
    group.add_argument(
        "--reference-text", metavar="TEXT", action="append",
        help="the words of the recording; @FILE reads them",
    )  # fmt: skip
    add_voices_argument(group)
    group.add_argument(
        "--speaker-embedding", metavar="auto|zero|none|FILE",
        help="the recording's, a slot of zeros, no slot, or a .npy file (default: auto)",
    )  # fmt: skip
    group.add_argument(
        "--posterior", choices=("mean", "sample"),
        help="of the recording's latents (default: mean)",
    )  # fmt: skip
    group.add_argument(
        "--no-latents", action="store_true",
        help="use only the speaker embedding, though the words are known: for instructions",
    )  # fmt: skip


def voices(arguments: argparse.Namespace, content: Any) -> dict[str, Any]:
    """The options `voice`, `reference` and `reference_text`, in a dialogue each by speaker."""
    given = {
        name: values
        for name in ("voice", "reference", "reference_text")
        if (values := getattr(arguments, name)) is not None
    }
    if arguments.script is not None:
        found: dict[str, Any] = {n: inputs.pairs(option(n), values) for n, values in given.items()}
        _check_speakers(found, content.speakers)
        if "reference_text" in found:
            found["reference_text"] = {
                speaker: inputs.value_or_file(f"--reference-text {speaker}", words)
                for speaker, words in found["reference_text"].items()
            }
        return found
    for name in ("voice", "reference"):
        _check_no_speakers(option(name), given.get(name, ()))
    for name in ("voice", "reference_text"):
        if len(given.get(name, ())) > 1:
            raise UserError(
                f"{option(name)} is given more than once",
                expected="once; several are for the speakers of a --script",
                found=", ".join(given[name]),
                do="leave out all but one",
            )
    found = {name: values[0] if len(values) == 1 else values for name, values in given.items()}
    if "reference_text" in found:
        found["reference_text"] = inputs.value_or_file("--reference-text", found["reference_text"])
    return found


def _check_no_speakers(option: str, values: Sequence[str]) -> None:
    """Raises UserError for SPEAKER=FILE without a script: it is no name of a file or a voice."""
    for value in values:
        speaker, sign, name = value.partition("=")
        if sign and not Path(value).exists() and (option == "--voice" or Path(name).exists()):
            raise UserError(
                f"{option} {speaker}=... is for a speaker of a --script, and there is none",
                expected=f"{option} alone with what is to be used",
                found=value,
                do=f"give --script FILE, or {option} {name}",
            )


def _check_speakers(found: dict[str, Any], speakers: Sequence[str]) -> None:
    known = {speaker: None for name, by_speaker in found.items() for speaker in by_speaker}
    unknown = [speaker for speaker in known if speaker not in speakers]
    if unknown:
        raise UserError(
            f"The script has no speaker {', '.join(unknown)}",
            expected=", ".join(speakers),
            do="check the spelling, or leave it out",
        )
    heard = found.get("voice", {}).keys() | found.get("reference", {}).keys()
    silent = [speaker for speaker in speakers if speaker not in heard]
    if silent:
        raise UserError(
            f"The script has speakers without a voice: {', '.join(silent)}",
            expected=f"one for each of {', '.join(speakers)}",
            found=", ".join(sorted(heard)) or "none",
            do=f"give --voice {silent[0]}=NAME or --reference {silent[0]}=FILE",
        )


def speaker_embedding(choice: str) -> Any:
    """ "auto", "zero", None, or the arrays of a .npy file."""
    if choice in EMBEDDINGS:
        return None if choice == "none" else choice
    if not Path(choice).suffix and not Path(choice).exists():
        near = difflib.get_close_matches(choice.lower(), EMBEDDINGS, 1)
        raise UserError(
            f"--speaker-embedding cannot be {choice}",
            expected=f"{', '.join(EMBEDDINGS)}, or a .npy file",
            found="none of these words, and no file of this name",
            do=f"give {near[0]}" if near else "give one of these",
        )
    return inputs.speaker_embeddings(choice)


def option(name: str) -> str:
    return "--" + name.replace("_", "-")
