"""Long text in pieces that are spoken one after another, none longer than a limit.

Where sentences end is decided by `sentencex` (rules and lists of abbreviations, no model). This
file puts short neighbours together and cuts what is too long where a speaker would breathe.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trt_runtime.errors import UserError
from trt_runtime.printable import shown

#: Characters given to the splitter at once; its time grows with the square of a paragraph.
_WINDOW = 2000

_LINE_BREAK = re.compile(r"\r\n?|[\n\x0b\x0c\x85\u2028\u2029]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
#: Marks that close what stands before them, and so never begin a piece.
_CLOSING = "”’」』）】》〉〕…~～.!?。！？，、；：;:,"
#: A pause inside a sentence, with the quotes or brackets that end there. A mark of ASCII is a pause
#: only before white space or an East Asian character: not in 1,000 and 8:30.
_CLAUSE_END = re.compile(
    r"(?:[，、；：。！？…]+|—+|[,;:!?]+(?=[\s\u2e80-\uffef]))[”’」』）】》\"')\]]*"
)
#: Scripts written without spaces, and emoji: a piece may end next to any of these.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2600-\u27bf\u2e80-\uabff\uf900-\ufaff\uff66-\uff9f"
    "\U0001f000-\U0001faff\U00020000-\U0003ffff]"
)


@dataclass(frozen=True)
class Sentence:
    """A piece of a text: `text` is original[start:end], without white space around it."""

    text: str
    start: int
    end: int


def split_sentences(text: str, limit: int, *, shortest: int | None = None) -> list[Sentence]:
    """`text` as pieces of at most `limit` characters, in order; every non-space is in one of them.

    A piece ends where a sentence or line ends. Pieces of one paragraph (lines without a blank line
    between them) are put together where one of them has fewer than `shortest` letters' width, an
    East Asian letter being three wide, for short sentences sound bad alone; None puts together all
    that fit. A longer sentence is cut at the best place near the middle: after a pause mark, else
    at white space, else between letters of a script without spaces, else in a word, never in a
    grapheme. A piece without any letter or digit joins its neighbour. A piece is longer than
    `limit` only where it would otherwise hold nothing to speak (a long run of marks) or half a
    grapheme.

    Time is linear in the length. Raises UserError where `limit` is not a whole number, 1 or more.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise UserError(
            "the limit of a sentence's length cannot be used",
            expected="a whole number of characters, 1 or more",
            found=shown(limit),
            do="give, for example, 200",
        )
    pieces: list[tuple[int, int]] = []
    last_paragraph = -1
    for start, end, paragraph in _speakable_spans(text):
        for part in _cut(text, start, end, limit):
            fits = pieces and paragraph == last_paragraph and part[1] - pieces[-1][0] <= limit
            if fits and _any_short(text, (pieces[-1], part), shortest):
                pieces[-1] = (pieces[-1][0], part[1])
            else:
                pieces.append(part)
            last_paragraph = paragraph
    return [Sentence(text[start:end], start, end) for start, end in pieces]


def _any_short(text: str, spans: Iterable[tuple[int, int]], shortest: int | None) -> bool:
    return shortest is None or any(_is_short(text, start, end, shortest) for start, end in spans)


def _is_short(text: str, start: int, end: int, shortest: int) -> bool:
    """Looks no further than it must: a piece that grows is asked about again and again."""
    width = 0
    for index in range(start, end):
        width += 3 if unicodedata.east_asian_width(text[index]) in "WF" else 1
        if width >= shortest:
            return False
    return True


def _speakable_spans(text: str) -> Iterator[tuple[int, int, int]]:
    """Sentences as (start, end, paragraph), each with something to speak if the text has any."""
    held: tuple[int, int, int] | None = None
    held_speaks = False
    for start, end, paragraph in _sentence_spans(text):
        speaks = any(map(str.isalnum, text[start:end]))
        if held is None:
            held, held_speaks = (start, end, paragraph), speaks
        elif not speaks:
            held = (held[0], end, held[2])
        elif not held_speaks:
            held, held_speaks = (held[0], end, paragraph), True
        else:
            yield held
            held = (start, end, paragraph)
    if held is not None:
        yield held


def _sentence_spans(text: str) -> Iterator[tuple[int, int, int]]:
    """Sentences as (start, end, paragraph) without white space around them."""
    paragraph = 0
    for start, end in _line_spans(text):
        if not text[start:end].strip():
            paragraph += 1
            continue
        previous = start
        for boundary in _boundaries(text, start, end):
            span = _stripped(text, previous, boundary)
            previous = boundary
            if span:
                yield *span, paragraph


