"""Splitting long text: every character in one piece, pieces within the limit, good places."""

import random
import time
import unicodedata

import pytest

from trt_runtime.errors import UserError
from trt_runtime.sentences import Sentence, split_sentences

ENGLISH = (
    "Dr. Smith paid $3.50 to Mr. Jones in the U.S. yesterday. He left, e.g. at 5 p.m. on Monday. "
    "“Was it late?” she asked. It was… He had 1,234.56 reasons; version 3.5 was not one of them!"
)
CHINESE = (
    "今天天气很好。我们去公园吧！好吗？“你好。”他说，“再见……”她笑了；然后走了。"
    "版本3.5发布了，共有1,234人参加（真的。），对吧？！嗯。。。好"
)
MIXED = "Hello 你好。I am fine. 他说OK，然后走了！GPT-4比GPT-3.5强吗？Yes, it is."
LINES = "Shopping list\n- milk\n- eggs\n\n1. First step.\n2. Second step\r\n\r\n***\r\n\r\nThe end"
EMOJI = "😀 hi! 👨‍👩‍👧 family 🇩🇪🇫🇷 flags 👍🏽 thumbs. ok ❤️ e\u0301a\u0301"
BARE = "没有标点的文字" * 12
WORDS = "word " * 60
SAMPLES = [ENGLISH, CHINESE, MIXED, LINES, EMOJI, BARE, WORDS, "x" * 100, "1234567890" * 9]
ALPHABET = [
    *"aZé 1290  \n\t,.;:!?-—'\"()…，。、；：！？“”（）《》今天好的\u3000\u200d\u0301\ufe0f",
    "😀", "👨‍👩‍👧", "🇩🇪", "👍🏽", "Dr. ", "3.5", "\r\n", "\n\n",
    "speaker_1:", "กำ", "한글", "カ\u3099",
]  # fmt: skip


def texts(text, limit):
    return [sentence.text for sentence in split_sentences(text, limit)]


def speaks(text):
    return any(map(str.isalnum, text))


def check_spans(text, sentences):
    end = 0
    for sentence in sentences:
        assert not text[end : sentence.start].strip(), "a character is in no piece"
        assert sentence.text == text[sentence.start : sentence.end] == sentence.text.strip() != ""
        assert sentence.start >= end
        end = sentence.end
    assert not text[end:].strip(), "the end is in no piece"


def random_text(seed):
    generator = random.Random(seed)
    return "".join(generator.choices(ALPHABET, k=generator.randrange(120)))


@pytest.mark.parametrize("limit", [1, 2, 7, 20, 60, 1000])
@pytest.mark.parametrize("text", SAMPLES)
def test_every_character_is_in_one_piece(text, limit):
    check_spans(text, split_sentences(text, limit))


@pytest.mark.parametrize("seed", range(300))
def test_random_mixes(seed):
    text = random_text(seed)
    for limit in (1, 5, 30, 200):
        sentences = split_sentences(text, limit)
        check_spans(text, sentences)
        assert sentences == split_sentences(text, limit)
        if speaks(text):
            assert all(speaks(sentence.text) for sentence in sentences)
        for sentence in sentences[1:]:
            assert (
                unicodedata.category(sentence.text[0])[0] != "M"
                or text[sentence.start - 1].isspace()
            ), "a combining mark is cut from its letter"
        for sentence in sentences:
            # A long piece has no letter that could begin or end another piece.
            if limit >= 30:
                longest_silence = max(map(len, silences(sentence.text)))
                assert len(sentence.text) <= limit + longest_silence


def silences(text):
    return "".join("x" if c.isalnum() else " " for c in text).split("x")


@pytest.mark.parametrize("limit", [12, 20, 60, 150])
@pytest.mark.parametrize("text", SAMPLES)
def test_no_piece_is_longer_than_the_limit(text, limit):
    assert max(map(len, texts(text, limit))) <= limit


def test_sentences_end_where_they_end():
    assert texts(ENGLISH, 80) == [
        "Dr. Smith paid $3.50 to Mr. Jones in the U.S. yesterday.",
        "He left, e.g. at 5 p.m. on Monday. “Was it late?” she asked.",
        "It was… He had 1,234.56 reasons; version 3.5 was not one of them!",
    ]
    assert texts(CHINESE, 25) == [
        "今天天气很好。我们去公园吧！好吗？“你好。”",
        "他说，“再见……”她笑了；然后走了。",
        "版本3.5发布了，",
        "共有1,234人参加（真的。），对吧？！嗯。。。好",
    ]
    assert texts(MIXED, 32) == [
        "Hello 你好。I am fine. 他说OK，然后走了！",
        "GPT-4比GPT-3.5强吗？Yes, it is.",
    ]


