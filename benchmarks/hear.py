"""What a recogniser hears in an audio file.

    python -m benchmarks.hear hello.wav --expect "Hello there." --most 0.3

Prints the words, and with --expect the word error rate; the exit status is 1 where that is above
--most, and 2 for bad input. Needs the extra `listen`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recognition import Recogniser, read_wave
from benchmarks.word_errors import word_errors, words
from trt_runtime.errors import UserError
from trt_runtime.exit_status import exit_status


@dataclass(frozen=True)
class Heard:
    """Words heard; with a text, how many of its `count` words are wrong."""

    words: list[str]
    count: int = 0
    errors: int = 0

    @property
    def rate(self) -> float:
        return self.errors / self.count


def hear(path: str | Path, expected: str | None = None) -> Heard:
    """The words in an audio file, compared with those of `expected`. Raises UserError."""
    said = words(expected) if expected is not None else []
    if expected is not None and not said:
        raise UserError("The expected text has no words", do="give the text that was spoken")
    audio, rate = read_wave(path)
    heard = Recogniser().words(audio, rate)
    return Heard(heard, len(said), word_errors(said, heard) if said else 0)


def rate_limit(text: str) -> float:
    """argparse's `type` of --most; its name is part of the message."""
    value = float(text)
    if math.isnan(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return value


rate_limit.__name__ = "rate"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hear", description=__doc__.splitlines()[0]
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="wav, flac, ogg, mp3, …")
    parser.add_argument("--expect", metavar="TEXT", help="what was said, numbers as words")
    parser.add_argument(
        "--most", type=rate_limit, metavar="RATE",
        help="exit status 1 where the word error rate is above this (default: no limit)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.most is not None and options.expect is None:
        parser.error("--most is for --expect")

    def run() -> int:
        heard = hear(options.file, options.expect)
        print("heard:", " ".join(heard.words) or "(no words)")
        if options.expect is None:
            return 0
        print(f"word error rate: {heard.rate:.2f} ({heard.errors} of {heard.count} words)")
        return int(options.most is not None and heard.rate > options.most)

    return exit_status(run, parser.prog, interrupted=f"{parser.prog}: interrupted")


if __name__ == "__main__":
    sys.exit(main())
