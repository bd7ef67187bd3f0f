"""The sentences that ship: by the rule, and none trained on."""

from __future__ import annotations

import re

import pytest

from benchmarks.held_out import HELD_OUT, LONGEST, SHORTEST, VOICES, chosen
from benchmarks.listening import read_sentences
from benchmarks.recognition import Recogniser
from benchmarks.word_errors import words
from training.corpus import WORDNET, sentences, split


def test_their_form(recogniser: Recogniser) -> None:
    held, voices = read_sentences(HELD_OUT), read_sentences(VOICES)
    assert (len(held), len(voices), len({*held, *voices})) == (60, 20, 80)
    for text in held + voices:
        assert re.fullmatch(r"[a-z' ,]+", text)
        assert SHORTEST <= len(words(text)) <= LONGEST
        assert all(recogniser.knows(word) for word in words(text))


@pytest.mark.skipif(not WORDNET.is_dir(), reason="needs Debian's wordnet-base")
def test_they_follow_the_rule_and_are_not_trained_on(recogniser: Recogniser) -> None:
    held, voices = read_sentences(HELD_OUT), read_sentences(VOICES)
    assert chosen(recogniser) == (held, voices)
    assert not {*held, *voices} & set(split(sentences())[0])
