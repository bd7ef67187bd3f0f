"""Folders appear whole or not at all, and nothing of anybody else's is ever deleted."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import trt_runtime.staging
from trt_runtime.errors import UserError
from trt_runtime.manifest import BUNDLE, ENGINES, MANIFEST
from trt_runtime.staging import (
    check_replaceable,
    disk_errors,
    existing_folder,
    real_place,
    replace_folder,
    resumable_folder,
    unfinished_size,
    work_folder,
)

ROOT = Path(trt_runtime.staging.__file__).parents[1]


def fill(folder: Path, kind: str = BUNDLE, text: str = "new") -> Path:
    """A folder as a build leaves it, as far as this module looks."""
    folder.mkdir(parents=True)
    (folder / "a.onnx").write_text(text)
    (folder / MANIFEST).write_text(json.dumps({"format": kind, "files": {"a.onnx": {}}}))
    return folder


def build(out: Path, kind: str = BUNDLE, text: str = "new") -> None:
    check_replaceable(out, kind)
    with work_folder(out) as work:
        replace_folder(fill(work / "made", kind, text), out, kind)


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_a_new_folder_and_its_parents_appear(tmp_path: Path) -> None:
    out = tmp_path / "some" / "where" / "bundle"
    build(out)
    assert sorted(path.name for path in out.iterdir()) == ["a.onnx", MANIFEST]
    assert hidden(out.parent) == []


@pytest.mark.parametrize("kind", [BUNDLE, ENGINES])
def test_an_older_folder_of_the_kind_is_replaced(tmp_path: Path, kind: str) -> None:
    out = fill(tmp_path / "out", kind, "old")
    build(out, kind)
    assert (out / "a.onnx").read_text() == "new"
    assert hidden(tmp_path) == []


def test_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    build(tmp_path / "out")
    assert (tmp_path / "out" / MANIFEST).exists()


@pytest.mark.parametrize(
    "manifest",
    ["old", "{}", "[]", '{"name": "my web extension", "files": ["a.js"]}', '{"format": 3}', "["],
)
def test_a_manifest_of_something_else_protects_its_folder(tmp_path: Path, manifest: str) -> None:
    out = tmp_path / "extension"
    out.mkdir()
    (out / MANIFEST).write_text(manifest)
    with pytest.raises(UserError, match="is not a bundle, and is not replaced"):
        check_replaceable(out, BUNDLE)


def test_a_folder_of_the_other_kind_is_not_replaced(tmp_path: Path) -> None:
    out = fill(tmp_path / "out", ENGINES)
    with pytest.raises(UserError, match="is not a bundle"):
        check_replaceable(out, BUNDLE)
    check_replaceable(out, ENGINES)


def test_a_users_file_or_folder_inside_is_never_deleted(tmp_path: Path) -> None:
    out = fill(tmp_path / "out")
    (out / "my \x1b[2Jvoice.wav").write_bytes(b"RIFF")
    with pytest.raises(UserError, match=r"my \\x1b\[2Jvoice\.wav"):
        check_replaceable(out, BUNDLE)
    (out / "my \x1b[2Jvoice.wav").unlink()
    (out / "a.onnx").unlink()
    (out / "a.onnx").mkdir()  # a listed name is a file's
    (out / "a.onnx" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match=r"Found: a\.onnx"):
        check_replaceable(out, BUNDLE)


def test_a_file_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(UserError, match="in the way"):
        check_replaceable(tmp_path / "out", BUNDLE)


def test_the_folder_that_the_command_runs_in_is_not_pulled_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="the folder that this command runs in"):
        check_replaceable(Path.cwd(), BUNDLE)


def test_a_mount_point_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_mount", lambda self: self == tmp_path)
    with pytest.raises(UserError, match="mount point"):
        check_replaceable(tmp_path, BUNDLE)


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing_and_no_new_parents(tmp_path: Path, error: BaseException) -> None:
    def fail(out: Path) -> None:
        with work_folder(out) as work:
            fill(work / "made")
            raise error

    with pytest.raises(type(error)):
        fail(tmp_path / "some" / "where" / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_parents_that_were_there(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(RuntimeError), work_folder(tmp_path / "mine" / "new" / "out"):
        raise RuntimeError
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_a_parent_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    out = tmp_path / "file" / "new" / "out"
    with (
        pytest.raises(UserError, match="cannot be written"),
        disk_errors(out, 1),
        work_folder(out),
    ):
        raise AssertionError


@pytest.mark.parametrize("empty", [False, True])
def test_a_failed_rename_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: bool
) -> None:
    out = tmp_path / "out"
    if empty:
        out.mkdir()
    else:
        fill(out, text="old")
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name == "made":
            raise OSError(errno.EACCES, "no", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(UserError, match="cannot be written"), disk_errors(out, 1):
        build(out)
    assert out.is_dir()
    assert empty or (out / "a.onnx").read_text() == "old"
    assert hidden(tmp_path) == []


_CHILD = """
import os, sys, time
from pathlib import Path
from trt_runtime.staging import work_folder
with work_folder(Path(sys.argv[1])) as work:
    if len(sys.argv) > 2:
        Path(sys.argv[1]).rename(work / ".old")
    print(work, flush=True)
    time.sleep(60)
