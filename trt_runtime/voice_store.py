"""The folder of stored voices: `NAME.safetensors` each, as :mod:`trt_runtime.voice` writes them.

Whatever else lies in the folder is left alone. Names may be in any script and are the same on every
system; a link in the folder is a voice by its own name, and removing it leaves what it names.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import shlex
import sys
import unicodedata
from pathlib import Path

from trt_runtime.errors import UserError, reason_of
from trt_runtime.printable import printable
from trt_runtime.voice import Voice
from trt_runtime.whole_file import written_beside

log = logging.getLogger(__name__)

#: Environment variable that names the folder.
VARIABLE = "MING_TRT_VOICES"
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


class VoiceStore:
    """Stored voices by name; safe to use from several processes at once.

    folder: None is the environment variable MING_TRT_VOICES or else the user's data folder. It is
    made when the first voice is added. Every method raises UserError for a name that no voice can
    have, and where the folder or a file cannot be read or written.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._given = folder is not None
        self.folder = default_folder() if folder is None else _expanded(Path(folder))

    def names(self) -> list[str]:
        """Every voice's name, sorted. Their files are not opened, and may be damaged."""
        try:
            entries = list(self.folder.iterdir())
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise UserError(
                f"The folder of voices, {self.folder}, cannot be read",
                found=str(error),
                do=f"check it, or choose another with --voices or {VARIABLE}",
            ) from error
        names = [self._name_of(entry) for entry in entries if entry.name.endswith(ENDING)]
        return sorted({name for name in names if name}, key=lambda name: (name.casefold(), name))

    def _name_of(self, entry: Path) -> str | None:
        if entry.name.startswith(".") or _is_folder(entry):
            return None
        name = unicodedata.normalize("NFC", entry.name.removesuffix(ENDING))
        # On some systems a name that is not normalised names the same file, on others another.
        same = self._file(name).name == entry.name or os.path.lexists(self._file(name))
        if _problem(name) or not same:
            log.warning("%s is left out: no voice can have this name", printable(str(entry)))
            return None
        return name

    def path(self, name: str) -> Path:
        """The file of that voice, whether it is there or not."""
        return self._file(check_name(name))

    def get(self, name: str) -> Voice:
        """The voice of that name; UserError where there is none, with the nearest name."""
        return Voice.load(self._existing(name))

    def add(self, name: str, voice: Voice, *, replace: bool = False) -> Path:
        """Keeps `voice` under `name` and returns its file.

        Without `replace`, of several processes that add one name exactly one succeeds.
        """
        path = self.path(name)
        data = voice.to_bytes()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise UserError(
                f"The folder of voices, {self.folder}, cannot be made",
                found=str(error),
                do=f"choose another with --voices or {VARIABLE}",
            ) from error
        try:
            _write(path, data, replace=replace)
        except FileExistsError as error:
            raise self._taken(name) from error
        return path

    def check_addable(self, name: str, *, replace: bool = False) -> None:
        """Raises UserError where :meth:`add` would.

        For asking before a voice is made, so that minutes of work are not thrown away at its end.
        """
        path = self.path(name)
        if os.path.lexists(path) and not replace:
            raise self._taken(name)
        above = (self.folder, *self.folder.parents)
        nearest = next((folder for folder in above if os.path.lexists(folder)), Path())
        is_folder = _is_folder(nearest)
        if not is_folder or not os.access(nearest, os.W_OK | os.X_OK):
            raise UserError(
                f"The voice cannot be kept in {self.folder}",
                expected="a folder that you may write to",
                found=f"no permission to write in {nearest}"
                if is_folder
                else f"{nearest} is no folder",
                do=f"choose another with --voices or {VARIABLE}",
            )

    def remove(self, name: str) -> None:
        """Deletes the voice of that name."""
        path = self._existing(name)
        try:
            path.unlink()
        except FileNotFoundError as error:
            raise self._missing(name) from error
        except OSError as error:
            raise UserError(
                f"{path} cannot be deleted",
                found=reason_of(error),
                do="check the permissions of its folder",
            ) from error

    def export(
        self, name: str, destination: str | os.PathLike[str], *, replace: bool = False
    ) -> Path:
        """Writes the voice of that name to a file elsewhere, and returns its path.

        A destination that is a folder gets a file of the voice's name. Raises UserError where the
        voice is damaged, or where something is there and `replace` is False.
        """
        voice = self.get(name)
        place = Path(destination)
        if _is_folder(place):
            place /= self.path(name).name
        if not place.name.endswith(ENDING):
            raise UserError(
                f"{place} is no name for a voice's file",
                expected=f"a name that ends in {ENDING}",
                do=f"end the name in {ENDING}",
            )
        try:
            # What is replaced is the file that a link names; a link counts as being there.
            target = Path(os.path.realpath(place)) if replace else place
            _write(target, voice.to_bytes(), replace=replace)
        except FileExistsError as error:
            raise UserError(
                f"{place} is there already",
                do="choose another name, or replace it with --replace",
            ) from error
        return place

    def import_(
        self, file: str | os.PathLike[str], name: str | None = None, *, replace: bool = False
    ) -> str:
        """Keeps the voice that a file holds, and returns its name: by default that of the file.

        The file is checked as a whole before anything appears in the folder.
        """
        name = check_name(Path(file).name.removesuffix(ENDING) if name is None else name)
        self.add(name, Voice.load(file), replace=replace)
        return name

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}{ENDING}"

    def _existing(self, name: str) -> Path:
        path = self.path(name)
        if not os.path.lexists(path):
            raise self._missing(name)
        return path

    def _missing(self, name: str) -> UserError:
        names = self.names()
        by_folded = {known.casefold(): known for known in names}
        near = difflib.get_close_matches(name.casefold(), by_folded, 1)
        found = f"no voice in {self.folder}"
        if names:
            found = ", ".join(names[:10]) + (" and more" if len(names) > 10 else "")
        other = f"did you mean {by_folded[near[0]]}? Otherwise " if near else ""
        if names:
            other += "choose one of these, or "
        add = self._command("add", name, "REF.wav")
        return UserError(
            f"There is no voice {name}",
            expected=f"a voice in {self.folder}" if names else "",
            found=found,
            do=f'{other}make it from a recording: {add} --text "WORDS OF THE RECORDING"',
        )

    def _taken(self, name: str) -> UserError:
        return UserError(
            f"There is a voice {name} already",
            found=str(self.path(name)),
            do="choose another name, replace it with --replace, or delete it: "
            + self._command("remove", name),
        )

    def _command(self, *words: str) -> str:
        folder = ["--voices", str(self.folder)] if self._given else []
        return "ming-trt voices " + " ".join(shlex.quote(printable(w)) for w in (*words, *folder))


