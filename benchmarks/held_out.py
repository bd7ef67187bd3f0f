"""Chooses the sentences of benchmarks/sentences from those that no voice is trained on.

    python -m benchmarks.held_out

Needs Debian's wordnet-base and the extra `listen`. The rule: of the held-out sentences of
`training.corpus`, those of 5 to 9 words, in lower case without other marks than commas and
apostrophes, every word of which the recogniser's dictionary has; the middle one of each of 80 equal
stretches; every fourth of these into voices.txt (20), the others into held-out.txt (60).
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from benchmarks.recognition import Recogniser
from benchmarks.word_errors import words
from training.corpus import sentences, split

FOLDER = Path(__file__).parent / "sentences"
HELD_OUT, VOICES = FOLDER / "held-out.txt", FOLDER / "voices.txt"
SHORTEST, LONGEST = 5, 9
COUNT, EVERY = 80, 4

_PLAIN = re.compile(r"[a-z' ,]+")


def chosen(recogniser: Recogniser) -> tuple[list[str], list[str]]:
    """The lines of held-out.txt and of voices.txt."""
    eligible = [text for text in split(sentences())[1] if _is_eligible(text, recogniser)]
    spaced = [eligible[(2 * index + 1) * len(eligible) // (2 * COUNT)] for index in range(COUNT)]
    voices = spaced[EVERY - 1 :: EVERY]
    return [text for text in spaced if text not in voices], voices


def _is_eligible(text: str, recogniser: Recogniser) -> bool:
    found = words(text)
    return (
        SHORTEST <= len(found) <= LONGEST
        and _PLAIN.fullmatch(text) is not None
        and all(recogniser.knows(word) for word in found)
    )


def main() -> None:
    argparse.ArgumentParser(prog="python -m benchmarks.held_out", description=__doc__).parse_args()
    for path, lines in zip((HELD_OUT, VOICES), chosen(Recogniser()), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(f"{path}: {len(lines)}")


if __name__ == "__main__":
    main()
