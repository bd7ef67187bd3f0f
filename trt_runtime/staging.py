"""A folder that appears whole or not at all: built beside its place, then renamed into it.

The way of bundles and engine folders alike. A work folder `.NAME.building-*` lies beside the place
`NAME`; in it the new folder grows, and into it the old one is moved when the new one is whole. Its
lock file is held while its build runs, so that a later build can tell a dead one's leftovers. Work
that can be gone on with lies in `.NAME.unfinished` instead, which outlives a build that fails.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from trt_runtime.errors import UserError, reason_of
from trt_runtime.manifest import BUNDLE, ENGINES, MANIFEST
from trt_runtime.printable import printable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

_KINDS = {BUNDLE: "a bundle", ENGINES: "an engine folder"}
_WORK, _UNFINISHED, _LOCK, _OLD = "building", "unfinished", ".lock", ".old"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNWRITABLE = (
    errno.EACCES,
    errno.EBUSY,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
    errno.EXDEV,
)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def check_replaceable(out: Path, kind: str) -> None:
    """Raises UserError unless `out`, a resolved path, is free, empty, or a folder of this `kind`.

    `kind` is BUNDLE or ENGINES of :mod:`trt_runtime.manifest`. Nothing else is ever deleted, nor a
    folder of ours that holds anything but the files that its manifest lists.
    """
    if not os.path.lexists(out):
        return
    wanted = _KINDS[kind]
    if not out.is_dir():
        raise UserError(
            f"{out} is in the way",
            expected=f"a new folder, or {wanted} to replace",
            found="a file",
            do="choose another folder, or move the file away",
        )
    entries = list(out.iterdir())
    listed = _listed_files(out / MANIFEST, kind)
    if entries and listed is None:
        raise UserError(
            f"{out} is not {wanted}, and is not replaced",
            expected=f"a new or empty folder, or {wanted}",
            found=f"a folder with {len(entries)} files and no {MANIFEST} of {wanted}",
            do="choose another folder, or delete this one yourself",
        )
    foreign = sorted(
        printable(entry.name)
        for entry in entries
        if entry.name not in {MANIFEST, *(listed or ())} or entry.is_dir()
    )
    if foreign:
        raise UserError(
            f"{out} holds files that are not part of {wanted}, and is not replaced",
            expected=f"only what its {MANIFEST} lists",
            found=", ".join(foreign[:5]) + (" and more" if len(foreign) > 5 else ""),
            do="move them away, or choose another folder",
        )
    if Path.cwd().is_relative_to(out) or out.is_mount():
        raise UserError(
            f"{out} cannot be replaced",
            expected="a folder that can be renamed",
            found="a mount point" if out.is_mount() else "the folder that this command runs in",
            do="choose another folder, for instance a new one inside it",
        )


def _listed_files(manifest: Path, kind: str) -> set[str] | None:
    """The files that a manifest of this kind lists, of whatever format version."""
    try:
        if not manifest.is_file():
            return None
        data = json.loads(manifest.read_text(encoding="utf-8"))
        return set(data["files"]) if data["format"] == kind else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def real_place(path: str | Path) -> Path:
    """`path` without links: a work folder must lie beside the real folder, not beside a link to it.

    Raises UserError for a relative path where the working directory has been deleted.
    """
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"The path {path} leads nowhere",
            expected="an absolute path, or one from a working directory that exists",
            found=str(error),
            do="change to a folder that exists, or give an absolute path",
        ) from error


@contextlib.contextmanager
def work_folder(out: Path) -> Iterator[Path]:
    """An empty folder on the file system of `out`, deleted in the end, however that comes.

    Folders above `out` are made as needed, and deleted again where nothing came to lie in them.
    Left behind only where the process is killed; the next build of the same `out` deletes it then.
    """
    with _parents(out):
        _remove_leftovers(out)
        work, lock = _make(out)
        try:
            yield work
        finally:
            _discard(work, out)
            if lock is not None:
                lock.close()


@contextlib.contextmanager
def resumable_folder(out: Path) -> Iterator[Path]:
    """As :func:`work_folder`, but kept with all that lies in it where the block fails.

    The next call for the same `out` gets it again as it is: whoever left it may have been killed in
    the middle of a file. Deleted when the block ends without an error, or leaves nothing in it.
    It is a folder as :func:`work_folder` gives where the disk or the system has no locks, since
    nobody could tell a running build's folder from one that was left, and where another user's
    folder has its name.

    Raises UserError where another build of `out` is using it.
    """
    with _parents(out):
        _remove_leftovers(out)
        resumed = _lock_unfinished(out)
        if resumed is None:
            with work_folder(out) as work:
                yield work
            return
        work, lock = resumed
        with lock:
            _put_back(work, out)
            shutil.rmtree(work / _OLD, ignore_errors=True)  # killed when it had been replaced
            try:
                yield work
            except BaseException:
                _put_back(work, out)
                if not unfinished_size(out):
                    _discard(work, out)
                raise
            _discard(work, out)


def unfinished_folder(out: Path) -> Path:
    """Where :func:`resumable_folder` keeps what a failed build of `out` has done."""
    return out.with_name(f".{out.name}.{_UNFINISHED}")


def unfinished_size(out: Path) -> int:
    """Bytes that are kept there; 0 where nothing is."""
    paths = unfinished_folder(out).rglob("*")
    return sum(path.stat().st_size for path in paths if path.is_file())


@contextlib.contextmanager
def _parents(out: Path) -> Iterator[None]:
    """Makes the folders above `out`, and deletes those again in which nothing came to lie."""
    missing = [folder for folder in out.parents if not folder.exists()]
    try:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno in _DISK_FULL or error.errno in _UNWRITABLE:
                raise
            # Some places answer with odd errors: /proc, for one, knows no such file.
            raise UserError(
                f"{out.parent} cannot be made",
                expected="a place where folders can be made",
                found=reason_of(error),
                do="choose another folder; nothing was left behind",
            ) from error
        yield
    finally:
        with contextlib.suppress(OSError):  # not empty, or never made
            for folder in missing:
                folder.rmdir()


def replace_folder(new: Path, out: Path, kind: str) -> None:
    """Renames `new`, which lies in a work folder of `out`, to `out`, replacing what was there.

    That is whole until then. Where the second rename fails, the work folder's end puts it back.
    """
    if os.path.lexists(out):
        check_replaceable(out, kind)  # again: minutes have passed
        old = new.with_name(_OLD)
        out.rename(old)
        new.rename(out)
        # From here on it is rubbish, also for a build that finds it after we were killed.
        old.rename(new)
    else:
        new.rename(out)


def _make(out: Path) -> tuple[Path, BinaryIO | None]:
    """A new work folder with its lock held; no lock where the system or the disk has none."""
    while True:
        work = Path(tempfile.mkdtemp(prefix=f".{out.name}.{_WORK}-", dir=out.parent))
        try:
            return work, _lock(work)
        except (BlockingIOError, FileNotFoundError):
            continue  # not locked yet, it looked like a leftover, and another build deletes it
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return work, None
            shutil.rmtree(work, ignore_errors=True)
            raise


def _lock_unfinished(out: Path) -> tuple[Path, BinaryIO] | None:
    """The folder of unfinished work, made where there is none, with its lock held.

    None where there are no locks or it is another user's; UserError where another process, or call,
    holds it.
    """
    work = unfinished_folder(out)
    while True:
        work.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(work):
            return None
        try:
            lock = _lock(work)
        except BlockingIOError as error:
            raise UserError(
                f"{out} is being written by another command",
                expected="one command at a time for one folder",
                found=f"{work} in use",
                do="wait until it has finished, or choose another folder",
            ) from error
        except FileNotFoundError:
            continue  # whoever used it has just finished and deleted it
        except OSError as error:
            _remove_empty(work)
            if error.errno not in _NO_LOCKS:
                raise
            return None
        if lock is None:
            _remove_empty(work)
            return None
        return work, lock


def _is_ours(work: Path) -> bool:
    """Whether a folder is one itself and this user's: what lies in it will be believed."""
    found = work.lstat()
    owner = os.geteuid() if hasattr(os, "geteuid") else found.st_uid
    return stat.S_ISDIR(found.st_mode) and found.st_uid == owner


