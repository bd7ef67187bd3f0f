"""`python -m export CHECKPOINT BUNDLE`, and `python -m export --check CHECKPOINT`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from export.free_memory import DEFAULT_MEMORY
from export.geometry import ExportOptions
from export.hub import find_source
from export.packages import TO_CHECK, TO_EXPORT, require_packages
from export.terminal_line import TerminalLine
from trt_runtime.errors import UserError
from trt_runtime.exit_status import exit_status
from trt_runtime.printable import printable


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m export",
        description="Exports a Ming speech checkpoint to a bundle of ONNX graphs.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    result.add_argument("checkpoint", help="checkpoint folder, or with --download a hub id")
    result.add_argument(
        "bundle",
        nargs="?",
        type=Path,
        help="folder to write the bundle to (with --check: whose disk to look at)",
    )
    result.add_argument(
        "--check",
        action="store_true",
        help="read headers only, say what is inside and whether the export will work",
    )
    result.add_argument("--download", action="store_true", help="fetch a hub id; uses the network")
    result.add_argument("--revision", help="commit or tag to download", default=None)
    result.add_argument(
        "--cache-length", type=int, default=ExportOptions.cache_length, help="prompt tokens + steps"
    )
    result.add_argument(
        "--max-steps", type=int, default=ExportOptions.max_steps, help="most patches of a request"
    )
    result.add_argument(
        "--prefill-chunks",
        default=",".join(map(str, ExportOptions.prefill_chunks)),
        help="tokens a prefill call, each dividing the next",
    )
    result.add_argument(
        "--max-reference-latents",
        type=int,
        default=ExportOptions.max_reference_latents,
        help="latents of the reference waves of a request, 12.5 a second in the released models",
    )
    result.add_argument(
        "--no-values",
        action="store_true",
        help="check each graph's form only, do not run it against its torch module",
    )
    result.add_argument(
        "--memory",
        type=_gigabytes,
        default=DEFAULT_MEMORY / 1e9,
        metavar="GB",
        help="most that the export may take: values of graphs that need more are not compared",
    )
    result.add_argument(
        "--fresh",
        action="store_true",
        help="start over, also where an export that stopped could be gone on with",
    )
    result.add_argument("-q", "--quiet", action="store_true", help="no progress lines")
    result.add_argument("-v", "--verbose", action="store_true", help="log what is done")
    return result


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status: 2 for a user's mistake, 128 + N for signal N."""
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO if options.verbose else logging.WARNING)
    return exit_status(
        lambda: _run(options), "error", interrupted="interrupted; no bundle was written"
    )


def _run(options: argparse.Namespace) -> int:
    if options.bundle is None and not options.check:
        raise UserError(
            "Nowhere to write to",
            expected="python -m export CHECKPOINT BUNDLE",
            do="name the folder to write, or add --check to look at the checkpoint only",
        )
    if options.check:
        require_packages("Checking a checkpoint", TO_CHECK)
    else:
        require_packages("Exporting a checkpoint", TO_EXPORT)
    chosen = _export_options(options)
    source = find_source(options.checkpoint, download=options.download, revision=options.revision)
    if options.check:
        from export.preflight import check_checkpoint, format_report

        report = check_checkpoint(source, options.bundle, options=chosen)
        print(format_report(report), flush=True)
        return 0 if report.ok else 2
    from export import export_checkpoint

    line = TerminalLine(sys.stderr) if _has_terminal() and not options.quiet else None

    def show(text: str) -> None:
        if line is not None:
            line.show("")
        print(printable(text), flush=True)

    export_checkpoint(
        source,
        options.bundle,
        options=chosen,
        check_values=not options.no_values,
        memory=int(options.memory * 1e9),
        fresh=options.fresh,
        progress=(lambda line: None) if options.quiet else show,
        live=None if line is None else line.show,
    )
    print(f"bundle: {options.bundle}", flush=True)
    return 0


def _gigabytes(text: str) -> float:
    size = float(text)
    if not 0 < size < 1e9:
        raise ValueError(text)
    return size


def _export_options(options: argparse.Namespace) -> ExportOptions:
    try:
        chunks = tuple(int(part) for part in options.prefill_chunks.split(","))
    except ValueError as error:
        raise UserError(
            "--prefill-chunks is not a list of numbers",
            expected="for instance 16,64",
            found=options.prefill_chunks,
            do="give whole numbers with commas between them",
        ) from error
    return ExportOptions(
        options.cache_length, options.max_steps, chunks, options.max_reference_latents
    )


def _has_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


if __name__ == "__main__":
    sys.exit(main())
