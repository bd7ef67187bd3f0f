"""`ming-trt`: finds the subcommands that are installed and runs one."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence
from importlib import metadata

from trt_runtime import __version__
from trt_runtime.cli import Command, standard_output, wording
from trt_runtime.errors import UserError
from trt_runtime.exit_status import exit_status

GROUP = "ming_trt.commands"
#: The runtime's own, also without an installation (from a clone).
OWN = ("speak", "normalize", "voices", "inspect", "bench", "doctor")


def find_commands() -> dict[str, Command]:
    """Every subcommand by name: the runtime's own, then those of installed packages."""
    commands = {name: importlib.import_module(f"trt_runtime.cli.{name}").command for name in OWN}
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
        if entry.name in commands:
            continue
        try:
            commands[entry.name] = entry.load()
        except ImportError as error:
            commands[entry.name] = _not_loadable(entry, error)
    return commands


def _not_loadable(entry: metadata.EntryPoint, error: ImportError) -> Command:
    """Stands for a subcommand whose module fails, so that it does not take the others with it."""

    def run(arguments: argparse.Namespace) -> int:
        raise UserError(
            f"ming-trt {entry.name} is installed and cannot be loaded",
            found=f"{entry.value}: {error}",
            do="install what is missing; ming-trt doctor shows what is there",
        ) from error

    return Command(entry.name, "(installed, but cannot be loaded)", _anything, run)


def _anything(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(takes_anything=True)


def build_parser(commands: dict[str, Command]) -> argparse.ArgumentParser:
    """The command line as a whole."""
    parser = argparse.ArgumentParser(prog="ming-trt", description="Ming speech models, to sound.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    subparsers = parser.add_subparsers(title="subcommands", metavar="SUBCOMMAND")
    for command in commands.values():
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help)
        subparser.add_argument(
            "-v", "--verbose", action="count", default=0, help="log what is done (-vv: more)"
        )
        subparser.set_defaults(command=command)
        command.add_arguments(subparser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status.

    0: done. 1: `doctor` found something wrong. Others as :func:`exit_status` says: 2 for bad input
    or an error that is explained, 128 and a signal's number for what that ended.
    """

    def run() -> int:
        status = _run(arguments)
        # Here, where a reader that has gone can still be handled.
        standard_output.flush()
        return status

    return exit_status(
        run, "ming-trt", interrupted="ming-trt: interrupted", in_words=wording.in_options
    )


def _run(arguments: Sequence[str] | None) -> int:
    parser = build_parser(find_commands())
    parsed, unknown = parser.parse_known_args(arguments)
    command: Command | None = getattr(parsed, "command", None)
    if unknown and not getattr(parsed, "takes_anything", False):
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if parsed.version:
        with standard_output.explained():
            print(__version__, flush=True)
        return 0
    if command is None:
        parser.print_help()
        return 0
    if parsed.verbose:  # warnings are printed without any setting up
        logging.basicConfig(
            level=logging.INFO if parsed.verbose == 1 else logging.DEBUG,
            format="%(levelname)s %(name)s: %(message)s",
        )
    return command.run(parsed)


if __name__ == "__main__":
    sys.exit(main())
