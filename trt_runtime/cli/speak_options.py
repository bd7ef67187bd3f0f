"""What `ming-trt speak` is asked for: its arguments, and the request that they make."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from trt_runtime.cli import inputs
from trt_runtime.errors import UserError

#: What is spoken, by argument: exactly one is given.
_CONTENTS = {
    "text": "TEXT",
    "text_file": "--text-file",
    "script": "--script",
    "music": "--music",
    "sound_event": "--sound-event",
}
#: Options that go into the request as they are.
_AS_THEY_ARE = (
    "prompt", "seed", "guidance", "sigma", "temperature", "min_steps", "max_steps", "posterior",
    "on_runaway", "retries",
)  # fmt: skip
#: The fields of an instruction that are options, with the help of each.
_MANNER = {
    "emotion": "happy, angry or sad",
    "dialect": "cantonese or sichuanese",
    "style": "the voice or manner in plain words",
    "rate": "fast, medium or slow",
    "pitch": "low, medium or high",
    "volume": "low, medium or high",
    "ip": "one of the model's built-in voices, by its Chinese name",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say what is spoken and how."""
    parser.add_argument(
        "text", metavar="TEXT", nargs="?", help="what to say; - reads it from standard input"
    )
    content = parser.add_argument_group("in place of TEXT")
    content.add_argument("--text-file", metavar="FILE", help="a text, in UTF-8")
    content.add_argument(
        "--script", metavar="FILE",
        help="a dialogue: 'anna: Hello.' a line, or a .json list of turns",
    )  # fmt: skip
    content.add_argument(
        "--music", metavar="KEY=VALUE", nargs="+", action="extend",
        help="music: all of genre=, mood=, instrument=, theme= and duration= (seconds)",
    )  # fmt: skip
    content.add_argument("--sound-event", metavar="TEXT", help="a sound, such as 'Thunder'")
    _add_voice_arguments(parser.add_argument_group("whose voice (in a dialogue: SPEAKER=...)"))
    manner = parser.add_argument_group("how it is said")
    for name, text in _MANNER.items():
        manner.add_argument(f"--{name}", help=text)
    manner.add_argument(
        "--background", metavar="KEY=VALUE", action="append",
        help="music or sounds under it: genre=, mood=, instrument=, theme=, environment= or snr= "
        "(dB); repeatable",
    )  # fmt: skip
    manner.add_argument(
        "--instruction", metavar="TEXT",
        help="the whole instruction instead, JSON or a text that goes in as it is; @FILE reads it",
    )  # fmt: skip
    _add_request_arguments(parser.add_argument_group("request"))


def _add_voice_arguments(group: Any) -> None:
    group.add_argument(
        "--voice", metavar="NAME", action="append", help="a stored voice, or the file of one"
    )
    group.add_argument(
        "--reference", metavar="FILE", action="append", help="a recording to clone; repeatable"
    )
    group.add_argument(
        "--reference-text", metavar="TEXT", action="append",
        help="the words of the recording; @FILE reads them",
    )  # fmt: skip
    group.add_argument(
        "--voices", metavar="DIR",
        help="folder of the stored voices (default: $MING_TRT_VOICES, or one in your data folder)",
    )  # fmt: skip
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


def _add_request_arguments(group: Any) -> None:
    group.add_argument("--prompt", help="literal text of the task prompt (default: the use's)")
    group.add_argument("--seed", type=int, help="seed of the noise (default: 0)")
    group.add_argument(
        "--guidance", type=float, help="classifier-free guidance (default: 2.0, sound event 4.5)"
    )
    group.add_argument(
        "--sigma", type=float,
        help="noise inside the solver at temperature 1 (default: 0.25, sound event 0.3)",
    )  # fmt: skip
    group.add_argument(
        "--temperature", type=float,
        help="0: deterministic solver (default: 0.0, sound event 2.5)",
    )  # fmt: skip
    group.add_argument("--min-steps", type=int, help="steps before it may stop (default: 5)")
    group.add_argument(
        "--max-steps", type=int, help="steps after which a sentence ends (default: 200, music 400)"
    )
    group.add_argument(
        "--normalize", action="store_true", help="spell out numbers, dates, units and addresses"
    )
    group.add_argument(
        "--split-limit", metavar="N", type=_split_limit,
        help="speak a text of more characters sentence by sentence; 0 or none never does "
        "(default: 200)",
    )  # fmt: skip
    group.add_argument(
        "--retries", metavar="N", type=int,
        help="more attempts at a silent or runaway sentence (default: 0)",
    )  # fmt: skip
    group.add_argument(
        "--on-runaway", choices=("report", "stop"),
        help="what to do where speech runs away (default: report)",
    )  # fmt: skip


def _split_limit(text: str) -> int:
    return 0 if text.lower() == "none" else int(text)


_split_limit.__name__ = "whole number"


