"""Words of a text, and how many of them were heard wrong: substitutions, insertions, deletions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trt_runtime.errors import UserError

#: Runs of letters, with apostrophes between them.
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_APOSTROPHES = str.maketrans("’ʼ＇", "'''")

#: Draws of the bootstrap, its seed, and what it leaves out on either side, in per cent.
DRAWS, SEED, _TAIL = 2000, 0, 2.5


def words(text: str) -> list[str]:
    """`text` as it is scored: lower case, no punctuation, apostrophes inside words kept.

    Hyphens part words. Raises UserError where a digit is left: 1895 can be said in several ways,
    and which one was meant would be a guess.
    """
    if digits := re.findall(r"\w*\d\w*", text):
        raise UserError(
            "The text has digits, and a score needs the words that are said",
            expected="numbers spelled out, as in 'twenty one'",
            found=", ".join(digits[:5]),
            do="write them as words (ming-trt normalize does)",
        )
    return _WORD.findall(text.translate(_APOSTROPHES).lower())


def word_errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """The fewest words to substitute, insert and delete that make `heard` of `said`.

    Source: V. Levenshtein, 1966; the dynamic programme of R. Wagner and M. Fischer, 1974.
    """
    row = list(range(len(heard) + 1))
    for count, word in enumerate(said, 1):
        diagonal, row[0] = row[0], count
        for index, other in enumerate(heard, 1):
            substituted = diagonal + (word != other)
            diagonal = row[index]
            row[index] = min(row[index] + 1, row[index - 1] + 1, substituted)
    return row[-1]


@dataclass(frozen=True)
class WordErrorRate:
    """Errors a word said, which may pass 1, and where 95 % of the bootstrap's draws lie."""

    rate: float
    low: float
    high: float

    @classmethod
    def of(cls, errors: Sequence[int], counts: Sequence[int]) -> WordErrorRate:
        """errors, counts: of each sentence, its errors and the words it has. Every draw takes as
        many sentences, with replacement (M. Bisani and H. Ney, ICASSP 2004).
        """
        wrong, said = np.asarray(errors, np.int64), np.asarray(counts, np.int64)
        if not len(wrong) or len(wrong) != len(said) or not (said > 0).all():
            raise ValueError(f"{len(wrong)} errors of {len(said)} sentences, none without words")
        generator = np.random.Generator(np.random.Philox(SEED))
        drawn = generator.integers(len(said), size=(DRAWS, len(said)))
        rates = wrong[drawn].sum(axis=1) / said[drawn].sum(axis=1)
        low, high = np.percentile(rates, (_TAIL, 100 - _TAIL))
        return cls(float(wrong.sum() / said.sum()), float(low), float(high))
