"""The folder of stored voices: `NAME.safetensors` each, as :mod:`trt_runtime.voice` writes them.

Whatever else lies in the folder is left alone; a link in the folder is a voice by its own name, and
removing it leaves what it names. The voices that ship are found by name too, and are only read.
"""

from __future__ import annotations

import difflib
import logging
import os
import shlex
import sys
import unicodedata
from pathlib import Path

from trt_runtime.errors import UserError, reason_of
from trt_runtime.printable import printable
from trt_runtime.voice import Voice
from trt_runtime.voice_name import ENDING, check_name, problem_with
from trt_runtime.whole_file import written_beside

log = logging.getLogger(__name__)

#: Environment variable that names the folder.
VARIABLE = "MING_TRT_VOICES"
#: The voices that ship: they belong to the embedded default.
SHIPPED = Path(__file__).parent / "data" / "voices"


class VoiceStore:
    """Stored voices by name; safe to use from several processes at once.

    folder: None is the environment variable MING_TRT_VOICES or else the user's data folder. It is
    made when the first voice is added. A voice in it hides a shipped one of the same name. Every
    method raises UserError for a name that no voice can have, and where the folder or a file cannot
    be read or written.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._given = folder is not None
        self.folder = default_folder() if folder is None else _expanded(Path(folder))

    def names(self) -> list[str]:
        """Every voice's name, shipped or not, sorted. Files are not opened, and may be damaged."""
        found = {*_names_in(self.folder), *_names_in(SHIPPED)}
        return sorted(found, key=lambda name: (name.casefold(), name))

    def path(self, name: str) -> Path:
        """The file of that voice: one in the folder, or else a shipped one.

        Where there is neither, the place in the folder that :meth:`add` would write.
        """
        return _file(SHIPPED, name) if self.is_shipped(name) else self._own(name)

    def is_shipped(self, name: str) -> bool:
        """Whether the voice of that name is a shipped one, hidden by none in the folder."""
        return not _is_there(self._own(name)) and _is_there(_file(SHIPPED, name))

    def hides_shipped(self, name: str) -> bool:
        """Whether the voice of that name is one in the folder, and hides a shipped one."""
        return _is_there(self._own(name)) and _is_there(_file(SHIPPED, name))

    def get(self, name: str) -> Voice:
        """The voice of that name; UserError where there is none, with the nearest name."""
        return Voice.load(self._existing(name))

    def add(self, name: str, voice: Voice, *, replace: bool = False) -> Path:
        """Keeps `voice` under `name` and returns its file.

        Without `replace`, of several processes that add one name exactly one succeeds.
        """
        path = self._own(name)
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
        path = self._own(name)
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
        """Deletes the voice of that name; raises UserError for a shipped one."""
        if self.is_shipped(name):
            raise UserError(
                f"The voice {name} ships with ming-trt and cannot be removed",
                expected=f"a voice in {self.folder}",
                found=str(_file(SHIPPED, name)),
                do="leave it, or hide it by a voice of your own of that name: "
                + self._command("add", name, "REF.wav"),
            )
        path = self._own(name)
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

    def _own(self, name: str) -> Path:
        return _file(self.folder, name)

    def _existing(self, name: str) -> Path:
        path = self.path(name)
        if not _is_there(path):
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
        shipped = ", or a shipped one" if any(map(self.is_shipped, names)) else ""
        add = self._command("add", name, "REF.wav")
        return UserError(
            f"There is no voice {name}",
            expected=f"a voice in {self.folder}{shipped}" if names else "",
            found=found,
            do=f'{other}make it from a recording: {add} --text "WORDS OF THE RECORDING"',
        )

    def _taken(self, name: str) -> UserError:
        return UserError(
            f"There is a voice {name} already",
            found=str(self._own(name)),
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


def _file(folder: Path, name: str) -> Path:
    return folder / f"{check_name(name)}{ENDING}"


def _names_in(folder: Path) -> set[str]:
    try:
        entries = list(folder.iterdir())
    except FileNotFoundError:
        return set()
    except (OSError, ValueError) as error:
        raise _unreadable(folder, error) from error
    names = (_name_of(entry) for entry in entries if entry.name.endswith(ENDING))
    return {name for name in names if name}


def _name_of(entry: Path) -> str | None:
    if entry.name.startswith(".") or _is_folder(entry):
        return None
    name = unicodedata.normalize("NFC", entry.name.removesuffix(ENDING))
    # On some systems a name that is not normalised names the same file, on others another.
    place = entry.with_name(name + ENDING)
    if problem_with(name) or not (place.name == entry.name or os.path.lexists(place)):
        log.warning("%s is left out: no voice can have this name", printable(str(entry)))
        return None
    return name


def _is_there(path: Path) -> bool:
    """Whether a file, or a link to nothing, is there.

    Raises UserError where that cannot be known: another voice must not be taken for it in silence.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise _unreadable(path.parent, error) from error
    return True


def _unreadable(folder: Path, error: Exception) -> UserError:
    return UserError(
        f"The folder of voices, {folder}, cannot be read",
        found=str(error),
        do=f"check it, or choose another with --voices or {VARIABLE}",
    )


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
