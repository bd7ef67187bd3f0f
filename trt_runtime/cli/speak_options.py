"""What `ming-trt speak` is asked for: its arguments, and the request that they make."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

from trt_runtime.cli import inputs, speak_voices
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
    "seed", "guidance", "sigma", "temperature", "min_steps", "max_steps", "posterior",
    "on_runaway", "retries",
)  # fmt: skip
#: What a recording or a description of the voice is given with, and music and sounds have none of.
_OF_SPEECH = (
    "voice", "reference", "reference_text", "speaker_embedding", "posterior", "no_latents",
)  # fmt: skip
_NEVER = "none"
#: The fields of an instruction that are options, with the help of each.
_MANNER = {
    "emotion": "happy, angry or sad",
    "dialect": "cantonese or sichuanese",
    "style": "the voice or manner in plain words; @FILE reads them",
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
    content.add_argument(
        "--sound-event", metavar="TEXT", help="a sound, such as 'Thunder'; @FILE reads it"
    )
    speak_voices.add_arguments(
        parser.add_argument_group("whose voice (in a dialogue: SPEAKER=...)")
    )
    manner = parser.add_argument_group("how it is said")
    for name, text in _MANNER.items():
        manner.add_argument(f"--{name}", help=text)
    manner.add_argument(
        "--background", metavar="KEY=VALUE", nargs="+", action="append",
        help="music or sounds under it: some of genre=, mood=, instrument=, theme=, environment= "
        "and snr= (dB)",
    )  # fmt: skip
    manner.add_argument(
        "--instruction", metavar="TEXT",
        help="the whole instruction instead, JSON or a text that goes in as it is; @FILE reads it",
    )  # fmt: skip
    _add_request_arguments(parser.add_argument_group("request"))


def _add_request_arguments(group: Any) -> None:
    group.add_argument(
        "--prompt", metavar="TEXT",
        help="literal text of the task prompt; @FILE reads it (default: the use's)",
    )  # fmt: skip
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
        help="speak a text of more characters sentence by sentence: 20 to 5000, or none, which "
        "never does (default: 200)",
    )  # fmt: skip
    group.add_argument(
        "--retries", metavar="N", type=int,
        help="more attempts at a silent or runaway sentence (default: 0)",
    )  # fmt: skip
    group.add_argument(
        "--on-runaway", choices=("report", "stop"),
        help="what to do where speech runs away (default: report)",
    )  # fmt: skip


def _split_limit(text: str) -> int | str:
    return _NEVER if text.lower() == _NEVER else int(text)


_split_limit.__name__ = "number from 20 to 5000, or none:"


def content_and_options(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """What is to be spoken, and the options of its request that were given.

    Files that they name are read. Raises UserError where they cannot be, and for options that do
    not go together.
    """
    arguments = _with_text_after_background(arguments)
    _check_together(arguments)
    options = {
        name: getattr(arguments, name)
        for name in _AS_THEY_ARE
        if getattr(arguments, name) is not None
    }
    if arguments.prompt is not None:
        options["prompt"] = inputs.value_or_file("--prompt", arguments.prompt)
    if arguments.normalize:
        options["normalize"] = True
    if arguments.no_latents:
        options["latents"] = False
    if arguments.split_limit is not None:
        limit = arguments.split_limit
        options["split_limit"] = None if limit == _NEVER else limit
    if arguments.speaker_embedding is not None:
        options["speaker_embedding"] = speak_voices.speaker_embedding(arguments.speaker_embedding)
    instruction = _instruction(arguments)
    if instruction is not None:
        options["instruction"] = instruction
    content = _content(arguments)
    options |= speak_voices.voices(arguments, content)
    return content, options


def check_request(
    content: Any, options: dict[str, Any], voices: str | os.PathLike[str] | None
) -> None:
    """Raises UserError for what can be refused without engines, before gigabytes are loaded."""
    from trt_runtime.passages import passages
    from trt_runtime.request import Request
    from trt_runtime.voice_choice import choose
    from trt_runtime.voice_store import VoiceStore

    request = Request(content, **options)
    choose(request, VoiceStore(voices))
    if request.normalize:
        passages(request)


def _with_text_after_background(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments with TEXT where it was typed after --background, which takes all that follows.

    Its pairs have an equals sign; a last value without one is the text, unless there is another.
    """
    groups = arguments.background or ()
    stray = [group[-1] for group in groups if len(group) > 1 and "=" not in group[-1]]
    if len(stray) != 1 or any(getattr(arguments, name) is not None for name in _CONTENTS):
        return arguments
    pairs = [group[:-1] if group[-1] is stray[0] else group for group in groups]
    return argparse.Namespace(**vars(arguments) | {"text": stray[0], "background": pairs})


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
    of_speech = [
        speak_voices.option(name)
        for name in _OF_SPEECH
        if getattr(a, name) not in (None, False, "auto", "none")
    ] + manner
    of_speech += ["--instruction"] if a.instruction is not None else []
    kind = "Music" if a.music is not None else "A sound event"
    rows = (
        (a.split_limit is not None and (described or a.script is not None),
         "--split-limit is for a text: dialogues, music and sounds are made in one go",
         "leave it out"),
        (described and of_speech,
         f"{kind} is made from its description alone, and there is {', '.join(of_speech)}",
         "leave that out; for speech over music or sounds: TEXT with --background KEY=VALUE"),
        (a.normalize and described, "--normalize is for words that are spoken", "leave it out"),
        (a.reference_text and not cloned,
         "--reference-text is the words of a recording, and there is none",
         "give --reference, too"),
        (a.posterior is not None and not cloned,
         "--posterior is for the latents of a recording", "give --reference or --voice"),
        (a.no_latents and not cloned,
         "--no-latents is for a recording or a stored voice", "give --reference or --voice"),
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
        return SoundEvent(inputs.value_or_file("--sound-event", arguments.sound_event))
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
    if "style" in fields:
        fields["style"] = inputs.value_or_file("--style", fields["style"])
    if arguments.background is not None:
        values = [value for group in arguments.background for value in group]
        given: dict[str, Any] = inputs.pairs("--background", values)
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


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
