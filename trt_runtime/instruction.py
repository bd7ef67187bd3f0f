"""Instructions on how to speak: the JSON text that the model was trained to read after the prompt.

An :class:`Instruction` has typed fields that are checked. A mapping of the model's own keys goes in
as the reference would write it, values unchecked; a text goes in as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict, Unpack

from trt_runtime.errors import UserError
from trt_runtime.instruction_values import (
    BACKGROUND_FIELDS,
    DIALECTS,
    EMOTIONS,
    ENVIRONMENTS,
    INSTRUCTION_FIELDS,
    LEVELS,
    RATES,
    VOICES,
    by_english_name,
    check_choice,
    label_warnings,
)
from trt_runtime.numeric import finite_number
from trt_runtime.printable import shown
from trt_runtime.spoken_text import LONGEST_TEXT, check_text

#: What an instruction is made of before anything is asked for, in the order that is written.
_ITEM: dict[str, Any] = {
    "序号": 1,
    "说话人": "speaker_1",
    **dict.fromkeys(INSTRUCTION_FIELDS.values()),
    "BGM": dict.fromkeys(BACKGROUND_FIELDS.values()),
}
#: The order where music or sounds are mixed under the speech: the reference then writes another.
_ORDER_WITH_SNR = (
    "序号", "说话人", "BGM", "情感", "方言", "风格", "语速", "基频", "音量", "IP",
)  # fmt: skip

_MOST_NAMES_SHOWN = 10


class BackgroundFields(TypedDict, total=False):
    """The keywords of a :class:`Background`, for those who check types."""

    genre: str | None
    Genre: str | None
    mood: str | None
    Mood: str | None
    instrument: str | None
    Instrument: str | None
    theme: str | None
    Theme: str | None
    environment: str | None
    ENV: str | None
    snr: float | None
    SNR: float | None


@dataclass(frozen=True, init=False)
class Background:
    """Music or sounds under the speech; raises UserError when made from what cannot be used.

    Fields are keywords, by these names or by the model's (Genre, Mood, Instrument, Theme, ENV,
    SNR). The labels of music are free text in the model's language, Chinese: only a few are
    documented (:data:`trt_runtime.instruction_values.MUSIC_LABELS`), and :meth:`warnings` names
    those that are not.
    """

    genre: str | None = None
    mood: str | None = None
    instrument: str | None = None
    theme: str | None = None
    environment: str | None = None
    """One of the documented :data:`trt_runtime.instruction_values.ENVIRONMENTS`."""
    snr: float | None = None
    """Speech over background in dB; the reference's examples use 10."""

    def __init__(self, **fields: Unpack[BackgroundFields]) -> None:
        given = by_english_name("background", BACKGROUND_FIELDS, fields)
        _set_fields(self, _BACKGROUND_CHECKS, given)

    @classmethod
    def from_fields(cls, fields: object) -> Background:
        """The background with these fields, a mapping of names of either kind."""
        return cls(**by_english_name("background", BACKGROUND_FIELDS, fields))

    def warnings(self) -> tuple[str, ...]:
        """What may go otherwise than asked: labels that are not documented."""
        return label_warnings(
            {name: getattr(self, name) for name in ("genre", "mood", "instrument", "theme")}
        )


class InstructionFields(TypedDict, total=False):
    """The keywords of an :class:`Instruction`, for those who check types."""

    dialect: str | None
    方言: str | None
    style: str | None
    风格: str | None
    rate: str | None
    语速: str | None
    pitch: str | None
    基频: str | None
    volume: str | None
    音量: str | None
    emotion: str | None
    情感: str | None
    background: Background | Mapping[str, Any] | None
    BGM: Background | Mapping[str, Any] | None
    ip: str | None
    IP: str | None


@dataclass(frozen=True, init=False)
class Instruction:
    """How to speak; raises UserError when made from values that are not documented.

    Fields are keywords, by these names or by the model's (方言, 风格, 语速, 基频, 音量, 情感, BGM,
    IP). Values are given as the model knows them or by the English names of
    :mod:`trt_runtime.instruction_values`, and kept as the model knows them. None is unset.
    """

    dialect: str | None = None
    """粤语 (cantonese), 川渝 (sichuanese) or 广粤话."""
    style: str | None = None
    """The voice or manner in free text."""
    rate: str | None = None
    """快速 (fast), 中速 (medium) or 慢速 (slow)."""
    pitch: str | None = None
    """低 (low), 中 (medium) or 高 (high)."""
    volume: str | None = None
    """低 (low), 中 (medium) or 高 (high)."""
    emotion: str | None = None
    """高兴 (happy), 愤怒 (angry) or 悲伤 (sad)."""
    background: Background | None = None
    """Music or sounds under the speech; may be given as a mapping of its fields."""
    ip: str | None = None
    """One of the built-in :data:`trt_runtime.instruction_values.VOICES`."""

    def __init__(self, **fields: Unpack[InstructionFields]) -> None:
        given = by_english_name("instruction", INSTRUCTION_FIELDS, fields)
        _set_fields(self, _INSTRUCTION_CHECKS, given)

    @classmethod
    def from_fields(cls, fields: object) -> Instruction:
        """The instruction with these fields, a mapping of names of either kind."""
        return cls(**by_english_name("instruction", INSTRUCTION_FIELDS, fields))

    def to_json(self) -> str:
        """The text that goes into the prompt, as the reference writes it."""
        item = {key: getattr(self, name) for name, key in INSTRUCTION_FIELDS.items()}
        background = self.background or Background()
        item["BGM"] = {key: getattr(background, name) for name, key in BACKGROUND_FIELDS.items()}
        return _item_text(item)

    def warnings(self) -> tuple[str, ...]:
        """What may go otherwise than asked: labels of the background that are not documented."""
        return self.background.warnings() if self.background else ()


