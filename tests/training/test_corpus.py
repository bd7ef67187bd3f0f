"""The sentences: which are taken, which are held out, and how they are dressed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from training.corpus import (
    HELD_OUT_EVERY,
    LONGEST,
    PARTS,
    dressed,
    read_sentences,
    sentences,
    split,
)
from trt_runtime.errors import UserError

LICENCE = "  1 This software and database is being provided to you\n"


def wordnet(folder: Path, glosses: dict[str, list[str]]) -> Path:
    for part in PARTS:
        lines = [f"0001 03 n 01 word 0 000 | {gloss}  \n" for gloss in glosses.get(part, [])]
        (folder / f"data.{part}").write_text(LICENCE + "".join(lines), encoding="latin-1")
    return folder


def test_examples_then_glosses_each_once(tmp_path: Path) -> None:
    folder = wordnet(
        tmp_path,
        {
            "noun": ['a small wild cat; "the cat sat there"; "the cat sat there"', "too short"],
            "verb": ['move   with speed; "he ran, and ran"', f"a {'very ' * 30}long gloss here"],
            "adj": ["of the year 1984", 'as in a café there; "do not quote'],
        },
    )
    assert sentences(folder) == [
        "the cat sat there", "he ran, and ran", "a small wild cat", "move with speed",
    ]  # fmt: skip


def test_without_wordnet(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="WordNet is not installed") as caught:
        sentences(tmp_path)
    assert "wordnet-base" in caught.value.do
    assert "--texts" in caught.value.do


def test_sentences_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "texts"
    path.write_text("one of them\nanother of them\n")
    assert read_sentences(path) == ["one of them", "another of them"]
    for content in (b"", b" \n\t\n", "één zin\n".encode()):
        path.write_bytes(content)
        with pytest.raises(UserError, match=str(path)):
            read_sentences(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_sentences(tmp_path / "missing")


def test_blank_lines_of_a_file_and_those_that_cannot_be_spoken(tmp_path: Path) -> None:
    path = tmp_path / "texts"
    path.write_bytes(b"\n  one of them\t\r\n \t\n\nanother of them")
    assert read_sentences(path) == ["one of them", "another of them"]
    for line in (b"a\tb", b"a\0b", b"a\x0cb", b"a\x1eb", b"a\x1f", b"a\x7f", b"\x1b[2J", b"--- ."):
        path.write_bytes(b"one of them\n" + line + b"\n")
        with pytest.raises(UserError, match=r"Line 2 of .* cannot be spoken"):
            read_sentences(path)


def test_what_is_held_out_is_never_trained_on() -> None:
    texts = [f"sentence number {index}" for index in range(3 * HELD_OUT_EVERY)]
    kept, held = split(texts)
    assert held == [texts[0], texts[HELD_OUT_EVERY], texts[2 * HELD_OUT_EVERY]]
    assert not set(kept) & set(held)
    assert sorted([*kept, *held]) == sorted(texts)
    # A sentence that is there twice is not held out once and trained on once.
    kept, held = split([*texts, texts[0]])
    assert texts[0] in held
    assert texts[0] not in kept


TEXTS = [f"{'word ' * (count % 30)}and the twelve of them" for count in range(40)]


def test_dressing_follows_from_the_seed() -> None:
    def all_dressed(seed: int) -> list[str]:
        generator = random.Random(seed)
        return [dressed(text, generator) for text in TEXTS * 20]

    state = random.getstate()
    assert all_dressed(3) == all_dressed(3)
    assert all_dressed(3) != all_dressed(4)
    assert random.getstate() == state


def test_what_is_dressed_is_short_and_can_be_spoken() -> None:
    generator = random.Random(5)
    made = [dressed(text, generator) for text in TEXTS * 100]
    assert max(map(len, made)) <= LONGEST + 1  # the end mark
    assert all(len(text) <= LONGEST or text[-1] in ".!?" for text in made)
    assert all(text.isascii() and text[0].isalnum() and "\n" not in text for text in made)
    assert any(character.isdigit() for text in made for character in text)
    assert any("12 of them" in text for text in made)
    assert any("twelve of them" in text for text in made)
    assert min(len(text.split()) for text in made) == 1
    assert {text[-1] for text in made} >= {".", "!"}


def test_dressing_leaves_something_of_marks() -> None:
    generator = random.Random(7)
    for text in ("- - - - a", f"{'-' * 200} a"):
        assert all(dressed(text, generator) for _ in range(200))


def test_questions_may_end_as_questions() -> None:
    generator = random.Random(6)
    ends = {dressed("Where is the book", generator)[-1] for _ in range(100)}
    assert "?" in ends
    assert "?" not in {dressed("the book is there", generator)[-1] for _ in range(100)}