"""


def child(out: Path, *arguments: str) -> subprocess.Popen[str]:
    """A process that holds a work folder of `out` until it is killed."""
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, out, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_folder_of_a_running_build_stays_whatever_its_process_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in two containers that share a volume: another process, which this one cannot see."""

    def no_such_process(*_: object) -> None:
        raise ProcessLookupError

    running = child(tmp_path / "out")
    try:
        assert running.stdout is not None
        work = Path(running.stdout.readline().strip())
        with monkeypatch.context() as patched:
            patched.setattr(os, "kill", no_such_process)
            build(tmp_path / "out")
        assert work.is_dir()
    finally:
        running.kill()
        running.communicate()
    assert work.is_dir()
    build(tmp_path / "out")
    assert hidden(tmp_path) == []


def test_the_folder_of_another_build_of_this_process_stays(tmp_path: Path) -> None:
    with work_folder(tmp_path / "out") as first:
        build(tmp_path / "out")
        assert first.is_dir()
    assert hidden(tmp_path) == []


def test_killed_between_the_renames_the_old_folder_comes_back(tmp_path: Path) -> None:
    out = fill(tmp_path / "out", text="old")
    stuck = child(out, "move aside")
    assert stuck.stdout is not None
    stuck.stdout.readline()
    stuck.send_signal(signal.SIGKILL)
    stuck.communicate()
    assert not out.exists()
    with pytest.raises(RuntimeError), work_folder(out):
        raise RuntimeError
    assert (out / "a.onnx").read_text() == "old"
    assert hidden(tmp_path) == []


def test_without_locks_nobody_elses_folder_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".out.building-abc").mkdir()
    monkeypatch.setattr(trt_runtime.staging, "fcntl", None)
    build(tmp_path / "out")
    assert hidden(tmp_path) == [".out.building-abc"]


def test_on_a_disk_without_locks_a_build_works_and_deletes_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / ".out.building-abc").mkdir()
    monkeypatch.setattr("trt_runtime.staging.fcntl.flock", refuse)
    build(tmp_path / "out")
    assert (tmp_path / "out" / MANIFEST).exists()
    assert hidden(tmp_path) == [".out.building-abc"]


