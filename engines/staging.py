"""A folder that appears whole or not at all: built beside its place, then renamed into it."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from trt_runtime.errors import UserError
from trt_runtime.manifest import ENGINES, MANIFEST

log = logging.getLogger(__name__)

_WORK, _OLD = "building", "old"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.ENOTDIR)

# Work folders of builds that run in this process. A container often gives every run the same
# process id, so the id alone does not tell a dead build's folder from our own.
_active: set[Path] = set()
_active_lock = threading.Lock()


def check_replaceable(out: Path) -> None:
    """Raises UserError unless `out` is free, an empty folder, or an engine folder of ours.

    Nothing else is ever deleted, nor an engine folder that holds files its manifest does not list.
    """
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise UserError(
            f"{out} is in the way",
            expected="a new folder, or an engine folder to replace",
            found="a file",
            do="choose another --out, or move the file away",
        )
    names = {entry.name for entry in out.iterdir()}
    if not names:
        return
    listed = _listed_files(out / MANIFEST)
    if listed is None:
        raise UserError(
            f"{out} is not an engine folder, and is not replaced",
            expected="a new or empty folder, or an engine folder",
            found=f"a folder with {len(names)} files and no {MANIFEST} of an engine folder",
            do="choose another --out, or delete the folder yourself",
        )
    if foreign := sorted(names - listed - {MANIFEST}):
        raise UserError(
            f"{out} holds files that are not part of the engines, and is not replaced",
            found=", ".join(foreign[:5]) + (" and more" if len(foreign) > 5 else ""),
            do="move them away, or choose another --out",
        )


def _listed_files(manifest: Path) -> set[str] | None:
    """The files that an engine folder's manifest lists, of whatever format version."""
    try:
        data = json.loads(manifest.read_text(encoding="utf-8"))
        return set(data["files"]) if data["format"] == ENGINES else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


@contextlib.contextmanager
def work_folder(out: Path) -> Iterator[Path]:
    """An empty folder on the file system of `out`, deleted in the end, however that comes.

    Left behind only where the process is killed; the next build of the same `out` deletes it then.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with _active_lock:
        _remove_leftovers(out)
        prefix = f".{out.name}.{_WORK}-{os.getpid()}-"
        work = Path(tempfile.mkdtemp(prefix=prefix, dir=out.parent))
        _active.add(work)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        with _active_lock:
            _active.discard(work)


def replace_folder(new: Path, out: Path) -> None:
    """Renames `new` to `out`; what was there before is whole until then, and deleted after.

    Where the new folder cannot be renamed, the old one is put back.
    """
    if not out.exists():
        new.rename(out)
        return
    check_replaceable(out)  # again: minutes have passed
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.{_OLD}-{os.getpid()}-", dir=out.parent))
    with _active_lock:
        _active.add(old)
    try:
        old.rmdir()  # made for its unused name; not every system renames onto an empty folder
        out.rename(old)
        try:
            new.rename(out)
        except BaseException:
            old.rename(out)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        with _active_lock:
            _active.discard(old)


def _remove_leftovers(out: Path) -> None:
    pattern = re.compile(rf"\.{re.escape(out.name)}\.({_WORK}|{_OLD})-(\d+)-\w+")
    for path in sorted(out.parent.iterdir()):
        match = pattern.fullmatch(path.name)
        if match is None or path in _active or _alive(int(match[2])):
            continue
        if match[1] == _OLD and not out.exists() and any(path.iterdir()):
            # Killed between the two renames: these are still the engines of `out`.
            log.warning("putting back %s, which an interrupted build had moved away", out)
            path.rename(out)
            continue
        log.info("deleting %s, left by an interrupted build", path)
        shutil.rmtree(path, ignore_errors=True)


def _alive(process: int) -> bool:
    """Whether another process of this id runs; our own id means a folder that is not active."""
    if process == os.getpid():
        return False
    if os.name == "nt":
        return True  # os.kill would end the process there
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


@contextlib.contextmanager
def disk_errors(out: Path, needed: int) -> Iterator[None]:
    """Turns a full disk or an unwritable folder into UserError; `needed` is in bytes."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            free = shutil.disk_usage(_existing(out)).free
            raise UserError(
                f"The disk of {out} is full; nothing was written",
                expected=f"about {needed / 1e6:,.0f} MB free while building",
                found=f"{free / 1e6:,.0f} MB free",
                do="free some space, or choose an --out on another disk",
            ) from error
        # A file of the source that may not be read is no fault of the output.
        ours = error.filename is None or Path(error.filename).is_relative_to(out.parent)
        if ours and error.errno in _UNWRITABLE:
            raise UserError(
                f"{out} cannot be written",
                found=str(error),
                do="choose an --out inside a folder that you may write to",
            ) from error
        raise


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())
