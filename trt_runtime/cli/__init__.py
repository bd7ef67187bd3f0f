"""The `ming-trt` command: what a subcommand is.

Each subcommand is a module with a `command`, found through the entry-point group
`ming_trt.commands`. These modules import nothing heavy until they run, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Command:
    """One subcommand: `run` takes the parsed arguments and returns the exit status."""

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_engine_arguments(group: Any) -> None:
    """--engines and --threads, which every command that loads engines takes."""
    group.add_argument(
        "--engines", metavar="DIR", help="engine folder or bundle (default: the one that ships)"
    )
    group.add_argument("--threads", type=at_least_one, metavar="N", help="(default: every core)")


def add_voices_argument(group: Any) -> None:
    """--voices, which every command that knows stored voices takes."""
    group.add_argument(
        "--voices", metavar="DIR", type=Path,
        help="folder of the stored voices (default: $MING_TRT_VOICES, or one in your data folder)",
    )  # fmt: skip


def at_least_one(text: str) -> int:
    """argparse's `type` of a count; its name is part of the message."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


at_least_one.__name__ = "whole number"
