"""What of a text is spoken at a time, and where in the text as given it lies."""

from __future__ import annotations

from typing import Any

import pytest

from trt_runtime import (
    MUSIC_PROMPT,
    SOUND_EVENT_PROMPT,
    SPEECH_PROMPT,
    Dialogue,
    Instruction,
    Music,
    SoundEvent,
)
from trt_runtime.errors import UserError
from trt_runtime.passages import Passage, passages
from trt_runtime.request import SPLIT_LIMIT, Request

ENGLISH = "The first sentence of all. Here is the second one, longer than it. And a third!"
CHINESE = "今天天气很好，我们去公园吧。明天会下雨，所以不去了！你说呢？"
LINES = "  A heading\n\nDr. Smith paid $3.50 at 5 p.m. on Monday.\n\n\tThe end…  \n"
RAW_DIALOGUE = " speaker_1:First I say this.\n speaker_2:Then you say that. And more.\n"
RAW_MUSIC = " Genre: jazz. Mood: calm. Instrument: piano. Theme: rain. Duration: 30s."


def of(text: Any, **options: Any) -> list[Passage]:
    return passages(Request(text, **options))


def assert_whole(text: str, found: list[Passage]) -> None:
    """In order, each the text's own characters, and nothing but white space in none of them."""
    end = 0
    for passage in found:
        assert passage.text == text[passage.start : passage.end] == passage.text.strip() != ""
        assert not text[end : passage.start].strip()
        end = passage.end
    assert not text[end:].strip()


@pytest.mark.parametrize("limit", [20, 30, 60])
@pytest.mark.parametrize("text", [ENGLISH, CHINESE * 3, LINES, ENGLISH * 40, "x" * 500])
def test_a_long_text_is_split(text: str, limit: int) -> None:
    found = of(text, split_limit=limit)
    assert len(found) > 1
    assert all(len(passage.text) <= limit for passage in found)
    assert_whole(text, found)


@pytest.mark.parametrize("text", [ENGLISH, CHINESE, LINES, "x", " x ", "…"])
def test_a_text_within_the_limit_is_spoken_as_it_is(text: str) -> None:
    """White space included: the reference speaks it so."""
    whole = [Passage(text, 0, len(text))]
    assert of(text) == whole
    assert of(text, split_limit=max(20, len(text))) == whole
    assert of(text * 200, split_limit=None) == [Passage(text * 200, 0, 200 * len(text))]


def test_the_limit_itself_is_not_split() -> None:
    assert len(of(ENGLISH, split_limit=len(ENGLISH))) == 1
    assert len(of(ENGLISH, split_limit=len(ENGLISH) - 1)) == 2


def test_the_default_limit() -> None:
    text = "Word after word. " * 20
    assert len(of(text[:SPLIT_LIMIT])) == 1
    assert len(of(text[: SPLIT_LIMIT + 3])) == 2
    assert len(of(text)) == -(-len(text) // SPLIT_LIMIT)


@pytest.mark.parametrize("text", ["…" * 300, "!?" * 150, "😀" * 250, "\u3000a" * 150])
def test_odd_texts_are_spoken_too(text: str) -> None:
    found = of(text)
    assert found
    assert_whole(text, found)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (RAW_DIALOGUE * 5, {}),
        (RAW_DIALOGUE * 5, {"prompt": SPEECH_PROMPT}),
        (RAW_MUSIC, {"prompt": MUSIC_PROMPT}),
        (RAW_MUSIC, {}),
        (ENGLISH, {"prompt": MUSIC_PROMPT}),
        (ENGLISH, {"prompt": SOUND_EVENT_PROMPT}),
        (ENGLISH, {"prompt": "Please sing.\n"}),
        (ENGLISH, {"prompt": ""}),
    ],
)
def test_what_has_a_form_to_keep_is_never_split(text: str, options: dict[str, Any]) -> None:
    assert of(text, split_limit=20, **options) == [Passage(text, 0, len(text))]


@pytest.mark.parametrize(
    "text",
    [
        "It says speaker_1:hello. And then something else.",
        "speaker_1:not as the reference writes it. And more of it.",
        "Genre: none. Mood: calm. But no other of the labels.",
        "Please generate music based on the following description.\n And speak it.",
    ],
)
def test_what_only_looks_alike_is_split(text: str) -> None:
    assert len(of(text, split_limit=30)) > 1
    assert len(of(text, split_limit=30, prompt=SPEECH_PROMPT)) > 1


