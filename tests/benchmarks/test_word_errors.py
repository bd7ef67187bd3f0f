"""Words as they are scored, and how many are wrong."""

from __future__ import annotations

import pytest

from benchmarks.word_errors import WordErrorRate, word_errors, words
from trt_runtime.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It was full of rackets, balls and other objects.", "it was full of rackets balls and"),
        ("Don't! It isn’t the competitor's", "don't it isn't the competitor's"),
        ("'Quoted', she said; the dogs' bowl", "quoted she said the dogs bowl"),
        ("twenty-one – or twenty two", "twenty one or twenty two"),
        ("CAFÉ_au lait", "café au lait"),
        (" ... ", ""),
    ],
)
def test_words_are_lower_case_without_punctuation(text: str, expected: str) -> None:
    assert words(text)[: len(expected.split())] == expected.split()


@pytest.mark.parametrize("text", ["in 1895", "the 3rd man", "mp3"])
def test_digits_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="spelled out"):
        words(text)


@pytest.mark.parametrize(
    ("said", "heard", "errors"),
    [
        ("", "", 0),
        ("a b c", "a b c", 0),
        ("a b c", "", 3),
        ("", "a b", 2),
        ("a b c", "a x c", 1),
        ("a b c", "a c", 1),
        ("a b c", "a b x c", 1),
        ("a b c d", "b c d e", 2),
        ("storehouses were built", "star houses are built", 3),
        ("k i t t e n", "s i t t i n g", 3),
    ],
)
def test_the_fewest_edits(said: str, heard: str, errors: int) -> None:
    assert word_errors(said.split(), heard.split()) == errors
    assert word_errors(heard.split(), said.split()) == errors


def test_the_rate_is_of_words_and_not_of_sentences() -> None:
    assert WordErrorRate.of([1, 0], [1, 9]).rate == 0.1


def test_the_interval_is_the_same_each_time_and_holds_the_rate() -> None:
    errors, counts = [0, 1, 2, 0, 3, 0, 1, 0, 0, 1], [7] * 10
    found = WordErrorRate.of(errors, counts)
    assert found == WordErrorRate.of(errors, counts)
    assert 0 <= found.low < found.rate < found.high <= 3 / 7


def test_ten_times_the_sentences_make_the_interval_narrower() -> None:
    few, many = (WordErrorRate.of([0, 1, 2, 0] * n, [6] * (4 * n)) for n in (3, 30))
    assert many.rate == few.rate
    # By the root of ten, about.
    assert 2 < (few.high - few.low) / (many.high - many.low) < 5


def test_without_spread_there_is_none() -> None:
    assert WordErrorRate.of([2, 2], [4, 4]) == WordErrorRate(0.5, 0.5, 0.5)


@pytest.mark.parametrize(("errors", "counts"), [([], []), ([1], [1, 2]), ([0], [0])])
def test_what_has_no_rate(errors: list[int], counts: list[int]) -> None:
    with pytest.raises(ValueError, match="sentences"):
        WordErrorRate.of(errors, counts)
