"""The command `ming-trt compare` as tests run it."""

from __future__ import annotations

import argparse
from pathlib import Path

from engines.comparison.cli import command
from trt_runtime.exit_status import exit_status


def status_of(*words: str | Path) -> int:
    """The exit status of `ming-trt compare` with these words."""
    parser = argparse.ArgumentParser(prog="ming-trt compare")
    command.add_arguments(parser)
    # One thread: graphs this small wait longer for a second than it would save.
    arguments = parser.parse_args([*map(str, words), "--quiet", "--threads", "1"])
    return exit_status(lambda: command.run(arguments), "ming-trt", interrupted="interrupted")