def test_an_instruction_does_not_keep_a_text_whole() -> None:
    assert len(of(ENGLISH, split_limit=30, instruction=Instruction(emotion="高兴"))) == 3


def test_descriptions_and_dialogues_are_one_passage() -> None:
    music = Music(genre="jazz", mood="calm", instrument="piano", theme="rain", duration=30)
    turns = Dialogue.from_any([("anna", ENGLISH), ("ben", ENGLISH)])
    for content in (music, SoundEvent(ENGLISH), turns):
        text = content.text()
        assert of(content, split_limit=20) == [Passage(text, 0, len(text))]
    assert of([("anna", "Hm."), ("ben", "Ha.")])[0].text == " speaker_1:Hm.\n speaker_2:Ha.\n"


# Normalised.


@pytest.fixture
def spelled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In place of the library: digits are spelled out, a word is dropped. Returns what it saw."""
    seen: list[str] = []

    def normalize(text: str) -> str:
        seen.append(text)
        return text.replace("3", "three").replace("(aside)", "")

    monkeypatch.setattr("trt_runtime.text_normalization.spell_out", normalize)
    return seen


NUMBERS = "He had 3 of 333 reasons (aside). She had 33. They were not the same 3 at all."


def test_places_are_those_of_the_text_as_given(spelled: list[str]) -> None:
    plain = of(NUMBERS, split_limit=35)
    found = of(NUMBERS, split_limit=35, normalize=True)
    assert len(found) == 3
    assert [(p.start, p.end) for p in found] == [(p.start, p.end) for p in plain]
    assert [passage.text for passage in plain] == spelled, "spelled before it was split"
    assert [passage.text for passage in found] == [
        text.replace("3", "three").replace("(aside)", "") for text in spelled
    ]
    assert max(len(passage.text) for passage in found) > 35, "the limit is that of the text given"


def test_a_short_text_is_normalised_whole(spelled: list[str]) -> None:
    assert of("3 (aside)", normalize=True) == [Passage("three ", 0, 9)]
    assert spelled == ["3 (aside)"]


def test_without_normalize_nothing_is_touched(spelled: list[str]) -> None:
    of(NUMBERS, split_limit=35)
    of(NUMBERS)
    of([("anna", "3"), ("ben", "33")])
    assert spelled == []


def test_descriptions_are_not_normalised(spelled: list[str]) -> None:
    music = Music(genre="3", mood="calm", instrument="piano", theme="rain", duration=3)
    for content in (music, SoundEvent("3 bells")):
        with pytest.raises(UserError, match="nothing of it is spoken"):
            of(content, normalize=True)
        assert of(content)[0].text == content.text()
    assert spelled == []


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (RAW_MUSIC, {"prompt": MUSIC_PROMPT}),
        (RAW_MUSIC, {}),
        (f" speaker_1:3 bells.\n speaker_2:{'33'}.\n", {}),
    ],
    ids=["music", "music under another prompt", "dialogue"],
)
def test_the_form_of_raw_strings_survives(
    spelled: list[str], text: str, options: dict[str, Any]
) -> None:
    """Spelling out "Duration: 30s" or "speaker_1" would make it another kind of text."""
    (found,) = of(text, normalize=True, **options)
    for label in (" Duration: 30s", " speaker_1:", " speaker_2:"):
        assert (label in text) == (label in found.text)


def test_turns_are_normalised_one_by_one(spelled: list[str]) -> None:
    (found,) = of([("anna", "3 bells"), ("ben", "33")], normalize=True)
    assert found.text == " speaker_1:three bells\n speaker_2:threethree\n"
    assert (found.start, found.end) == (0, len(found.text))


def test_what_is_normalised_away_is_an_error(spelled: list[str]) -> None:
    with pytest.raises(UserError, match="normalised text is blank"):
        of("(aside)", normalize=True)


def test_the_library_itself() -> None:
    """Where it is installed; another test holds what it writes."""
    text = "I paid $3.50 in 2024, at the age of 21. 我今年25岁，他3月1日出生。"
    found = of(text, split_limit=45, normalize=True)
    assert len(found) == 2
    assert_whole(text, of(text, split_limit=45))
    assert not any(character.isdigit() for passage in found for character in passage.text)