def instruction_text(instruction: object) -> tuple[str | None, tuple[str, ...]]:
    """What goes into the prompt for `instruction`, and warnings for the result to repeat.

    None is no instruction; an :class:`Instruction` is its JSON. Of a mapping, as in the reference,
    the model's own keys are copied over the unset ones with whatever JSON value they have, and
    others are dropped with a warning. A str goes in as it is, unless it is JSON: an object with
    "audio_sequence" goes in as it is, an object with a known key is taken as a mapping, with a
    warning. Raises UserError for other JSON, for values that JSON cannot hold, and for other types.
    """
    if instruction is None:
        return None, ()
    if isinstance(instruction, Instruction):
        return instruction.to_json(), instruction.warnings()
    if isinstance(instruction, Mapping):
        return _mapping_text(instruction)
    if isinstance(instruction, str):
        return _str_text(check_text(instruction, "instruction"))
    raise UserError(
        "instruction cannot be used",
        expected="None, an Instruction, a mapping such as {'情感': '高兴'}, or a text",
        found=type(instruction).__name__,
        do="give one of these, for example Instruction(emotion='happy')",
    )


def _mapping_text(given: Mapping[Any, Any]) -> tuple[str, tuple[str, ...]]:
    unknown = [key for key in given if key not in _ITEM]
    text = _item_text({key: given[key] for key in given if key in _ITEM})
    if not unknown:
        return text, ()
    names = ", ".join(shown(key) for key in unknown[:_MOST_NAMES_SHOWN])
    more = len(unknown) - _MOST_NAMES_SHOWN
    return text, (
        f"the instruction's {names}{f' and {more} more' if more > 0 else ''} was dropped: the "
        f"model knows {', '.join(_ITEM)}; Instruction.from_fields takes English names",
    )


def _str_text(text: str) -> tuple[str, tuple[str, ...]]:
    if not text.lstrip().startswith(("{", "[")):
        return text, ()
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        if not text.lstrip().startswith("{"):
            return text, ()
        return text, (
            f"the instruction begins like JSON and is none ({error}): it went in as plain text",
        )
    if isinstance(value, dict) and "audio_sequence" in value:
        _encoded(value)  # Python reads NaN and Infinity, which JSON has not
        return text, ()
    if isinstance(value, dict) and any(key in _ITEM for key in value):
        written, warnings = _mapping_text(value)
        return written, (
            "the instruction is JSON without audio_sequence: its keys were taken as a mapping's",
            *warnings,
        )
    found = f"an object with {_names(value)}" if isinstance(value, dict) else "an array"
    raise UserError(
        "instruction is JSON that is not an instruction",
        expected='an object such as {"情感": "高兴"} or {"audio_sequence": [{...}]}',
        found=found,
        do="write it so, use Instruction(emotion='happy'), or describe the voice in plain words",
    )


def _names(value: Mapping[str, object]) -> str:
    names = [shown(key) for key in value][:_MOST_NAMES_SHOWN]
    return f"the keys {', '.join(names)}" if names else "no keys"


def _item_text(given: Mapping[str, Any]) -> str:
    """The JSON of an instruction that has `given` in place of what is unset."""
    item = {key: given.get(key, unset) for key, unset in _ITEM.items()}
    background = item["BGM"]
    if isinstance(background, Mapping) and background.get("SNR") is not None:
        item = {key: item[key] for key in _ORDER_WITH_SNR}
    return _encoded({"audio_sequence": [item]})


def _encoded(value: object) -> str:
    # Piece by piece, for a few lists inside each other can stand for more text than memory holds.
    pieces: list[str] = []
    length = 0
    try:
        for piece in json.JSONEncoder(ensure_ascii=False, allow_nan=False).iterencode(value):
            pieces.append(piece)
            length += len(piece)
            if length > LONGEST_TEXT:
                break
    except RecursionError:
        raise _too_deep() from None
    except (TypeError, ValueError) as error:
        raise UserError(
            "instruction holds a value that JSON cannot hold",
            expected="texts, finite numbers, True, False, None, and lists and dicts of these",
            found=str(error),
            do="change that value",
        ) from None
    return check_text("".join(pieces), "instruction")


def _too_deep() -> UserError:
    return UserError(
        "instruction is nested too deeply",
        expected="a value or two inside each other",
        found="more than Python's recursion limit",
        do="write the instruction flat",
    )


def _set_fields(
    target: object, checks: Mapping[str, Callable[[str, Any], object]], given: Mapping[str, Any]
) -> None:
    for name, check in checks.items():
        object.__setattr__(target, name, check(name, given[name]) if name in given else None)


def _text(name: str, value: Any) -> str:
    return check_text(value, name)


def _background(name: str, value: Any) -> Background:
    return value if isinstance(value, Background) else Background.from_fields(value)


def _snr(name: str, value: Any) -> float:
    number = finite_number(value)
    if number is not None:
        return number
    raise UserError(
        f"{name} cannot be used",
        expected="a finite number of decibels, such as 10.0",
        found=shown(value),
        do=f"change {name}, or leave it out",
    )


_BACKGROUND_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "genre": _text,
    "mood": _text,
    "instrument": _text,
    "theme": _text,
    "environment": partial(check_choice, choices=ENVIRONMENTS),
    "snr": _snr,
}
_INSTRUCTION_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "dialect": partial(check_choice, choices=DIALECTS),
    "style": _text,
    "rate": partial(check_choice, choices=RATES),
    "pitch": partial(check_choice, choices=LEVELS),
    "volume": partial(check_choice, choices=LEVELS),
    "emotion": partial(check_choice, choices=EMOTIONS),
    "background": _background,
    "ip": partial(check_choice, choices=VOICES),
}