def default_folder() -> Path:
    """MING_TRT_VOICES, or `ming-trt/voices` in the system's place for a user's data.

    The places: https://specifications.freedesktop.org/basedir-spec (Linux and others), Local
    AppData (Windows), Application Support (macOS).
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return _expanded(Path(chosen))
    variable, otherwise = {
        "win32": ("LOCALAPPDATA", "~/AppData/Local"),
        "darwin": ("", "~/Library/Application Support"),
    }.get(sys.platform, ("XDG_DATA_HOME", "~/.local/share"))
    data = Path(os.environ.get(variable, ""))
    # A relative one is to be ignored, says the specification.
    return (data if data.is_absolute() else _expanded(Path(otherwise))) / "ming-trt" / "voices"


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise UserError(
            f"There is no home folder for {path}",
            found=str(error),
            do=f"name a folder of voices with --voices or {VARIABLE}",
        ) from error


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
    problem = _problem(normalised)
    if problem:
        raise UserError(
            f"No voice can be called {name[:100]!r}",
            expected=f"up to {LONGEST_NAME} letters of any script, digits, '.', '_' and '-', not "
            "beginning with '.' or '-'",
            found=problem,
            do=f"call it {_suggested(normalised)}, for example",
        )
    return normalised


def _problem(name: str) -> str:
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
    return kept if kept and not _problem(kept) else "my-voice"


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # one that may not be looked at
        return False


def _write(path: Path, data: bytes, *, replace: bool) -> None:
    """Raises FileExistsError where something is there and `replace` is False."""
    with written_beside(path, data) as temporary:
        if replace:
            temporary.replace(path)
        else:
            _rename_to_free_place(temporary, path)


def _rename_to_free_place(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
        return
    except FileExistsError:
        raise
    except OSError:
        pass  # FAT, for one, has no hard links: there an empty file takes the place first
    path.open("xb").close()
    try:
        temporary.replace(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