def test_neighbours_are_put_together_in_a_paragraph_only():
    assert texts("One. Two. Three.", 100) == ["One. Two. Three."]
    assert texts("One. Two. Three.", 10) == ["One. Two.", "Three."]
    assert texts("One.\nTwo.\n\nThree.\r\n\r\nFour.", 100) == ["One.\nTwo.", "Three.", "Four."]
    assert texts("一。二。\n \n三。", 100) == ["一。二。", "三。"]


def test_a_wrapped_line_goes_on():
    wrapped = "The second line of this text goes\non in the middle. Here it ends."
    assert texts(wrapped, 52)[0] == "The second line of this text goes\non in the middle."
    assert texts("Apples\nBananas", 8) == ["Apples", "Bananas"]


@pytest.mark.parametrize(
    ("text", "limit", "pieces"),
    [
        ("he came late, and nobody was there", 24, ["he came late,", "and nobody was there"]),
        ("他今天回家很晚，家里没有人在", 10, ["他今天回家很晚，", "家里没有人在"]),
        ("one two three four five six", 14, ["one two three", "four five six"]),
        ("共有1,234,567人", 10, ["共有", "1,234,567人"]),
        ("这是international的", 14, ["这是", "international的"]),
        ("《一二三四五六》七八九十", 7, ["《一二三四五", "六》七八九十"]),
        ("abcdefghij", 4, ["abc", "def", "ghij"]),
        ("12:30 and 13:45", 9, ["12:30 and", "13:45"]),
    ],
)  # fmt: skip
def test_where_a_long_sentence_is_cut(text, limit, pieces):
    assert texts(text, limit) == pieces


@pytest.mark.parametrize("limit", range(1, 12))
@pytest.mark.parametrize("grapheme", ["👨‍👩‍👧", "🇩🇪", "👍🏽", "e\u0301", "한", "❤️"])
def test_graphemes_stay_whole(grapheme, limit):
    for text in (f"a{grapheme}" * 9, f"{grapheme}a{grapheme}" * 5, f"好{grapheme}。" * 9):
        rest = [piece.replace(grapheme, "") for piece in texts(text, limit)]
        assert all(set(piece) <= set("a好。") for piece in rest)


def test_marks_are_not_spoken_alone():
    assert texts("***\n\nTitle.\n\n---\n\n!!!\n\nBody.", 50) == [
        "***\n\nTitle.\n\n---\n\n!!!",
        "Body.",
    ]
    assert texts("好" + "！" * 300, 100) == ["好" + "！" * 300]
    assert texts("。。。", 2) == ["。。。"]
    assert texts("😀😂", 1) == ["😀😂"]


def test_nothing_to_say():
    assert split_sentences("", 10) == split_sentences(" \n\u3000\t", 10) == []


def test_spans_are_of_the_original():
    assert split_sentences("  你好 😀。\n\nBye. ", 50) == [
        Sentence("你好 😀。", 2, 7),
        Sentence("Bye.", 9, 13),
    ]


def test_half_a_surrogate_pair_is_kept():
    assert texts("a\ud800b. \udc00c", 50) == ["a\ud800b. \udc00c"]


@pytest.mark.parametrize("limit", [0, -1, 1.5, "20", None, True])
def test_a_limit_that_cannot_be_used(limit):
    with pytest.raises(UserError, match="1 or more"):
        split_sentences("a", limit)


@pytest.mark.parametrize(
    "unit",
    ["今天天气很好。", "没有标点", "Dr. Smith is here. ", "a", "“", "(", "!\n", "\n", "🇩🇪",
     "a\u0301", "a，", "e.g. ", "a\n\n", " ", "1.", "\u200d"],
)  # fmt: skip
def test_time_is_linear(unit):
    text = unit * (200_000 // len(unit))
    for limit in (20, 200, 1_000_000):
        start = time.perf_counter()
        split_sentences(text, limit)
        # A second here; a loop over the rest of the text in each step takes minutes.
        assert time.perf_counter() - start < 15


def test_a_large_limit_takes_no_longer():
    """Pieces that grow are not measured anew with each sentence."""
    text = "Hi. " * 10_000
    start = time.process_time()
    pieces = split_sentences(text, 5000, shortest=25)
    assert time.process_time() - start < 5  # 0.5 s; 20 s when it was quadratic
    assert "".join(piece.text for piece in pieces).replace(" ", "") == text.replace(" ", "")
