"""Dialogues of several speakers: turns, scripts, and the text that the model reads.

Speakers are numbered from 1 in the order in which they first speak, and their references come in
that order.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from trt_runtime.errors import UserError, reason_of
from trt_runtime.printable import shown
from trt_runtime.spoken_text import check_line, check_text

#: Far more than any model's context holds; a script beyond it is a mistake.
MOST_TURNS = 1_000
LONGEST_NAME = 100
LARGEST_SCRIPT = 1_000_000
"""Bytes of a script file."""

_LABEL = re.compile(r"speaker_[0-9]+\s*[:：]", re.IGNORECASE)
_RAW_LINE = re.compile(r"^ speaker_([1-9][0-9]{0,5}):", re.MULTILINE)
_NUMBERED_NAME = re.compile(r"speaker_([0-9]+)", re.IGNORECASE)
_COLON = re.compile(r"[:：]")


@dataclass(frozen=True)
class Turn:
    """What one speaker says before another does; white space around name and text is dropped.

    Raises UserError for a blank name or text, a name that is not printable or longer than
    :data:`LONGEST_NAME`, a line break, and a text that holds a speaker's label ("speaker_3:").
    """

    speaker: str
    text: str

    def __post_init__(self) -> None:
        speaker = check_text(self.speaker, "a speaker's name").strip()
        if not speaker.isprintable() or len(speaker) > LONGEST_NAME:
            raise UserError(
                "a speaker's name cannot be used",
                expected=f"at most {LONGEST_NAME} printable characters on one line",
                found=shown(speaker),
                do="give a short name",
            )
        object.__setattr__(self, "speaker", speaker)
        object.__setattr__(self, "text", _spoken(self.text, "a turn's text"))


@dataclass(frozen=True)
class Dialogue:
    """Turns of two or more speakers; raises UserError when made from what is none."""

    turns: tuple[Turn, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "turns", _checked_turns(self.turns))
        if len(self.speakers) < 2:
            raise UserError(
                "a dialogue has too few speakers",
                expected="two or more",
                found=shown(self.speakers[0]) if self.speakers else "no turns",
                do="add turns of another speaker, or give one speaker's words as plain text",
            )
        for number, speaker in enumerate(self.speakers, 1):
            named = _NUMBERED_NAME.fullmatch(speaker)
            if named and int(named[1]) != number:
                raise UserError(
                    f"{speaker} would be speaker {number}",
                    expected="numbers in the order in which the speakers first speak",
                    found=", ".join(self.speakers[:number]),
                    do="number them in that order, or give them names",
                )

    @classmethod
    def from_any(cls, value: object) -> Dialogue:
        """The dialogue of a list of turns.

        A turn is a :class:`Turn`, a mapping {"speaker": ..., "text": ...} or a (speaker, text)
        pair. Raises UserError that says which turn cannot be used.
        """
        if isinstance(value, Dialogue):
            return value
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise UserError(
                "a dialogue is a list of turns",
                expected='[("anna", "Hello."), ("ben", "Hi.")] or [{"speaker": ..., "text": ...}]',
                found=type(value).__name__,
                do="give a list, or read a script with read_script(path)",
            )
        # One too many is enough to be refused, and an iterator may never end.
        some = enumerate(islice(value, MOST_TURNS + 1), 1)
        return cls(tuple(_turn(turn, f"turn {number}") for number, turn in some))

    @property
    def speakers(self) -> tuple[str, ...]:
        """The speakers' names in the order in which they first speak: speaker 1, 2, ..."""
        return tuple(dict.fromkeys(turn.speaker for turn in self.turns))

    def text(self) -> str:
        r"""The text that goes into the prompt: " speaker_1:...\n speaker_2:...\n"."""
        number = {speaker: n for n, speaker in enumerate(self.speakers, 1)}
        return _labelled((number[turn.speaker], turn.text) for turn in self.turns)

    def prompt_text(self, transcripts: Sequence[str]) -> str:
        """The words of the references in the same form, one transcript a speaker in their order.

        Raises UserError where their number is another, or a transcript could be no turn.
        """
        if isinstance(transcripts, str | bytes) or not isinstance(transcripts, Sequence):
            raise UserError(
                "transcripts are no list",
                expected=f"a list of {len(self.speakers)} texts, one for each speaker",
                found=type(transcripts).__name__,
                do="give a list, in the order in which the speakers first speak",
            )
        if len(transcripts) != len(self.speakers):
            raise UserError(
                "there are too few or too many transcripts",
                expected=f"{len(self.speakers)}, for {_some(self.speakers)} in this order",
                found=str(len(transcripts)),
                do="give one for each speaker",
            )
        return _labelled(
            (number, _spoken(text, f"the transcript of {speaker}"))
            for number, (speaker, text) in enumerate(
                zip(self.speakers, transcripts, strict=True), 1
            )
        )


