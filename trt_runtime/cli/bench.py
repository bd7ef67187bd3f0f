"""`ming-trt bench`: latency and throughput of engines, next to peers that are timed in turns."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_runtime.cli import (
    Command,
    add_engine_arguments,
    at_least_one,
    bench_table,
    inputs,
    standard_output,
)
from trt_runtime.cli.inputs import PIPE
from trt_runtime.cli.rewritten_line import RewrittenLine
from trt_runtime.errors import UserError

if TYPE_CHECKING:
    from trt_runtime.measuring import Plan


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser)
    parser.add_argument(
        "--peer", metavar="DIR", action="append", default=[],
        help="another engine folder or bundle, timed in turns with the first; may be repeated",
    )  # fmt: skip
    request = parser.add_argument_group("what is spoken")
    request.add_argument(
        "--text", metavar="TEXT", help="in place of a short English sentence; @FILE reads it"
    )
    request.add_argument("--text-file", metavar="FILE", help="a text, in UTF-8")
    request.add_argument(
        "--steps", type=int, metavar="N",
        help="steps of each request, no more and no fewer, 2 and up (default: 32)",
    )  # fmt: skip
    request.add_argument("--seed", type=int, help="seed of the noise (default: 0)")
    request.add_argument(
        "--slots", metavar="N,N",
        help="how many requests are submitted at once, one throughput each (default: 1,4,8)",
    )  # fmt: skip
    parser.add_argument(
        "--runs", type=at_least_one, metavar="N",
        help="measured runs, after one that is not (default: 5)",
    )  # fmt: skip
    parser.add_argument(
        "--json", metavar="FILE", nargs="?", const=PIPE,
        help="also write every value as JSON; without FILE, or with -, print it instead",
    )  # fmt: skip
    parser.add_argument(
        "--quiet", action="store_true", help="print the result, warnings and errors only"
    )


def _run(arguments: argparse.Namespace) -> int:
    plan = _plan(arguments)
    _check_destination(arguments)

    from trt_runtime.measurements import report
    from trt_runtime.measuring import measure

    progress = RewrittenLine(silent=arguments.quiet)
    try:
        measurements = measure([arguments.engines, *arguments.peer], plan, progress.write)
    finally:
        progress.clear()
    found = report(measurements)
    _tell(found, arguments)
    return 0


def _plan(arguments: argparse.Namespace) -> Plan:
    """Raises UserError for what can be refused without engines, and for files that it cannot read.

    What was left out has the plan's own default.
    """
    from trt_runtime.measuring import Plan

    a = arguments
    if a.text is not None and a.text_file is not None:
        raise UserError(
            "There is more than one text",
            expected="--text or --text-file",
            found="both",
            do="leave one of them out",
        )
    given: dict[str, Any] = {
        name: getattr(a, name) for name in ("steps", "runs", "seed", "threads")
    }
    if a.text is not None:
        given["text"] = inputs.value_or_file("--text", a.text)
    if a.text_file is not None:
        given["text"] = inputs.file_text(a.text_file)
    if a.slots is not None:
        given["slots"] = tuple(map(_number, a.slots.split(",")))
    return Plan(**{name: value for name, value in given.items() if value is not None})


def _number(text: str) -> int | str:
    """What is no number is refused by the plan, which says what a number of slots may be."""
    return int(text) if text.strip().isdecimal() and len(text) < 20 else text


def _check_destination(arguments: argparse.Namespace) -> None:
    """Raises UserError where the result could not be told, or would replace what is read."""
    from trt_runtime.whole_file import check_writable

    standard_output.check_there()
    if arguments.json in (None, PIPE):
        return
    check_writable(Path(arguments.json))
    inputs.check_not_read("--json", arguments.json, _files_read(arguments))


def _files_read(arguments: argparse.Namespace) -> Iterator[tuple[str, str | Path]]:
    if arguments.text_file not in (None, PIPE):
        yield "--text-file", arguments.text_file
    if file := inputs.named_file(arguments.text or ""):
        yield "--text", file
    if arguments.engines is not None:
        yield from inputs.folder_files("--engines", arguments.engines)
    for peer in arguments.peer:
        yield from inputs.folder_files("--peer", peer)


def _tell(found: dict[str, Any], arguments: argparse.Namespace) -> None:
    """The table, and the JSON in its file, or in the table's place."""
    from trt_runtime.whole_file import write_whole

    for warning in dict.fromkeys(w for folder in found["folders"] for w in folder["warnings"]):
        standard_output.warn(warning)
    if arguments.json == PIPE:
        standard_output.print_json(found)
        return
    try:
        for line in bench_table.lines(found):
            standard_output.print_line(line)
    finally:  # what took minutes is not lost with a reader that has gone
        if arguments.json is not None:
            text = json.dumps(found, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
            write_whole(Path(arguments.json), text.encode("utf-8"))


command = Command("bench", "measure latency and throughput of engines", _add_arguments, _run)
