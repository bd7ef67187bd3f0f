"""`python -m export CHECKPOINT BUNDLE`, and `python -m export --check CHECKPOINT`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from trt_runtime.errors import MingError


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m export",
        description="Exports a Ming speech checkpoint to a bundle of ONNX graphs.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    result.add_argument("checkpoint", help="checkpoint folder, or with --download a hub id")
    result.add_argument("bundle", nargs="?", type=Path, help="folder to write the bundle to")
    result.add_argument(
        "--check",
        action="store_true",
        help="read headers only, say what is inside and whether the export will work",
    )
    result.add_argument("--download", action="store_true", help="fetch a hub id; uses the network")
    result.add_argument("--revision", help="commit or tag to download", default=None)
    result.add_argument("--cache-length", type=int, default=2048, help="prompt tokens + steps")
    result.add_argument("--max-steps", type=int, default=400, help="most patches of a request")
    result.add_argument(
        "--prefill-chunks", default="16,64", help="tokens a prefill call, each dividing the next"
    )
    result.add_argument(
        "--no-values",
        action="store_true",
        help="check each graph's form only, do not run it against its torch module",
    )
    result.add_argument("-q", "--quiet", action="store_true", help="no progress lines")
    result.add_argument("-v", "--verbose", action="store_true", help="log what is done")
    return result


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO if options.verbose else logging.WARNING)
    try:
        return _run(options)
    except MingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was left behind", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    from export.hub import download, looks_like_hub_id
    from trt_runtime.errors import UserError

    checkpoint = Path(options.checkpoint)
    if options.download:
        checkpoint = download(options.checkpoint, options.revision)
    elif not checkpoint.exists() and looks_like_hub_id(options.checkpoint):
        raise UserError(
            f"No such folder: {checkpoint}",
            expected="a checkpoint folder",
            found="what may be a hub id; nothing is fetched unasked",
            do="add --download to fetch it",
        )
    if options.check:
        from export.preflight import check_checkpoint, format_report

        report = check_checkpoint(checkpoint)
        print(format_report(report))
        return 0 if report.ok else 2
    if options.bundle is None:
        raise UserError("Nowhere to write to", expected="python -m export CHECKPOINT BUNDLE")

    from export import ExportOptions, export_checkpoint

    try:
        chunks = tuple(int(part) for part in options.prefill_chunks.split(","))
    except ValueError as error:
        raise UserError(
            "--prefill-chunks is not a list of numbers",
            expected="for instance 16,64",
            found=options.prefill_chunks,
        ) from error
    export_checkpoint(
        checkpoint,
        options.bundle,
        options=ExportOptions(options.cache_length, options.max_steps, chunks),
        check_values=not options.no_values,
        progress=(lambda line: None) if options.quiet else (lambda line: print(line, flush=True)),
    )
    print(f"bundle: {options.bundle}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
