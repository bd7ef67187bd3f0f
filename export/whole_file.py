"""Writing a file that appears whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from trt_runtime.errors import UserError, reason_of


@contextmanager
def whole_file(path: Path, size: int) -> Iterator[BinaryIO]:
    """A file to write `size` bytes to, under a temporary name until the block ends without error.

    Raises UserError where the disk fills, saying how much was needed, or the folder cannot be
    written to. Nothing is left behind then.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    except OSError as error:
        raise _cannot_write(path, size, error) from error
    finally:
        # A folder that cannot be written to cannot be cleaned either: keep the first error.
        if partial.exists():
            partial.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """A file of readable JSON; raises UserError as :func:`whole_file` does."""
    text = (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode("utf-8")
    with whole_file(path, len(text)) as file:
        file.write(text)


def _cannot_write(path: Path, size: int, error: OSError) -> UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(
            f"The disk is full: {path} could not be written",
            expected=f"{size} bytes for this file",
            found=error.strerror or "no space left",
            do="free some space, or choose a folder on another disk",
        )
    return UserError(
        f"{path} could not be written",
        expected="a folder that can be written to",
        found=reason_of(error),
        do="choose another folder",
    )
