"""Files that appear whole or not at all, whatever goes wrong."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trt_runtime.errors import UserError


@contextmanager
def written_beside(path: Path, data: bytes) -> Iterator[Path]:
    """A file beside `path` that holds `data`, to be renamed to it; deleted where it was not.

    FileExistsError and UserError pass; other errors of writing or renaming become UserError about
    `path`, as does a place that is taken by something else than a plain file.
    """
    try:
        if path.exists() and not path.is_file():
            raise OSError("a folder" if path.is_dir() else "a device or a pipe")
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


def reason_of(error: Exception) -> str:
    """What the system says of an error, in its words alone."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
