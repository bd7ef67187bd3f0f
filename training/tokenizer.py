"""The demonstration voice's tokenizer.json: bytes, the released control tokens, and a normaliser.

The voice has seen lower case and few marks. What else a text may have is made of those in the
tokenizer itself, so that every program that reads the file treats it alike. The sentences that the
prompt grammar writes every time are one byte each: no prompt spends a hundred tokens on them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from export.synthetic import write_byte_tokenizer
from export.whole_file import write_json
from trt_runtime.manifest import TOKENIZER
from trt_runtime.prompt import SPEECH_PROMPT, TEXT_INPUT
from trt_runtime.text_tokenizer import TextTokenizer

#: Written by the grammar of Ming-omni-tts; bytes that no text has stand for them.
GRAMMAR_PIECES = (
    SPEECH_PROMPT,
    "system\nYou are a helpful assistant.",
    TEXT_INPUT,
    "assistant\n",
    "user\n",
    "  speaker_",
)
_SPEAKER = chr(1 + GRAMMAR_PIECES.index("  speaker_"))
#: Numbers are put in words, but for the grammar's "speaker_1" to "speaker_99".
_NOT_SPEAKER = f"(?<!{_SPEAKER})(?<!{_SPEAKER}\\d)"
_BEGINS = f"{_NOT_SPEAKER}(?<!\\d)"
_ENDS = "(?!\\d)"
_ONES = "zero one two three four five six seven eight nine".split()
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"
).split()
_ORDINAL_ENDS = "(?:st|nd|rd|th)\\b"
#: Decimals that are read one by one; no text has more.
_DECIMALS = 9


def _numbers() -> Iterator[tuple[str, str]]:
    """Numbers in words: up to 9999 as one number or a year, longer ones digit by digit."""
    yield f"(?<=\\d),000,000{_ENDS}", " million"
    yield f"(?<=\\d),000{_ENDS}", " thousand"
    yield f"(?<=\\d),(?=\\d{{3}},\\d{{3}}{_ENDS})", " million "
    yield f"(?<=\\d),(?=\\d{{3}}{_ENDS})", " thousand "
    yield "(?<=\\d)\\.(?=\\d)", " point "
    for count in range(1, _DECIMALS):
        # Nothing is replaced: a space comes between two decimals.
        yield "(?<= point" + " \\d" * count + ")(?=\\d)", " "
    yield "(?<=\\d):(?=\\d)", " "
    for digit, word in enumerate(_TENS, 2):
        yield f"{_BEGINS}{digit}0{_ORDINAL_ENDS}", f"{word[:-1]}ieth"
        yield f"{_BEGINS}{digit}(?=[1-9]{_ORDINAL_ENDS})", f"{word} "
    for number, word in enumerate(_ORDINALS, 1):
        yield f"{_BEGINS}{number}{_ORDINAL_ENDS}", word
    # What is left of a number is in words from here on, so a space stands before its other digits.
    for number, word in enumerate([*_TEENS[1:], "twenty"], 11):
        yield f"{_BEGINS}{number}(?=[1-9]\\d{_ENDS})", f"{word} "
        if number < 20:
            yield f"{_BEGINS}{number}(?=0[1-9]{_ENDS})", f"{word} oh "
            yield f"{_BEGINS}{number}00{_ENDS}", f"{word} hundred"
    for digit, word in enumerate(_ONES[1:], 1):
        yield f"{_BEGINS}{digit}(?=\\d{{3}}{_ENDS})", f"{word} thousand "
    yield f"(?<= oh )0(?=[1-9]{_ENDS})", ""
    yield f"(?<=thousand )0{{3}}{_ENDS}", ""
    yield f"(?<=thousand )0{{1,2}}(?=[1-9]\\d?{_ENDS})", ""
    for digit, word in enumerate(_ONES[1:], 1):
        yield f"{_BEGINS}{digit}(?=\\d{{2}}{_ENDS})", f"{word} hundred "
    yield f"(?<=hundred )00{_ENDS}", ""
    yield f"(?<=hundred )0(?=[1-9]{_ENDS})", ""
    for number, word in enumerate(_TEENS, 10):
        yield f"{_BEGINS}{number}{_ENDS}", word
    for digit, word in enumerate(_TENS, 2):
        yield f"{_BEGINS}{digit}0{_ENDS}", word
        yield f"{_BEGINS}{digit}(?=[1-9]{_ENDS})", f"{word} "
    for digit, word in enumerate(_ONES):
        yield f"{_BEGINS}{digit}{_ENDS}", word
    for digit, word in enumerate(_ONES):
        yield f"{_NOT_SPEAKER}{digit}", f"{word} "


#: (regular expression, what is read instead), in this order.
READ_AS = (
    ("[’‘`]", "'"),
    ('[“”„«»"()\\[\\]{}<>*_#~^|\\\\]', ""),
    ("\\s*[—–]\\s*", ", "),
    ("…|\\.{2,}", "."),
    ("\\bMr\\.", "mister"),
    ("\\bMrs\\.", "missus"),
    ("\\bDr\\.", "doctor"),
    ("&", " and "),
    ("%", " percent"),
    ("\\+", " plus "),
    ("=", " equals "),
    ("@", " at "),
    ("°", " degrees"),
    ("/", " "),
    *_numbers(),
    (" {2,}", " "),
    (" +(?=[,.!?;:]|$)", ""),
)


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json into `folder`."""
    write_byte_tokenizer(folder, vocab_size)
    path = folder / TOKENIZER
    data = json.loads(path.read_text(encoding="utf-8"))
    data["normalizer"] = {"type": "Sequence", "normalizers": _normalizers()}
    write_json(path, data)


def demonstration_tokenizer(vocab_size: int) -> TextTokenizer:
    """The tokenizer that :func:`write_tokenizer` writes, as the runtime reads it."""
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), vocab_size)
        return TextTokenizer.load(Path(folder) / TOKENIZER)


def _normalizers() -> list[dict[str, Any]]:
    def replace(kind: str, pattern: str, content: str) -> dict[str, Any]:
        return {"type": "Replace", "pattern": {kind: pattern}, "content": content}

    return [
        # café is spoken as cafe: accents become marks of their own, and go.
        {"type": "NFD"},
        {"type": "StripAccents"},
        *(replace("String", text, chr(i)) for i, text in enumerate(GRAMMAR_PIECES, 1)),
        *(replace("Regex", pattern, content) for pattern, content in READ_AS),
        {"type": "Lowercase"},
    ]
