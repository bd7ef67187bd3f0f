"""Running the process that builds an engine: progress, its log, its end however it comes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from engines.layout import build_log
from engines.targets import ComponentJob
from engines.tensorrt_job import EngineJob
from trt_runtime.errors import UserError
from trt_runtime.printable import printable
from trt_runtime.progress_bar import ProgressBar

#: Lines of the library that an error repeats.
_LINES = 3


def run_job(engine: EngineJob, job: ComponentJob) -> dict[str, Any]:
    """Builds the engine in a child process; returns what the child says of it.

    Raises UserError with the reason, and where the log lies, for a refusal, a crash, a library that
    builds nothing and a build that takes longer than the options allow.
    """
    log = job.out / build_log(job.name)
    described = Path(engine.graph).with_suffix(".job.json")
    described.write_text(engine.to_json(), encoding="utf-8")
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            child_command(described), stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.PIPE,
            env=_environment(), text=True, encoding="utf-8", errors="replace",
        ) as child,
    ):  # fmt: skip
        late = threading.Event()

        def stop() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(job.options.time_limit, stop)
        timer.start()
        try:
            said = _follow(child, job.name)
            status = child.wait()
        except BaseException:
            child.kill()  # interrupted: nobody waits for the engine any more
            raise
        finally:
            timer.cancel()
    if status == 0 and "result" in said and Path(engine.engine).is_file():
        job.failed_log.unlink(missing_ok=True)  # of an earlier try
        result: dict[str, Any] = said["result"]
        return result
    if "os_error" in said:
        raise OSError(said["os_error"], os.strerror(said["os_error"]), str(job.out))
    raise _failure(job, said, status, log, late.is_set())


def child_command(described: Path) -> list[str]:
    """What runs the job that is described there.

    -P: no module of the folder that the user happens to be in, which may be a stranger's.
    """
    return [sys.executable, "-P", "-m", "engines.tensorrt_child", str(described)]


def _environment() -> dict[str, str]:
    """This process's, with the same places to import from."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _follow(child: subprocess.Popen[str], component: str) -> dict[str, Any]:
    """Shows the child's progress until it ends; returns its last line."""
    said: dict[str, Any] = {}
    assert child.stdout is not None
    with ProgressBar(f"building {component}", 100) as bar:
        done = 0
        for line in child.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # the library writes where it likes
            if said.get("parent") is None and said.get("steps") and "step" in said:
                share = 100 * said["step"] // said["steps"]
                bar.add(max(0, share - done))
                done = max(done, share)
    return said


def _failure(
    job: ComponentJob, said: dict[str, Any], status: int, log: Path, late: bool
) -> UserError:
    """The error of a build that gave no engine; the log is kept beside the folder's place."""
    kept = job.failed_log
    with suppress(OSError):  # a full disk has been told already, or is about to be
        kept.write_bytes(log.read_bytes())  # where it outlives the build's work folder
    ending = [line for line in log.read_text("utf-8", "replace").splitlines() if line][-_LINES:]
    heard = printable("; ".join(ending)) or "it said nothing"
    what, expected, do = f"The engine of {job.name} was not built", "an engine", f"read {kept}"
    if late:
        found = f"still building after {job.options.time_limit} s"
        do = f"give it longer with --time-limit, or fewer slots; {do}"
    elif "refused" in said:
        what, found = f"{what}: {said['refused']}", str(said["found"])
        do = f"{do}; report it with that file, and build for another target meanwhile"
    elif status < 0:
        found = f"the library crashed ({signal.Signals(-status).name}); last it said: {heard}"
        do = f"is memory or disk full? {do}"
    else:
        found = f"exit status {status}; last it said: {heard}"
    return UserError(what, expected=expected, found=found, do=do)
