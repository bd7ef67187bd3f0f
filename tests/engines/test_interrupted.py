"""Builds that fail, are interrupted or killed, and places that are not theirs to replace."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import engines.build
import engines.onnxruntime_cpu
from engines import build_engines
from tests.engines.folders import contents, leftovers, loadable
from trt_runtime.errors import UserError
from trt_runtime.manifest import MANIFEST, check_files, read_manifest

ROOT = Path(engines.__file__).parents[1]


def test_a_folder_of_someone_else_is_never_replaced(bundle: Path, tmp_path: Path):
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter.txt").write_text("years of work")
    with pytest.raises(UserError, match="not an engine folder"):
        build_engines(bundle, out, force=True)
    with pytest.raises(UserError, match="not an engine folder"):
        build_engines(bundle, bundle)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(UserError, match="in the way"):
        build_engines(bundle, file)
    assert (out / "chapter.txt").read_text() == "years of work"


def test_engines_with_a_users_file_among_them_are_not_replaced(bundle: Path, tmp_path: Path):
    out = build_engines(bundle, tmp_path / "engines")
    (out / "my voice.wav").write_bytes(b"RIFF")
    with pytest.raises(UserError, match=r"my voice\.wav"):
        build_engines(bundle, out, force=True)
    assert (out / "my voice.wav").exists()


def test_engines_of_another_format_version_can_be_replaced(bundle: Path, tmp_path: Path):
    out = build_engines(bundle, tmp_path / "engines")
    text = (out / MANIFEST).read_text().replace('"format_version": 1', '"format_version": 0')
    (out / MANIFEST).write_text(text)
    build_engines(bundle, out)
    check_files(out, read_manifest(out))


def _fail_at(monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException) -> None:
    real = engines.onnxruntime_cpu.build_graph

    def build(job):
        if job.name == name:
            raise error
        return real(job)

    monkeypatch.setattr(engines.onnxruntime_cpu, "build_graph", build)


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_interrupted_build_leaves_nothing(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
):
    _fail_at(monkeypatch, "talker_4", error)
    with pytest.raises(type(error)):
        build_engines(bundle, tmp_path / "new" / "engines")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_failed_rebuild_keeps_the_old_engines(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = build_engines(bundle, tmp_path / "engines")
    before = contents(out)
    _fail_at(monkeypatch, "talker_4", RuntimeError("boom"))
    with pytest.raises(RuntimeError, match="boom"):
        build_engines(bundle, out, force=True)
    assert contents(out) == before
    assert leftovers(out) == []


_STUCK = """
import sys, time
import engines.onnxruntime_cpu as builder
from engines import build_engines
real = builder.build_graph
def build(job):
    if job.name == "talker_4":
        print("stuck", flush=True)
        time.sleep(60)
    return real(job)
builder.build_graph = build
from engines.cli import main
sys.exit(main([sys.argv[1], "--out", sys.argv[2], "--force", "--quiet"]))
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_killed_build_leaves_no_folder_that_loads(bundle: Path, tmp_path: Path, sent: int):
    out = tmp_path / "there" / "engines"
    child = subprocess.Popen(
        [sys.executable, "-c", _STUCK, bundle, out],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"stuck\n"
        # While it runs, its work folder is its own.
        assert loadable(tmp_path) == []
    finally:
        child.send_signal(sent)
        child.communicate(timeout=20)
    assert loadable(tmp_path) == []
    if sent == signal.SIGKILL:
        assert len(leftovers(out)) == 1
    else:
        assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    build_engines(bundle, out)
    assert leftovers(out) == []
    check_files(out, read_manifest(out))


def test_full_disk_is_said_with_what_was_needed(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "engines"
    _fail_at(monkeypatch, "flow_step", OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(UserError, match=r"is full(?s:.*)Expected: about .* MB free"):
        build_engines(bundle, out)
    assert not out.exists()
    assert leftovers(out) == []


def test_unwritable_output_is_a_users_error(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(**options: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("trt_runtime.staging.tempfile.mkdtemp", refuse)
    with pytest.raises(UserError, match="cannot be written"):
        build_engines(bundle, tmp_path / "engines")


def test_a_relative_or_linked_output_is_replaced_where_it_lies(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "engines").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "engines")
    monkeypatch.chdir(tmp_path)
    built = build_engines("bundle", "link")
    assert built == tmp_path / "disk" / "engines"
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "link" / MANIFEST).is_file()