def _remove_empty(work: Path) -> None:
    """Deletes a work folder that was made in vain; not what others may have in it."""
    with contextlib.suppress(OSError):
        (work / _LOCK).unlink(missing_ok=True)
        work.rmdir()


def _lock(work: Path) -> BinaryIO | None:
    """Locks a work folder until the returned file is closed or this process ends.

    Not by a process id: two containers that share a volume have the same ids for other processes.
    Raises BlockingIOError where another holds the lock, FileNotFoundError where the folder has just
    been deleted, other OSErrors where the file system has no locks. None on Windows.
    """
    if fcntl is None:
        return None
    path = work / _LOCK
    if path.is_symlink() or path.is_dir():
        # Not ours, whoever put it there: what it leads to is not to be opened.
        raise UserError(
            f"{path} is no lock of ours",
            expected="a plain file",
            found="a link" if path.is_symlink() else "a folder",
            do=f"delete {work}, which only holds unfinished work",
        )
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    except BaseException:
        file.close()
        raise
    return file


def _remove_leftovers(out: Path) -> None:
    """Deletes the work folders of builds of `out` that have been killed."""
    prefix = f".{out.name}.{_WORK}-"
    for path in sorted(out.parent.iterdir()):
        if not path.name.startswith(prefix):
            continue
        try:
            lock = _lock(path)
        except (OSError, UserError):
            continue  # its build runs, or nobody can tell
        if lock is None:
            continue
        with lock:
            log.info("deleting %s, left by an interrupted build", path)
            _discard(path, out)


