"""The `ming-trt` command: what a subcommand is.

Each subcommand is a module with a `command`, found through the entry-point group
`ming_trt.commands`. These modules import nothing heavy until they run, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """One subcommand: `run` takes the parsed arguments and returns the exit status."""

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def at_least_one(text: str) -> int:
    """argparse's `type` of a count; its name is part of the message."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


at_least_one.__name__ = "whole number"