def read_script(path: str | os.PathLike[str]) -> Dialogue:
    """The dialogue in a script: UTF-8 text with a turn a line, or a `.json` file with a list.

    A line is "anna: Hello." with a colon or a full-width one; blank lines and lines that begin with
    "#" are skipped. The list is what :meth:`Dialogue.from_any` takes. Raises UserError that names
    the line or turn, for a file that is missing, not plain, larger than :data:`LARGEST_SCRIPT` or
    no UTF-8, and for JSON that is none.
    """
    path = Path(path)
    text = _file_text(path)
    try:
        if path.suffix.lower() == ".json":
            return Dialogue.from_any(_json(text))
        return Dialogue(tuple(_script_turns(text)))
    except UserError as error:
        raise _at(str(path), error) from None


def speakers_in_raw_text(text: str) -> int:
    """How many speakers a text has that is a dialogue as the reference writes it; 0 if it is none.

    The largest number k of the lines that begin with " speaker_k:".
    """
    return max((int(number) for number in _RAW_LINE.findall(text)), default=0)


def _labelled(turns: Iterable[tuple[int, str]]) -> str:
    return check_text("".join(f" speaker_{number}:{text}\n" for number, text in turns))


def _spoken(value: object, name: str) -> str:
    text = check_line(
        value,
        name,
        why="in the prompt a turn is a line",
        do="put a space in place of the line break, or make it two turns",
    )
    label = _LABEL.search(text)
    if label:
        raise UserError(
            f"{name} holds a speaker's label",
            expected="only what is spoken: the labels are written for you",
            found=f"{label[0]!r} in {shown(text)}",
            do="make it a turn of its own, or leave it out",
        )
    return text


def _checked_turns(turns: object) -> tuple[Turn, ...]:
    if not isinstance(turns, list | tuple) or not all(isinstance(turn, Turn) for turn in turns):
        raise UserError(
            "a dialogue's turns cannot be used",
            expected="a list or tuple of Turn",
            found=shown(turns),
            do="use Dialogue.from_any, which takes pairs and mappings too",
        )
    if len(turns) > MOST_TURNS:
        raise UserError(
            "a dialogue has too many turns",
            expected=f"at most {MOST_TURNS:,}, more than any model's context holds",
            found="more",
            do="speak it in parts",
        )
    return tuple(turns)


def _turn(value: object, where: str) -> Turn:
    if isinstance(value, Turn):
        return value
    if isinstance(value, Mapping) and set(value) == {"speaker", "text"}:
        value = (value["speaker"], value["text"])
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise UserError(
            f"{where} is no turn",
            expected='a Turn, {"speaker": ..., "text": ...} or a (speaker, text) pair',
            found=shown(value),
            do="write it as one of these",
        )
    try:
        return Turn(*value)
    except UserError as error:
        raise _at(where, error) from None


def _script_turns(text: str) -> Iterable[Turn]:
    # Not splitlines, which also splits where editors show no new line, at U+2028 for one.
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = _COLON.split(line, maxsplit=1)
        if len(parts) != 2:
            raise UserError(
                f"line {number} names no speaker",
                expected="a speaker, a colon and what is said: anna: Hello.",
                found=shown(line),
                do="put the speaker before it, or join it to the line above",
            )
        yield _turn(parts, f"line {number}")


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            "the script is no JSON",
            expected='a list such as [{"speaker": "anna", "text": "Hello."}, ...]',
            found=str(error),
            do="mend it, or write a .txt script with a turn a line",
        ) from None


def _file_text(path: Path) -> str:
    wrong = f"the script {path} cannot be read"
    try:
        if not path.is_file():
            raise UserError(
                wrong,
                expected="a plain file",
                found="something else of that name" if path.exists() else "no file",
                do="give the path of a script",
            )
        with path.open("rb") as file:
            data = file.read(LARGEST_SCRIPT + 1)
        if len(data) > LARGEST_SCRIPT:
            raise UserError(
                wrong,
                expected=f"at most {LARGEST_SCRIPT:,} bytes",
                found="more",
                do="speak it in parts",
            )
        if b"\0" in data:
            raise UserError(
                wrong,
                expected="UTF-8 text",
                found="binary data, or text in UTF-16",
                do="give a text file, or convert it with iconv -t UTF-8",
            )
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            wrong,
            expected="UTF-8 text",
            found=f"byte 0x{error.object[error.start]:02X} at offset {error.start}",
            do="convert it first, for example with iconv -t UTF-8",
        ) from None
    except OSError as error:
        raise UserError(
            wrong, found=reason_of(error), do="check the path and who may read the file"
        ) from None


def _at(where: str, error: UserError) -> UserError:
    """`error` with the place where it lies."""
    return UserError(
        f"{where}: {error.what}", expected=error.expected, found=error.found, do=error.do
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
