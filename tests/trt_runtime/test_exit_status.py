"""How a command ends: its exit status and its last words, whatever became of its streams."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trt_runtime.errors import MingError, UserError
from trt_runtime.exit_status import exit_status, tell

ROOT = Path(__file__).resolve().parents[2]


#: Buffered: what could not be written is tried once more at the interpreter's end.
BUFFERED = os.environ | {"PYTHONUNBUFFERED": ""}


def status_of(failure: BaseException | int) -> int:
    def run() -> int:
        if isinstance(failure, BaseException):
            raise failure
        return failure

    return exit_status(run, "name", interrupted="name: ended", in_words=str.upper)


@pytest.mark.parametrize(
    ("failure", "status", "told"),
    [
        (0, 0, ""),
        (1, 1, ""),
        (MingError("one\ntwo \x1b[2J"), 2, "name: ONE\nTWO \\x1b[2J\n"),
        (UserError("a", do="b"), 2, "name: A.\n  WHAT TO DO: B.\n"),
        (KeyboardInterrupt(), 130, "name: ended\n"),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_every_end_has_a_status(
    failure: BaseException | int, status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(failure) == status
    assert capsys.readouterr() == ("", told)


@pytest.mark.parametrize("failure", [MingError("wrong"), KeyboardInterrupt()])
def test_notes_are_told_after_it(
    failure: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    failure.add_note("kept: \x1b[2J")
    status_of(failure)
    assert capsys.readouterr().err.splitlines()[1:] == ["kept: \\x1b[2J"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_has_its_own(number: int, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> int:
        signal.raise_signal(number)
        return 0

    before = signal.signal(number, signal.SIG_DFL)  # SIGHUP is ignored under nohup
    try:
        assert exit_status(run, "name", interrupted="name: ended") == status
    finally:
        signal.signal(number, before)
    assert capsys.readouterr() == ("", "name: ended\n")


def test_faults_of_ours_pass() -> None:
    with pytest.raises(ZeroDivisionError):
        status_of(ZeroDivisionError())


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, Full(), closed()])
def test_what_cannot_be_told_changes_nothing(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    tell("lost")
    assert status_of(3) == 3
    assert status_of(UserError("a", do="b")) == 2
    assert status_of(KeyboardInterrupt()) == 130
    assert capsys.readouterr().out == ""


def in_a_shell(program: str, streams: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {streams}', sys.executable, program],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=60, env=BUFFERED,
    )  # fmt: skip


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """Or what C code says on standard error would be written into it."""
    program = (
        "import sys\n"
        "from trt_runtime.exit_status import exit_status\n"
        "def run():\n"
        f"    with open({str(tmp_path / 'a')!r}, 'w') as file: return file.fileno()\n"
        "sys.exit(exit_status(run, 'name', interrupted=''))\n"
    )
    assert in_a_shell(program, "<&- >&- 2>&-").returncode > 2
    assert in_a_shell(program, "2>&-").returncode > 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("said", ["logging.warning('lost')", "tell('lost')"])
def test_words_that_find_no_room_leave_the_status(said: str) -> None:
    program = (
        "import logging, sys\n"
        "from trt_runtime.exit_status import exit_status, tell\n"
        "def run():\n"
        f"    {said}\n"
        "    return 5\n"
        "sys.exit(exit_status(run, 'name', interrupted=''))\n"
    )
    assert in_a_shell(program, "2>/dev/full").returncode == 5
