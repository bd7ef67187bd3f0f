"""`build-engines SOURCE --target cpu --out DIR`: a checkpoint or a bundle to engines."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from trt_runtime.errors import UserError
from trt_runtime.exit_status import exit_status
from trt_runtime.printable import printable


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


def _texts(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


# argparse names the type by these in its own message.
_count.__name__ = "whole number"
_counts.__name__ = "comma list of whole numbers"
_texts.__name__ = "comma list"


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    result = argparse.ArgumentParser(
        prog="build-engines",
        description="Build the engines of a Ming speech checkpoint, or of a bundle exported from"
        " one, for one target. Engines that are up to date are kept as they are.",
    )
    result.add_argument(
        "source",
        nargs="?",
        metavar="SOURCE",
        help="checkpoint or bundle folder, or with --download a hub id",
    )
    result.add_argument("--target", default="cpu", help="what to build for (default: cpu)")
    result.add_argument("--out", metavar="DIR", help="the engine folder to make or replace")
    result.add_argument("--force", action="store_true", help="build even what is up to date")
    result.add_argument(
        "--list-targets",
        action="store_true",
        help="list the targets with their precisions and options, and exit",
    )
    chosen = result.add_argument_group(
        "options of a target", "build-engines --list-targets shows which target has which"
    )
    chosen.add_argument(
        "--precision",
        help="float32 (default); mixed: products in 16 bits, float16 or bfloat16 as suits each"
        " component, the rest float32; mixed-bf16 and mixed-fp16: every component's in that type",
    )
    chosen.add_argument(
        "--slots", type=_counts, metavar="N,N", help="requests that step together, a profile each"
    )
    chosen.add_argument(
        "--compute-capability",
        type=_texts,
        metavar="X.Y,X.Y",
        help="the GPUs to build for (tensorrt-rtx)",
    )
    chosen.add_argument(
        "--ampere-and-later", action="store_true", default=None, help="for all GPUs from 8.0 on"
    )
    chosen.add_argument(
        "--version-compatible",
        action="store_true",
        default=None,
        help="engines that later versions of TensorRT take",
    )
    chosen.add_argument(
        "--weight-streaming",
        type=_count,
        metavar="MB",
        help="most weights of an engine that the GPU keeps, for a large talker (tensorrt)",
    )
    chosen.add_argument(
        "--time-limit", type=_count, metavar="SECONDS", help="of one component's build"
    )
    volume = result.add_mutually_exclusive_group()
    volume.add_argument("--quiet", action="store_true", help="print errors only")
    volume.add_argument("-v", "--verbose", action="store_true", help="print what is decided, too")
    export = result.add_argument_group("for a checkpoint as SOURCE")
    export.add_argument("--download", action="store_true", help="fetch a hub id; uses the network")
    export.add_argument("--revision", help="commit or tag to download")
    export.add_argument("--cache-length", type=_count, help="positions of the talker's cache")
    export.add_argument("--max-steps", type=_count, help="most patches that a request may ask for")
    export.add_argument(
        "--prefill-chunks",
        type=_counts,
        metavar="N,N",
        help="tokens of a prefill call, ascending, each dividing the next",
    )
    export.add_argument(
        "--max-reference-latents", type=_count, help="latents of a request's reference waves"
    )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status: 2 for a user's mistake, 128 + N for signal N."""
    options = parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
    )
    return exit_status(
        lambda: _run(options),
        "build-engines",
        interrupted="build-engines: interrupted; nothing was written",
    )


def _run(options: argparse.Namespace) -> int:
    if options.list_targets:
        _list_targets()
    else:
        _build(options)
    return 0


def _build(options: argparse.Namespace) -> None:
    if options.source is None or options.out is None:
        raise UserError(
            "A source and an output folder are needed",
            expected="build-engines SOURCE --target cpu --out DIR",
            do="see build-engines --help",
        )
    from engines.build import build_engines
    from engines.options import BuildOptions
    from export.hub import find_source

    source = find_source(options.source, download=options.download, revision=options.revision)

    def given(names: Iterable[str]) -> dict[str, Any]:
        return {n: getattr(options, n) for n in names if getattr(options, n) is not None}

    of_export = ("cache_length", "max_steps", "prefill_chunks", "max_reference_latents")
    of_build = (field.name for field in fields(BuildOptions))
    build_engines(
        source,
        options.out,
        target=options.target,
        force=options.force,
        progress=(lambda line: None) if options.quiet else _show,
        export_options=given(of_export),
        options=BuildOptions(**given(of_build)),
    )


def _list_targets() -> None:
    """A paragraph a target, by name: what it is, its precisions, its options."""
    from engines.options import flags
    from engines.targets import TARGETS

    width = max(map(len, TARGETS))
    for name, target in sorted(TARGETS.items()):
        _show(f"{name:<{width}}  {target.description}")
        _show(f"{'':<{width}}  precisions  {', '.join(sorted(target.precisions))}")
        _show(f"{'':<{width}}  options     {flags(target.options)}")


def _show(line: str) -> None:
    print(printable(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
