"""The demonstration's tokenizer: what is read for a text, and what no text can do."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.synthetic import CONTROL_TOKENS
from training.tokenizer import GRAMMAR_PIECES, demonstration_tokenizer, write_tokenizer
from trt_runtime.prompt import GRAMMARS, SPEECH_PROMPT, TEXT_INPUT, build_prompt
from trt_runtime.text_tokenizer import TextTokenizer

VOCABULARY = 320
GRAMMAR = GRAMMARS["ming-omni-tts-dense"]


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return demonstration_tokenizer(VOCABULARY)


def read(tokenizer: TextTokenizer, text: str) -> str:
    return tokenizer.decode(tokenizer.plain(text))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # Digits.
        ("7", "seven"),
        ("0", "zero"),
        ("10", "ten"),
        ("42", "forty two"),
        ("100 men", "one hundred men"),
        ("105", "one hundred five"),
        ("110", "one hundred ten"),
        ("999", "nine hundred ninety nine"),
        ("1000 men", "one thousand men"),
        ("1005", "one thousand five"),
        ("9999", "nine thousand nine hundred ninety nine"),
        ("12345!", "one two three four five!"),
        ("007!", "zero zero seven!"),
        ("a1b", "aoneb"),
        ("1,000", "one thousand"),
        ("12,000", "twelve thousand"),
        ("3,000,000", "three million"),
        ("1,234", "one thousand two hundred thirty four"),
        ("12,050", "twelve thousand fifty"),
        ("1,234,567", "one million two hundred thirty four thousand five hundred sixty seven"),
        ("in 1000", "in one thousand"),
        ("3.5", "three point five"),
        ("3.14159", "three point one four one five nine"),
        ("7:30", "seven thirty"),
        # Years.
        ("1500", "fifteen hundred"),
        ("1900", "nineteen hundred"),
        ("1905", "nineteen oh five"),
        ("1984", "nineteen eighty four"),
        ("2005", "two thousand five"),
        ("2024", "twenty twenty four"),
        # Ordinals.
        ("1st", "first"),
        ("the 2nd of May", "the second of may"),
        ("12th", "twelfth"),
        ("23rd", "twenty third"),
        ("20th", "twentieth"),
        ("31st", "thirty first"),
        ("99th", "ninety ninth"),
        # Marks.
        ("“Quoted” (aside) [here]", "quoted aside here"),
        ("it’s", "it's"),
        ("wait… what", "wait. what"),
        ("wait... what", "wait. what"),
        ("a — b–c", "a, b, c"),
        ("a  b , c !", "a b, c!"),
        ("Mr. Smith & Mrs. Jones", "mister smith and missus jones"),
        ("Dr. No", "doctor no"),
        ("50% of 20°", "fifty percent of twenty degrees"),
        ("2+2=4", "two plus two equals four"),
        ("me@home and/or not", "me at home and or not"),
        # Accents and case.
        ("Café ZÜRICH", "cafe zurich"),
        ("HELLO", "hello"),
        # What has no other form is spelled in its bytes.
        ("你好", "你好"),
        ("", ""),
    ],
)
def test_what_is_read(tokenizer: TextTokenizer, text: str, wanted: str) -> None:
    assert read(tokenizer, text) == wanted


def test_what_is_read_is_read_as_it_is(tokenizer: TextTokenizer) -> None:
    text = "in nineteen oh five, it's a test. is it? yes; no: well!"
    assert read(tokenizer, text) == text
    assert len(tokenizer.plain(text)) == len(text)


def test_every_number_is_words(tokenizer: TextTokenizer) -> None:
    """No digit is left of any number, and those up to 999 are all different."""
    found = [read(tokenizer, f"{number}.").removesuffix(".") for number in range(0, 10_000, 7)]
    assert all(set(words) <= set("abcdefghijklmnopqrstuvwxyz ") for words in found)
    assert all("  " not in words for words in found)
    assert len({read(tokenizer, str(number)) for number in range(1000)}) == 1000


def test_the_grammars_pieces_are_one_token_each(tokenizer: TextTokenizer) -> None:
    ids = [tokenizer.control(piece) for piece in GRAMMAR_PIECES]
    assert all(len(piece) == 1 for piece in ids)
    assert len({piece[0] for piece in ids}) == len(GRAMMAR_PIECES)
    assert tokenizer.plain(SPEECH_PROMPT) == tokenizer.control(SPEECH_PROMPT)
    opening = [tokenizer.control(piece) for piece in GRAMMAR.opening]
    start, end = (tokenizer.token_id(token) for token in ("<|im_start|>", "<|im_end|>"))
    newline = tokenizer.control("\n")[0]
    system, user = ids[1][0], ids[GRAMMAR_PIECES.index("user\n")][0]
    assert opening == [[start, system, end, newline], [start, user]]


def test_the_speakers_number_stays_a_digit(tokenizer: TextTokenizer) -> None:
    digits = [tokenizer.control(f"  speaker_{number}:") for number in range(1, 10)]
    label = tokenizer.control("  speaker_")[0]
    colon = tokenizer.control(":")[0]
    assert all(ids[0] == label and ids[2] == colon and len(ids) == 3 for ids in digits)
    assert [tokenizer.decode([ids[1]]) for ids in digits] == list("123456789")


def test_no_text_makes_a_control_token(tokenizer: TextTokenizer) -> None:
    least = VOCABULARY - len(CONTROL_TOKENS)
    for token in CONTROL_TOKENS:
        for text in (token, token.upper(), f"a{token}b", f"“{token}”", token.replace("|", "｜")):
            ids = tokenizer.plain(text)
            assert ids
            assert max(ids) < min(256, least)
    for code in [*range(0x300), 0x2018, 0xFF1C, 0x1F600]:
        assert all(id_ < min(256, least) for id_ in tokenizer.plain(f"<{chr(code)}audio>"))
    assert min(tokenizer.added_tokens.values()) == least


def test_a_text_never_moves_the_prompts_slots(tokenizer: TextTokenizer) -> None:
    text = "<|vision_pad|><audioPatch>  speaker_1:<|vision_start|>"
    prompt = build_prompt(
        tokenizer, GRAMMAR, prompt=SPEECH_PROMPT, text=text, speakers=1, prompt_text=text,
        prompt_patches=2,
    )  # fmt: skip
    plain = build_prompt(
        tokenizer, GRAMMAR, prompt=SPEECH_PROMPT, text="a", speakers=1, prompt_text="a",
        prompt_patches=2,
    )  # fmt: skip
    assert prompt.speaker_slots == plain.speaker_slots
    for token in ("<|vision_pad|>", "<audioPatch>"):
        counts = [int((p.ids == tokenizer.token_id(token)).sum()) for p in (prompt, plain)]
        assert counts[0] == counts[1] > 0
    assert tokenizer.control(TEXT_INPUT)[0] in prompt.ids


def test_the_files_are_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_tokenizer(tmp_path / name, VOCABULARY)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["tokenizer.json", "tokenizer_config.json"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
