"""Spelling out numbers, dates, times, money, units, telephone numbers and addresses.

The grammars are those of `wetext` (WeTextProcessing's transducers, shipped in its wheel; nothing is
ever downloaded). It is given only clauses that hold a digit, so nothing else of a text can change.
The tables of :mod:`trt_runtime.normalization_rules` are what it gets wrong;
`docs/text-normalization.md` says why and lists every difference to the reference's own rules.
Languages that are neither Chinese nor English are left alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from threading import Lock
from typing import Any

from trt_runtime.errors import UserError
from trt_runtime.normalization_rules import (
    CHINESE,
    ENGLISH,
    FULL_WIDTH,
    HAN,
    KEPT_WHOLE,
    MONTHS,
    OTHER_LANGUAGE,
    TOP_LEVEL_DOMAINS,
    Language,
    Rule,
)

#: Beyond this many characters a clause is cut, which bounds the transducer's memory.
_LONGEST_CLAUSE = 300

_ENDS = re.compile(r"[^。！？!?；;\n]*?(?:[。！？!?；;\n]+|\.(?=\s)|\Z)")
_CHINESE = re.compile(rf"[{HAN}，。；、！？：]")
_KANA = re.compile(r"[\u3041-\u30fa\u30fd-\u30ff]")
_WORD = re.compile(r"[A-Za-z]+")
_MONTHS = frozenset(MONTHS.split("|"))
_ENGLISH_WORD = re.compile(r"[A-Za-z]{2,}")
#: Two letters or more that are not part of a unit or code such as 5kg.
_LATIN_WORD = re.compile(r"(?<![^\W_])[A-Za-zÀ-ÖØ-öø-ɏ]{2,}(?![^\W_])")
_SPELLABLE = re.compile(rf"[0-9０-９@㎡㎥,!?]|www\.|://|\.(?:{TOP_LEVEL_DOMAINS})(?![a-z])")


def spell_out(text: str) -> str:
    """`text` with what is not written as it is said written out; blank text comes back as it is.

    A line with Han characters or Chinese punctuation is Chinese, though a sentence of it that is
    English (three words or more, none of them Han) follows English rules; another line of Latin
    words is English; a line without words goes with the line before, else the one after, else it is
    Chinese. Lines with kana or mostly of another script are left alone. Nothing is dropped: line
    ends, spaces, quotes, emoji, speaker labels and control tokens stay. Deterministic; may be
    called from several threads.

    Raises UserError where wetext is not installed and the text holds something to spell out.
    """
    if not text.strip():
        return text
    lines = text.splitlines(keepends=True)
    return "".join(
        _spell(passage, language)
        for line, of_line in zip(lines, _languages(lines), strict=True)
        for passage, language in _passages(line, of_line)
    )


def _languages(lines: list[str]) -> Iterator[Language]:
    """The language of each line."""
    found = [_language(line.translate(FULL_WIDTH)) for line in lines]
    last = next((language for language in found if language), CHINESE)
    for language in found:
        last = language or last
        yield last


def _language(line: str) -> Language | None:
    """The language that a line shows, None where it has no words."""
    if _KANA.search(line):
        return OTHER_LANGUAGE
    if _CHINESE.search(line):
        return CHINESE
    latin = sum(map(len, _LATIN_WORD.findall(line)))
    others = sum(c.isalpha() and c > "ɏ" for c in line)
    if others > latin:
        return OTHER_LANGUAGE
    return ENGLISH if latin else None


def _passages(line: str, language: Language) -> Iterator[tuple[str, Language]]:
    """The sentences of a line, each with its language; joined they are the line."""
    if language is not CHINESE:
        yield line, language
        return
    chinese: list[str] = []
    for match in _ENDS.finditer(line):
        sentence = match[0]
        if len(_ENGLISH_WORD.findall(sentence)) > 2 and not _CHINESE.search(sentence):
            yield "".join(chinese), CHINESE
            chinese.clear()
            yield sentence, ENGLISH
        else:
            chinese.append(sentence)
    yield "".join(chinese), CHINESE


def _spell(passage: str, language: Language) -> str:
    """A passage of one language, spelled out."""
    if language is OTHER_LANGUAGE or not _SPELLABLE.search(passage):
        return passage
    passage = passage.translate(FULL_WIDTH)
    parts: list[str] = []
    end = 0
    for match in KEPT_WHOLE.finditer(passage):
        parts.append(_spell_plain(passage[end : match.start()], language))
        address = match["address"]
        parts.append(_spell_address(address, language) if address else match[0])
        end = match.end()
    parts.append(_spell_plain(passage[end:], language))
    return _apply(language.after, "".join(parts))


def _spell_plain(text: str, language: Language) -> str:
    text = _apply(language.before, text)
    return language.clause.sub(lambda match: _spell_clause(match[0], language), text)


def _spell_clause(clause: str, language: Language) -> str:
    """A clause by the grammar, in chunks where it is long."""
    if not any("0" <= character <= "9" for character in clause):
        return clause
    spelled: list[str] = []
    start = 0
    while start < len(clause):
        end = start + _LONGEST_CLAUSE
        if end < len(clause):
            space = clause.rfind(" ", start + 1, end)
            middle = (
                i for i in range(end, end - 50, -1) if not re.search(r"\d", clause[i - 1 : i + 1])
            )
            end = space if space > start else next(middle, end)
        spelled.append(_call(clause[start:end], language))
        start = end
    return "".join(spelled)


def _call(text: str, language: Language) -> str:
    core = text.strip(" ")
    said = _grammar(core, language.code) if core else None
    if not said:
        # The English grammar knows no path through some signs: then word by word, and a word that
        # it refuses stays as it is.
        words = core.split(" ")
        said = " ".join(
            (_grammar(word, language.code) if len(words) > 1 and word else None) or word
            for word in words
        )
    if said == core:
        return text
    return text.replace(core, _apply(language.after_call, _restore_capitals(core, said)), 1)


def _restore_capitals(text: str, said: str) -> str:
    """`said` with the capitals that words of `text` lost: the English grammar folds months.

    A month that `text` abbreviates (Jan) gets one.
    """
    written: dict[str, list[str]] = {}
    for word in _WORD.findall(text):
        written.setdefault(word.lower(), []).append(word)
    spoken = Counter(_WORD.findall(said.lower()))
    seen: Counter[str] = Counter()

    def restored(match: re.Match[str]) -> str:
        word = match[0]
        folded = word.lower()
        words = written.get(folded, [])
        seen[folded] += 1
        if word != folded or not words:
            return word.capitalize() if word in _MONTHS else word
        return words[seen[folded] - 1] if len(words) == spoken[folded] else word

    return _WORD.sub(restored, said)


def _apply(rules: tuple[Rule, ...], text: str) -> str:
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


def _spell_address(address: str, language: Language) -> str:
    """A URL, domain or e-mail address sign by sign, words as they are."""
    gap = language.sign_gap
    said = re.sub(
        r"[^A-Za-z]",
        lambda m: f"{gap}{language.signs.get(m[0]) or language.digits[m[0]]}{gap}",
        address,
    )
    return re.sub(r" {2,}", " ", said).strip(" ")


_lock = Lock()
_loaded: list[Any] = []


def _grammar(text: str, language: str) -> str | None:
    """wetext's reading of `text`, None where its grammar has none."""
    # One call at a time: the transducers are shared, and nobody promises that they may be.
    with _lock:
        if not _loaded:
            _loaded.append(_load())
        try:
            said: str = _loaded[0](text, lang=language, operator="tn")
        except Exception:
            # Its parser asserts on its own tagger's output; which texts do so is not documented.
            return None
    return said or None


def _load() -> Any:
    try:
        from wetext import normalize
    except ImportError as error:
        raise UserError(
            "normalize needs the package wetext, which spells out numbers",
            expected="wetext and the packages it needs",
            found=str(error),
            do="pip install wetext (the extra `text`), or leave normalize out",
        ) from error
    return normalize
