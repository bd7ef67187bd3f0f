"""Descriptions of music and of sound events: what is given to the talker in place of a text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal

from trt_runtime.errors import UserError
from trt_runtime.instruction_values import (
    MUSIC_LABELS,
    label_warnings,
)
from trt_runtime.numeric import finite_number
from trt_runtime.printable import shown
from trt_runtime.prompt import (
    MUSIC_KEYS,
    describes_music,
)
from trt_runtime.spoken_text import check_line, check_text

#: No model makes as much; a number without end would be written out in digits.
LONGEST_SECONDS = 86_400

_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?s\.?")


@dataclass(frozen=True)
class Music:
    """Music to make; raises UserError when made from values that would break the prompt's form.

    The labels are free text in the model's language, Chinese: only a few are documented
    (:data:`trt_runtime.instruction_values.MUSIC_LABELS`), and :meth:`warnings` names those that are
    not. White space around a value is dropped.
    """

    genre: str
    mood: str
    instrument: str
    theme: str
    duration: float | str
    """Seconds as a number up to a day, of which 30 and 30.0 are written 30s; or text, written as it
    is.

    No limit of the model is documented. The reference stops music after 400 steps of 0.32 s, 128 s.
    """

    def __post_init__(self) -> None:
        for name in MUSIC_LABELS:
            object.__setattr__(self, name, _one_line(name, getattr(self, name)))
        object.__setattr__(self, "duration", _duration(self.duration))

    @property
    def duration_seconds(self) -> float | None:
        """Seconds asked for; None where the duration is text other than a number of seconds."""
        if isinstance(self.duration, str):
            return _seconds(self.duration)
        return self.duration

    def text(self) -> str:
        """The text that goes into the prompt."""
        duration = self.duration
        if not isinstance(duration, str):
            # In plain digits, however large or small: 1e16 is "10000000000000000".
            duration = f"{Decimal(repr(duration)):f}".removesuffix(".0") + "s"
        values = (self.genre, self.mood, self.instrument, self.theme, duration)
        return "".join(
            f" {key}{value.removesuffix('.')}."
            for key, value in zip(MUSIC_KEYS, values, strict=True)
        )

    def warnings(self) -> tuple[str, ...]:
        """What may go otherwise than asked: labels that are not documented."""
        return label_warnings({name: getattr(self, name) for name in MUSIC_LABELS})


@dataclass(frozen=True)
class SoundEvent:
    """A sound to make, such as "Thunder and a gentle rain"; raises UserError unless it is text."""

    description: str

    def __post_init__(self) -> None:
        check_text(self.description, "description")
        if describes_music(self.description):
            raise UserError(
                "description would be read as one of music",
                expected="plain words for a sound",
                found=f"all of {', '.join(key.strip() for key in MUSIC_KEYS)}",
                do="use Music(...) for music, or leave one of these out",
            )

    def text(self) -> str:
        """The text that goes into the prompt: the description as it is."""
        return self.description


def _one_line(name: str, value: object) -> str:
    """`value` without white space around it; raises UserError unless it fits into one sentence."""
    text = check_line(value, name, why="the description is one", do="write it on one line")
    keys = [key.strip() for key in MUSIC_KEYS if key in text]
    if keys:
        raise UserError(
            f"{name} holds the name of another part of the description",
            expected=f"a value without any of {', '.join(key.strip() for key in MUSIC_KEYS)}",
            found=f"{keys[0]} in {shown(text)}",
            do="give each part by its own name: Music(genre=..., mood=..., instrument=..., "
            "theme=..., duration=...)",
        )
    return text


def _duration(value: object) -> float | str:
    if isinstance(value, str):
        text = _one_line("duration", value)
        seconds = _seconds(text)
        if seconds is None or 0 < seconds < math.inf:
            return text
    number = finite_number(value)
    if number is not None and number > 0:
        return number
    raise UserError(
        "duration cannot be used",
        expected=f"seconds above 0, up to {LONGEST_SECONDS}, or text such as '30s'",
        found=shown(value),
        do="change duration",
    )


def _seconds(text: str) -> float | None:
    number = _SECONDS.fullmatch(text)
    return float(number[1]) if number else None