def _line_spans(text: str) -> Iterator[tuple[int, int]]:
    """Lines without their ends. A wrapped line, where the next one goes on in the middle of a
    sentence with a small letter, is one line with its next."""
    start = 0
    for match in _LINE_BREAK.finditer(text):
        before, after = (
            text[max(match.start() - 1, start) : match.start()],
            text[match.end() : match.end() + 1],
        )
        if after.islower() and (before.isalpha() or before in {",", ";"}):
            continue
        yield start, match.start()
        start = match.end()
    yield start, len(text)


def _boundaries(text: str, start: int, end: int) -> Iterator[int]:
    """Where sentences of a line end, the line's own end included.

    The splitter sees a window at a time. All but the last of the window's sentences are whole; the
    last one is seen again at the beginning of the next window.
    """
    # Imported here: `import trt_runtime` does not load it for those who speak short texts.
    from sentencex import segment

    while start < end:
        stop = min(start + _WINDOW, end)
        # Half a surrogate pair is no text for the splitter; the length stays.
        window = _SURROGATE.sub("\ufffd", text[start:stop])
        sentences = segment("en", window)
        if "".join(sentences) != window:
            # Spans are counted from the sentences, so none may differ from the text.
            sentences = [window]
        if stop == end or len(sentences) == 1:
            ends = sentences if stop == end else []
            following = stop
        else:
            ends = sentences[:-1]
            following = stop - len(sentences[-1])
        for sentence in ends:
            start += len(sentence)
            # A mark with an accent or a variation selector is no end to the splitter's rules.
            if start == end or not _is_one_grapheme(text[start - 1], text[start]):
                yield start
        start = following


def _cut(text: str, start: int, end: int, limit: int) -> Iterator[tuple[int, int]]:
    """The span in parts of at most `limit` characters where that can be."""
    if end - start > limit:
        letters = [i for i in range(start, end) if text[i].isalnum()]
        for letter in letters:
            if letter < start:
                continue
            if end - start <= limit:
                break
            place = _place(text, start, end, limit, range(letter + 1, letters[-1] + 1))
            if place is None:
                break
            yield start, start + len(text[start:place].rstrip())
            start = place
            while text[start].isspace():  # a letter follows
                start += 1
    yield start, end


def _place(text: str, start: int, end: int, limit: int, allowed: range) -> int | None:
    """Where to end the first part of a span: in `allowed`, within `limit` if that can be, or None.

    Best is the kind of place, then how near it is to parts of equal length. A very short part is
    only made where nothing else saves a word, or where the rest then fits.
    """
    stop = min(start + limit, allowed.stop - 1)
    graphemes = [i for i in _grapheme_ends(text, start, stop) if i in allowed]
    if not graphemes:
        # Marks without end, or one grapheme longer than the limit.
        return next(
            (i for i in _grapheme_ends(text, start, allowed.stop - 1) if i in allowed), None
        )
    clauses = {match.end() for match in _CLAUSE_END.finditer(text, start, stop + 1)}
    kinds = (
        [i for i in graphemes if i in clauses],
        [i for i in graphemes if text[i].isspace()],
        [i for i in graphemes if _is_between_letters(text, i)],
    )
    long_enough = start + limit // 4
    last_start = end - limit
    for places in (
        *([i for i in kind if i >= long_enough or i >= last_start] for kind in kinds),
        *kinds,
        graphemes,
    ):
        if places:
            parts = -(-(end - start) // limit)
            target = start + (end - start) / parts
            return min(places, key=lambda place: abs(place - target))
    return None


def _is_between_letters(text: str, index: int) -> bool:
    """Whether `index` is in no word or number, and has no mark on the wrong side."""
    return (
        bool(_UNSPACED.match(text[index]) or _UNSPACED.match(text[index - 1]))
        and text[index] not in _CLOSING
        and unicodedata.category(text[index - 1]) not in ("Ps", "Pi")
    )


def _grapheme_ends(text: str, start: int, stop: int) -> Iterator[int]:
    """Where graphemes end after `start` up to `stop`: those cases of UAX #29 found in speech."""
    flag_letters = 0
    for index in range(start + 1, min(stop, len(text) - 1) + 1):
        before, after = text[index - 1], text[index]
        flag_letters = flag_letters + 1 if _is_flag_letter(before) else 0
        if not (_is_one_grapheme(before, after) or (flag_letters % 2 and _is_flag_letter(after))):
            yield index


def _is_one_grapheme(before: str, after: str) -> bool:
    code = ord(after)
    return (
        before == "\u200d"
        or after == "\u200d"
        or unicodedata.category(after)[0] == "M"
        or 0x1F3FB <= code <= 0x1F3FF  # skin tones
        or 0xE0020 <= code <= 0xE007F  # the tags of some flags
        or 0x1160 <= code <= 0x11FF  # vowels and finals of Hangul
    )


def _is_flag_letter(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _stripped(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The span without white space around it, None where nothing is left."""
    piece = text[start:end]
    bare = piece.strip()
    if not bare:
        return None
    start += len(piece) - len(piece.lstrip())
    return start, start + len(bare)
