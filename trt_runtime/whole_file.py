"""Files that appear whole or not at all, whatever goes wrong."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trt_runtime.errors import UserError, reason_of
from trt_runtime.interruption import interruptions_wait


@contextmanager
def written_beside(path: Path, data: bytes) -> Iterator[Path]:
    """A file beside `path` that holds `data`, to be renamed to it; deleted where it was not.

    FileExistsError and UserError pass; other errors of writing or renaming become UserError about
    `path`, as does a place that is taken by something else than a plain file.
    """
    try:
        check_plain_file(path)
        temporary = path.with_name(f".ming-trt-{secrets.token_hex(8)}.part")
        try:
            with temporary.open("xb") as file:
                file.write(data)
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)
    except (FileExistsError, UserError):
        raise
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        folder = path.parent
        missing = isinstance(error, FileNotFoundError) and not folder.is_dir()
        found = f"no folder {folder}" if missing else reason_of(error)
        do = "free some space, or choose a name in a folder that you may write to"
        if missing:
            do = f"make it first: mkdir -p {shlex.quote(str(folder))}"
        raise UserError(f"{path} cannot be written", found=found, do=do) from error


def link_target(path: Path) -> Path:
    """The file that writing to `path` replaces: the one that a link names."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a null character, which written_beside tells of
        return path


def write_whole(path: Path, data: bytes) -> None:
    """`data` to `path`, whole or not at all; a link is followed, and the file it names replaced."""
    target = link_target(path)
    with written_beside(target, data) as temporary, interruptions_wait():
        temporary.replace(target)


def check_writable(path: Path) -> None:
    """Raises UserError where :func:`write_whole` would fail: before any work is done for it."""
    check_replaceable_file(path)
    with written_beside(link_target(path), b""):
        pass


def check_replaceable_file(path: Path) -> None:
    """Raises UserError where something else than a plain file has the place of `path`."""
    if found := _other_kind(path):
        raise UserError(
            f"{path} cannot be written",
            expected="a new name, or a plain file to replace",
            found=found,
            do="choose another name",
        )


def check_plain_file(path: Path) -> None:
    """Raises OSError, which says what it is, where `path` is something else than a plain file.

    A pipe would be waited for, and a device may never end.
    """
    if found := _other_kind(path):
        raise OSError(found)


def _other_kind(path: Path) -> str:
    """What is at `path`; "" for a plain file, and where nothing is."""
    if not path.exists() or path.is_file():
        return ""
    return "a folder" if path.is_dir() else "a device or a pipe"