def _discard(work: Path, out: Path) -> None:
    """Deletes a work folder; what lay in `out` is put back where nothing has replaced it."""
    _put_back(work, out)
    shutil.rmtree(work, ignore_errors=True)


def _put_back(work: Path, out: Path) -> None:
    """Moves what lay in `out` back from a build's work folder where nothing has replaced it."""
    old = work / _OLD
    if old.is_dir() and not old.is_symlink() and not os.path.lexists(out):
        log.warning("putting back %s, which an interrupted build had moved away", out)
        old.rename(out)


@contextlib.contextmanager
def disk_errors(out: Path, needed: int) -> Iterator[None]:
    """Turns a full disk or an unwritable folder into UserError; `needed` is in bytes."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            free = shutil.disk_usage(existing_folder(out)).free
            raise UserError(
                f"The disk of {out} is full",
                expected=f"about {needed / 1e6:,.0f} MB free while building",
                found=f"{free / 1e6:,.0f} MB free ({error.strerror})",
                do="free some space, or choose a folder on another disk",
            ) from error
        if error.errno in _UNWRITABLE and _concerns(out, error.filename):
            raise UserError(
                f"{out} cannot be written",
                expected="a folder inside one that you may write to",
                found=str(error),
                do="choose another folder; nothing was left behind",
            ) from error
        raise


def _concerns(out: Path, file: str | None) -> bool:
    """Whether an error is about the output: an unreadable file of the source is no fault of it."""
    if file is None:
        return True
    path = Path(file)
    if path.is_relative_to(out) or out.is_relative_to(path):
        return True
    beside = path.is_relative_to(out.parent) and path != out.parent
    return beside and path.relative_to(out.parent).parts[0].startswith(f".{out.name}.")


def existing_folder(path: Path) -> Path:
    """The nearest folder on the way up from `path` that exists: it tells the disk."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