def deleted_at_the_first_lock(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Another build deletes the folder just before it is locked first; returns those locked."""
    real, tried = trt_runtime.staging._lock, []

    def lock(work: Path) -> object:
        tried.append(work)
        if len(tried) == 1:
            work.rmdir()
        return real(work)

    monkeypatch.setattr(trt_runtime.staging, "_lock", lock)
    return tried


def test_a_folder_taken_for_a_leftover_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = deleted_at_the_first_lock(monkeypatch)
    build(tmp_path / "out")
    assert len(tried) == 2
    assert (tmp_path / "out" / MANIFEST).exists()


def test_names_that_only_begin_alike_are_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / ".out2.building-abc").mkdir()
    (tmp_path / ".out.notes").mkdir()
    build(tmp_path / "out")
    assert hidden(tmp_path) == [".out.notes", ".out2.building-abc"]


def resume(out: Path, error: BaseException | None = None, text: str = "") -> list[str]:
    """Adds a file to unfinished work and fails with `error`, or ends well; returns what was there.

    Without `text` no file is added.
    """
    with resumable_folder(out) as work:
        found = sorted(path.name for path in work.iterdir() if path.name != ".lock")
        if text:
            (work / text).write_text(text)
        if error is not None:
            raise error
        replace_folder(fill(work / "made"), out, BUNDLE)
    return found


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_unfinished_work_is_kept_until_it_is_finished(tmp_path: Path, error: BaseException) -> None:
    out = tmp_path / "new" / "out"
    for text in ("one", "two"):
        with pytest.raises(type(error)):
            resume(out, error, text)
        assert hidden(out.parent) == [".out.unfinished"]
        assert not out.exists()
    assert unfinished_size(out) == 6
    assert resume(out) == ["one", "two"]
    assert (out / "a.onnx").read_text() == "new"
    assert hidden(out.parent) == []
    assert unfinished_size(out) == 0


def test_nothing_done_is_nothing_kept(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        resume(tmp_path / "new" / "out", RuntimeError())
    assert list(tmp_path.iterdir()) == []


def test_unfinished_work_belongs_to_one_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with resumable_folder(out) as work:
        (work / "one").write_text("one")
        with pytest.raises(UserError, match="is being written by another command"):
            resume(out)
        assert (work / "one").exists()
        assert resume(tmp_path / "other") == []
    assert resume(out) == []


def test_unfinished_work_locked_just_when_it_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = deleted_at_the_first_lock(monkeypatch)
    assert resume(tmp_path / "out") == []
    assert len(tried) == 2


@pytest.mark.parametrize("system", [True, False])
def test_without_locks_unfinished_work_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    out = tmp_path / "out"
    with pytest.raises(RuntimeError):
        resume(out, RuntimeError(), "another's")
    with monkeypatch.context() as patched:
        if system:
            patched.setattr(trt_runtime.staging, "fcntl", None)
        else:
            patched.setattr("trt_runtime.staging.fcntl.flock", refuse)
        with pytest.raises(RuntimeError):
            resume(out, RuntimeError(), "one")
        assert hidden(tmp_path) == [".out.unfinished"]
        with pytest.raises(RuntimeError):
            resume(tmp_path / "b", RuntimeError(), "one")
        assert hidden(tmp_path) == [".out.unfinished"]
    assert resume(out) == ["another's"]


@pytest.mark.parametrize("link", [True, False])
def test_unfinished_work_that_is_somebody_elses_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    out, left = tmp_path / "out", tmp_path / ".out.unfinished"
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "one").write_text("one")
    if link:
        left.symlink_to(theirs)
    else:
        theirs.rename(left)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert resume(out) == []
    assert (left / "one").read_text() == "one"


def test_a_folder_that_cannot_be_locked_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("trt_runtime.staging.fcntl.flock", refuse)
    with pytest.raises(PermissionError):
        resume(tmp_path / "new" / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("replaced", [False, True])
def test_unfinished_work_killed_at_the_renames(tmp_path: Path, replaced: bool) -> None:
    """Before the new folder is in its place the old one comes back; after it, the old one goes."""
    out = fill(tmp_path / "out", text="old")
    with pytest.raises(RuntimeError):
        resume(out, RuntimeError(), "one")
    left = tmp_path / ".out.unfinished"
    out.rename(left / ".old")
    if replaced:
        fill(out, text="newer")
    with pytest.raises(RuntimeError):
        resume(out, RuntimeError())
    assert (out / "a.onnx").read_text() == ("newer" if replaced else "old")
    assert sorted(path.name for path in left.iterdir()) == [".lock", "one"]
    assert resume(out) == ["one"]
    assert (out / "a.onnx").read_text() == "new"
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_with_what_was_needed(tmp_path: Path, number: int) -> None:
    with (
        pytest.raises(UserError, match=r"is full(?s:.*)Expected: about 12 MB free"),
        disk_errors(tmp_path / "a" / "out", 12_000_000),
    ):
        raise OSError(number, "no space")


@pytest.mark.parametrize(
    ("file", "ours"),
    [
        (None, True),
        ("out", True),
        ("out/a", True),
        (".out.building-x/made", True),
        (".", True),
        ("checkpoint/model.safetensors", False),
        ("outer", False),
    ],
)
def test_only_errors_of_the_output_are_put_down_to_it(
    tmp_path: Path, file: str | None, ours: bool
) -> None:
    wanted = UserError if ours else PermissionError
    name = None if file is None else str(tmp_path / file)
    with pytest.raises(wanted), disk_errors(tmp_path / "out", 1):
        raise PermissionError(errno.EACCES, "Permission denied", name)


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="input/output"), disk_errors(tmp_path, 1):
        raise OSError(errno.EIO, "input/output")


def test_the_nearest_folder_tells_the_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert existing_folder(tmp_path / "a" / "b") == tmp_path
    assert existing_folder(tmp_path / "file" / "b") == tmp_path


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a place that makes no folders")
def test_a_place_that_makes_no_folders_is_a_users_error() -> None:
    with pytest.raises(UserError, match="cannot be made"), work_folder(Path("/proc/none/engines")):
        pass


def test_a_relative_path_from_a_deleted_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UserError, match="leads nowhere"):
        real_place("engines")
