"""Sentences to speak: WordNet's examples and glosses, as Debian's wordnet-base ships them."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator
from pathlib import Path

from training.folders import read_lines
from trt_runtime.errors import UserError, reason_of

WORDNET = Path("/usr/share/wordnet")
PARTS = ("noun", "verb", "adj", "adv")

#: Characters of a sentence; one that ends without a mark may get one more.
LONGEST = 120
#: Never trained on: every sentence whose position in the corpus is a multiple of this.
HELD_OUT_EVERY = 250

_EXAMPLE = re.compile(r'"([^"]+)"')
_SPEAKABLE = re.compile(r"[A-Za-z][A-Za-z' ,?!.;:\-]+")
_NUMBERS = {
    word: str(value)
    for value, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
        "fifteen sixteen seventeen eighteen nineteen twenty".split()
    )
}
_OPENINGS = (
    "hello.", "hello,", "hi,", "good morning.", "good evening,", "welcome.", "thank you,",
    "please,", "yes,", "no,", "well,", "so,", "this is", "my name is", "i think",
    "today,", "tomorrow,", "i would like", "can you hear me?", "listen,", "of course,",
    "sorry,", "now,", "here is",
)  # fmt: skip
_NUMBERED = ("number {number}, {text}", "{number} of them: {text}", "in {number}, {text}",
             "{text}, {number}", "it is {number}. {text}")  # fmt: skip
_ASKING = ("do", "does", "did", "is", "are", "was", "were", "can", "could", "what", "who", "why",
           "where", "when", "how", "will", "would")  # fmt: skip


def sentences(folder: Path = WORDNET) -> list[str]:
    """Every distinct sentence of 3 words and more that is letters and common punctuation.

    Raises UserError where `folder` is not WordNet's.
    """
    found: dict[str, None] = {}
    for text in _texts(folder):
        text = " ".join(text.split())
        if _SPEAKABLE.fullmatch(text) and len(text.split()) >= 3 and len(text) <= LONGEST:
            found[text] = None
    return list(found)


def _texts(folder: Path) -> Iterator[str]:
    examples: list[str] = []
    glosses: list[str] = []
    for part in PARTS:
        for line in _read(folder / f"data.{part}").splitlines():
            if line.startswith("  "):  # the licence
                continue
            gloss = line.rsplit("| ", 1)[-1]
            examples += _EXAMPLE.findall(gloss)
            glosses += re.sub(r';?\s*"[^"]*"?', "", gloss).split(";")
    yield from examples
    yield from glosses


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="latin-1")
    except OSError as error:
        raise UserError(
            "WordNet is not installed",
            expected=f"{path}, of Debian's package wordnet-base",
            found=reason_of(error),
            do="apt-get install wordnet-base, or give a file of sentences with --texts",
        ) from error


def read_sentences(texts: Path | None) -> list[str]:
    """WordNet's :func:`sentences`; or what they were elsewhere, one a line, of the file `texts`."""
    return sentences() if texts is None else read_lines(texts)


def split(texts: list[str]) -> tuple[list[str], list[str]]:
    """Those to train on, and those held out."""
    held = texts[::HELD_OUT_EVERY]
    kept = set(held)
    return [text for text in texts if text not in kept], held


def dressed(text: str, generator: random.Random) -> str:
    """`text` as a person may write it: short or greeted, with digits, letters and an end mark."""
    choice = generator.random()
    if choice < 0.05:
        few = " ".join(text.split()[: generator.randrange(1, 4)])
        text = few.rstrip(" ,;:-") or text
    elif choice < 0.13:
        text = f"{generator.choice(_OPENINGS)} {text}"
    elif choice < 0.19:
        text = generator.choice(_NUMBERED).format(text=text, number=_number(generator))
    elif choice < 0.21:
        letters = " ".join(generator.choices(string.ascii_lowercase, k=generator.randrange(2, 5)))
        text = generator.choice(("model {}, {}", "{}, {}", "this is {}, {}")).format(letters, text)
    if generator.random() < 0.5:
        text = re.sub(r"[a-z]+", lambda m: _NUMBERS.get(m[0], m[0]), text)
    if len(text) > LONGEST:
        text = text[:LONGEST].rsplit(" ", 1)[0].rstrip(" ,;:-") or text[:LONGEST]
    if text[-1].isalnum() and generator.random() < 0.7:
        text += generator.choice("...!?" if text.split()[0].lower() in _ASKING else "....!")
    return text


def _number(generator: random.Random) -> int:
    return generator.choice(
        (generator.randrange(10), generator.randrange(100), generator.randrange(1900, 2100))
    )
