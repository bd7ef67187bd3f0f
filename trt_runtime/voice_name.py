"""What a voice may be called: names of any script that are the same on every system."""

from __future__ import annotations

import re
import unicodedata

from trt_runtime.errors import UserError

#: Of a voice's file.
ENDING = ".safetensors"
#: Suffixes that make a string the name of a file, wherever a voice's name may stand too.
FILE_SUFFIXES = (
    ENDING, ".wav", ".flac", ".mp3", ".ogg", ".opus", ".oga", ".aiff", ".aif", ".au", ".caf",
    ".w64", ".m4a", ".mp4",
)  # fmt: skip
LONGEST_NAME = 64
#: Linux lets a file's name have 255 bytes.
_MOST_BYTES = 255 - len(ENDING)
#: Unicode categories: every script's letters, the marks that belong to them, and decimal digits.
_LETTERS_AND_DIGITS = ("L", "M", "Nd")
#: Windows takes these for devices, whatever follows a dot.
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE | re.ASCII)


def check_name(name: object) -> str:
    """`name`, normalised (NFC); raises UserError, with a suggestion, unless a voice can have it."""
    if not isinstance(name, str):
        raise UserError(
            "A voice's name is not text",
            expected="a str",
            found=type(name).__name__,
            do='give a name, for example "my-voice"',
        )
    normalised = unicodedata.normalize("NFC", name)
    problem = problem_with(normalised)
    if problem:
        raise UserError(
            f"No voice can be called {name[:100]!r}",
            expected=f"up to {LONGEST_NAME} letters of any script, digits, '.', '_' and '-', not "
            "beginning with '.' or '-'",
            found=problem,
            do=f"call it {_suggested(normalised)}, for example",
        )
    return normalised


def problem_with(name: str) -> str:
    """What keeps a voice from having this name; "" where nothing does."""
    strange = next((c for c in name if not _allowed(c)), None)
    if strange is not None:
        return f"{strange!r} (U+{ord(strange):04X})"
    size = len(name.encode("utf-8"))
    rows = (
        (not name, "an empty name"),
        (_begins_badly(name), f"{name[:1]!r} as its beginning"),
        (name.lower().endswith(ENDING), f"the ending {ENDING}, which its file gets by itself"),
        (name.lower().endswith(FILE_SUFFIXES), "the ending of an audio file, which voice= opens"),
        (_DEVICE.fullmatch(name), "a name that Windows keeps for a device"),
        (len(name) > LONGEST_NAME, f"{len(name)} characters"),
        (size > _MOST_BYTES, f"{size} bytes in UTF-8, of which a file can have {_MOST_BYTES}"),
    )  # fmt: skip
    return next((found for is_so, found in rows if is_so), "")


def _allowed(character: str) -> bool:
    category = unicodedata.category(character)
    return character in "._-" or category.startswith(_LETTERS_AND_DIGITS)


def _begins_badly(name: str) -> bool:
    """With what hides a file, looks like an option, or is a mark with no letter to be on."""
    return bool(name) and (name[0] in ".-" or unicodedata.category(name[0]).startswith("M"))


def _suggested(name: str) -> str:
    """A name that a voice can have, as near to `name` as is easy."""
    kept = re.sub(r"-+", "-", "".join(c if _allowed(c) else "-" for c in name[:1000]))
    while kept.lower().endswith(FILE_SUFFIXES):
        kept = kept[: kept.rindex(".")]
    while _begins_badly(kept):
        kept = kept[1:]
    kept = f"voice-{kept}" if _DEVICE.fullmatch(kept) else kept
    kept = kept[:LONGEST_NAME].encode("utf-8")[:_MOST_BYTES].decode("utf-8", "ignore").rstrip("-")
    return kept if kept and not problem_with(kept) else "my-voice"