def content_and_options(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """What is to be spoken, and the options of its request that were given.

    Files that they name are read. Raises UserError where they cannot be, and for options that do
    not go together.
    """
    _check_together(arguments)
    options = {
        name: getattr(arguments, name)
        for name in _AS_THEY_ARE
        if getattr(arguments, name) is not None
    }
    if arguments.normalize:
        options["normalize"] = True
    if arguments.no_latents:
        options["latents"] = False
    if arguments.split_limit is not None:
        options["split_limit"] = arguments.split_limit or None
    if arguments.speaker_embedding is not None:
        options["speaker_embedding"] = _speaker_embedding(arguments.speaker_embedding)
    instruction = _instruction(arguments)
    if instruction is not None:
        options["instruction"] = instruction
    content = _content(arguments)
    options |= _voices(arguments, content)
    return content, options


def check_request(content: Any, options: dict[str, Any], voices: str | None) -> None:
    """Raises UserError for what can be refused without engines, before gigabytes are loaded."""
    from trt_runtime.passages import passages
    from trt_runtime.request import Request
    from trt_runtime.voice_choice import choose
    from trt_runtime.voice_store import VoiceStore

    request = Request(content, **options)
    choose(request, VoiceStore(voices))
    if request.normalize:
        passages(request)


def _check_together(arguments: argparse.Namespace) -> None:
    a = arguments
    given = [label for name, label in _CONTENTS.items() if getattr(a, name) is not None]
    if len(given) != 1:
        raise UserError(
            "There is more than one thing to speak" if given else "There is nothing to speak",
            expected="one of " + ", ".join(_CONTENTS.values()),
            found=" and ".join(given),
            do=f"leave out all but one of {', '.join(given)}" if given else "give TEXT, or - to "
            "read it from standard input",
        )  # fmt: skip
    described = a.music is not None or a.sound_event is not None
    cloned = a.voice or a.reference
    manner = [f"--{name}" for name in (*_MANNER, "background") if getattr(a, name) is not None]
    rows = (
        (a.split_limit is not None and (described or a.script is not None),
         "--split-limit is for a text: dialogues, music and sounds are made in one go",
         "leave it out"),
        (a.normalize and described, "--normalize is for words that are spoken", "leave it out"),
        (a.reference_text and not cloned,
         "--reference-text is the words of a recording, and there is none",
         "give --reference, too"),
        (a.posterior is not None and not cloned,
         "--posterior is for the latents of a recording", "give --reference or --voice"),
        (a.speaker_embedding == "zero" and cloned,
         "--speaker-embedding zero is for speaking without a recording",
         "leave it out, or leave out --voice and --reference"),
        (a.speaker_embedding == "none" and a.reference and not (a.reference_text or a.voice),
         "Nothing of the recording would be used",
         "give --reference-text, or leave out --speaker-embedding none"),
        (a.instruction is not None and manner,
         f"--instruction is the whole instruction, and there is {', '.join(manner)}",
         "leave one or the other out"),
    )  # fmt: skip
    for wrong, what, do in rows:
        if wrong:
            raise UserError(what, do=do)


def _content(arguments: argparse.Namespace) -> Any:
    from trt_runtime.audio_description import SoundEvent
    from trt_runtime.dialogue import read_script

    if arguments.script is not None:
        return read_script(arguments.script)
    if arguments.sound_event is not None:
        return SoundEvent(arguments.sound_event)
    if arguments.music is not None:
        return _music(arguments.music)
    if arguments.text_file is not None:
        return inputs.file_text(arguments.text_file)
    return inputs.text_or_standard_input(arguments.text)


def _music(values: Sequence[str]) -> Any:
    from trt_runtime.audio_description import Music

    fields: dict[str, Any] = inputs.pairs("--music", values)
    expected = Music.__dataclass_fields__
    if fields.keys() != expected.keys():
        raise UserError(
            "--music needs each part of the description once",
            expected=" ".join(f"{name}=..." for name in expected),
            found=" ".join(f"{name}=..." for name in fields),
            do="give all of them, and no others",
        )
    return Music(**fields | {"duration": _number_or_text(fields["duration"])})


def _instruction(arguments: argparse.Namespace) -> Any:
    from trt_runtime.instruction import Instruction

    if arguments.instruction is not None:
        return _whole_instruction(inputs.value_or_file("--instruction", arguments.instruction))
    fields: dict[str, Any] = {
        name: getattr(arguments, name) for name in _MANNER if getattr(arguments, name) is not None
    }
    if arguments.background is not None:
        given: dict[str, Any] = inputs.pairs("--background", arguments.background)
        fields["background"] = {
            name: _number_or_text(value) if name.lower() == "snr" else value
            for name, value in given.items()
        }
    return Instruction.from_fields(fields) if fields else None


def _whole_instruction(text: str) -> str:
    """`text`; raises UserError where it begins like JSON and is none: whoever typed it meant it."""
    if text.lstrip().startswith(("{", "[")):
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(
                "--instruction begins like JSON and is none",
                expected='an object such as {"情感": "高兴"}',
                found="values inside each other without end"
                if isinstance(error, RecursionError)
                else str(error),
                do="mend it (a shell keeps its quotation marks inside '...'), or begin plain words "
                "with another character",
            ) from error
    return text


def _voices(arguments: argparse.Namespace, content: Any) -> dict[str, Any]:
    """The options `voice`, `reference` and `reference_text`, in a dialogue each by speaker."""
    given = {
        name: values
        for name in ("voice", "reference", "reference_text")
        if (values := getattr(arguments, name)) is not None
    }
    if arguments.script is not None:
        found: dict[str, Any] = {n: inputs.pairs(_option(n), values) for n, values in given.items()}
        _check_speakers(found, content.speakers)
        if "reference_text" in found:
            found["reference_text"] = {
                speaker: inputs.value_or_file(f"--reference-text {speaker}", words)
                for speaker, words in found["reference_text"].items()
            }
        return found
    for name in ("voice", "reference_text"):
        if len(given.get(name, ())) > 1:
            raise UserError(
                f"{_option(name)} is given more than once",
                expected="once; several are for the speakers of a --script",
                found=", ".join(given[name]),
                do="leave out all but one",
            )
    found = {name: values[0] if len(values) == 1 else values for name, values in given.items()}
    if "reference_text" in found:
        found["reference_text"] = inputs.value_or_file("--reference-text", found["reference_text"])
    return found


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


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _speaker_embedding(choice: str) -> Any:
    """ "auto", "zero", None, or the arrays of a .npy file."""
    if choice in ("auto", "zero", "none"):
        return None if choice == "none" else choice
    return inputs.speaker_embeddings(choice)
