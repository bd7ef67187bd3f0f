"""Speaks the corpus into numbered shards.

    python -m training.generate --program flite_speech --out FOLDER

Shards that are there are left as they are, so that the same command goes on where it was ended;
one with other options is refused.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
from pathlib import Path

from training.arguments import positive
from training.corpus import read_sentences, split
from training.folders import made_folder
from training.shards import begin_shards, end_shards, shard_path, write_shard
from training.speech import find_program, make
from trt_runtime.errors import UserError
from trt_runtime.exit_status import exit_status

SEED = 1895
SHARD = 6000


def training_texts(texts: Path | None) -> list[str]:
    """The sentences to train on in a fixed random order; from `texts`, one a line, if it is given.

    That file holds what :func:`training.corpus.sentences` gives, for machines without WordNet.
    Raises UserError where none is left to train on.
    """
    kept, held = split(read_sentences(texts))
    if not kept:
        raise UserError(
            "There is no sentence to train on",
            expected="two different ones and more, the first of which is held out",
            found=f"{len(held)} that is held out",
            do="give more with --texts, or leave it out where WordNet is installed",
        )
    random.Random(SEED).shuffle(kept)
    return kept


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m training.generate", description=(__doc__ or "").splitlines()[0]
    )
    result.add_argument(
        "--program", type=Path, required=True, help="training/flite_speech.c, built"
    )
    result.add_argument("--out", type=Path, required=True, help="folder of the shards")
    result.add_argument("--texts", type=Path, help="sentences, one a line, in place of WordNet's")
    result.add_argument("--most", type=positive, help="of sentences")
    result.add_argument("--shard", type=positive, default=SHARD, help="sentences a file")
    result.add_argument(
        "--workers", type=positive, default=8, help="programs at a time; the shards depend on it"
    )
    return result


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status: 2 for a user's mistake, 128 + N for signal N."""
    options = parser().parse_args(arguments)
    return exit_status(
        lambda: _run(options),
        "error",
        interrupted="interrupted; the same command goes on with the shard that is missing",
    )


def _run(options: argparse.Namespace) -> int:
    program = find_program(options.program)
    every = training_texts(options.texts)
    lines = every[: options.most]
    folder = made_folder(options.out)
    starts = range(0, len(lines), options.shard)
    made_with = {
        "texts": hashlib.sha256("\n".join(every).encode()).hexdigest(),
        "most": len(lines),
        "shard": options.shard,
        "workers": options.workers,
    }
    begin_shards(folder, len(starts), made_with)
    for index, start in enumerate(starts):
        place = shard_path(folder, index)
        if place.exists():
            continue
        texts = lines[start : start + options.shard]
        speech = make(program, texts, SEED + index, options.workers)
        write_shard(place, speech)
        print(f"{place.name}: {speech.seconds / 3600:.2f} h", flush=True)
    end_shards(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
