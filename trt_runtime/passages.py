"""What of a text is spoken at a time: all of it, or sentence by sentence if it is long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trt_runtime.audio_description import Music, SoundEvent
from trt_runtime.dialogue import Dialogue, Turn, speakers_in_raw_text
from trt_runtime.prompt import (
    SPEECH_PROMPT,
    describes_music,
)
from trt_runtime.request import Request
from trt_runtime.sentences import split_sentences
from trt_runtime.spoken_text import check_text

#: Letters' width below which a sentence is spoken with its neighbour: the reference's models never
#: stop before 1.6 s, which is about this much, and fill the rest with whatever comes.
SHORTEST_SENTENCE = 25


@dataclass(frozen=True)
class Passage:
    """What is spoken at a time, normalised where asked for.

    `start` and `end` are its characters in the request's text as given; of a dialogue or a
    description, in the text that it becomes.
    """

    text: str
    start: int
    end: int


def passages(request: Request) -> list[Passage]:
    """The passages of `request`, in order; raises UserError where one cannot be normalised."""
    return list(_passages(request))


def _passages(request: Request) -> Iterator[Passage]:
    content, limit = request.text, request.split_limit
    if isinstance(content, Music | SoundEvent):
        yield _whole(content.text())
    elif isinstance(content, Dialogue):
        turns = (Turn(turn.speaker, _spelled(turn.text, request)) for turn in content.turns)
        yield _whole(Dialogue(tuple(turns)).text())
    elif _is_description(content, request):
        yield _whole(content)
    elif limit is None or len(content) <= limit or speakers_in_raw_text(content):
        yield Passage(_spelled(content, request), 0, len(content))
    else:
        for sentence in split_sentences(content, limit, shortest=SHORTEST_SENTENCE):
            yield Passage(_spelled(sentence.text, request), sentence.start, sentence.end)


def _whole(text: str) -> Passage:
    return Passage(text, 0, len(text))


def _is_description(text: str, request: Request) -> bool:
    """Whether a string is one of the reference's own descriptions: it is neither spelled nor split.

    What another prompt than speech asks for is not known, and left as it is.
    """
    return request.use.prompt != SPEECH_PROMPT or describes_music(text)


def _spelled(text: str, request: Request) -> str:
    if not request.normalize:
        return text
    from trt_runtime.text_normalization import spell_out

    return check_text(spell_out(text), "the normalised text")
