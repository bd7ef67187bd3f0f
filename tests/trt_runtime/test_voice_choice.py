"""Which voices a request names, and which options contradict each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trt_runtime.clones import (
    WORDS,
    A,
    B,
    assert_alike,
    like_speech,
    speak,
)
from trt_runtime import Voice, VoiceStore
from trt_runtime.errors import UserError
from trt_runtime.instruction import Instruction
from trt_runtime.synthesizer import Synthesizer


def test_without_words_it_says_what_to_give(cloner: Synthesizer, silent_voice: Voice) -> None:
    for options in ({"reference": A}, {"voice": A}, {"voice": silent_voice}):
        assert any("reference_text" in warning for warning in speak(cloner, **options).warnings)
    # An instruction is what the reference implementation combines with an embedding alone.
    speech = speak(cloner, reference=A, instruction={"情感": "高兴"})
    assert not any("reference_text" in warning for warning in speech.warnings)


# What contradicts itself.

EMBEDDING = np.full(192, 0.1, np.float32)


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "words alone": ({"reference_text": WORDS}, "there is none"),
    "blank words": ({"reference": A, "reference_text": " \n"}, "reference_text is blank"),
    "words that are none": ({"reference": A, "reference_text": 3}, "reference_text is not text"),
    "words as a list": ({"reference": A, "reference_text": [WORDS]}, "not text"),
    "control characters": ({"reference": A, "reference_text": "a\0"}, "control character"),
    "voice and reference": ({"voice": A, "reference": A}, "voice"),
    "voice and words": ({"voice": A, "reference_text": WORDS}, "voice"),
    "nothing of it used": ({"reference": A, "speaker_embedding": None}, "would be used"),
    "nothing of a voice used": ({"voice": A, "speaker_embedding": None}, "would be used"),
    "zero and reference": ({"reference": A, "speaker_embedding": "zero"}, "zero speaker"),
    "zero and all": (
        {"reference": A, "reference_text": WORDS, "speaker_embedding": "zero"}, "zero speaker"
    ),
    "zero and voice": ({"voice": A, "speaker_embedding": "zero"}, "zero speaker"),
    "two arrays for one": (
        {"reference": A, "reference_text": WORDS, "speaker_embedding": [EMBEDDING] * 2},
        "in number",
    ),
    "one array for two": (
        {"reference": [A, B], "reference_text": WORDS, "speaker_embedding": [EMBEDDING]},
        "in number",
    ),
    "no latents, no embedding": (
        {"reference": A, "reference_text": WORDS, "speaker_embedding": None, "latents": False},
        "Nothing of the reference",
    ),
    "no recording": ({"reference": []}, "empty list"),
    "no recordings": ({"reference": ()}, "empty list"),
    "no such file": ({"reference": "nowhere.wav"}, "cannot be opened"),
    "no such voice file": ({"voice": "nowhere.safetensors"}, r"nowhere\.safetensors"),
    "a name that is none": ({"voice": "a b"}, "No voice can be called"),
    "a number as voice": ({"voice": 3}, "cannot be used"),
    "a number as reference": ({"reference": 3}, "cannot be read"),
    "bytes as reference": ({"reference": b"RIFF"}, "cannot be read"),
    "rate first": ({"reference": (16_000, like_speech(1))}, "swap"),
    "blank words of a voice": ({"voice": (A, "")}, "blank"),
    "posterior": ({"posterior": "median"}, "posterior"),
    "posterior as an array": ({"posterior": np.zeros(2)}, "posterior"),
    "posterior as a list": ({"posterior": ["mean"]}, "posterior"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions(cloner: Synthesizer, case: str) -> None:
    options, match = CONTRADICTIONS[case]
    with pytest.raises(UserError, match=match) as caught:
        speak(cloner, **options)
    assert caught.value.do


@pytest.mark.parametrize(
    "wrong",
    [
        "loud",
        "",
        3,
        True,
        b"zero",
        {"anna": EMBEDDING},
        [],
        np.zeros((0, 192), np.float32),
        np.float32(1),
        np.array(1.0),
        np.zeros(191, np.float32),
        np.zeros((2, 191), np.float32),
        np.zeros((2, 1, 192), np.float32),
        np.zeros(192, np.int64),
        np.zeros(192, np.complex64),
        np.full(192, np.nan, np.float32),
        np.full(192, np.inf, np.float32),
        np.full(192, 1e300),
        [EMBEDDING, None],
        [EMBEDDING, EMBEDDING[:-1]],
        EMBEDDING.tolist(),
        ["zero"],
    ],
    ids=lambda value: f"{type(value).__name__}{getattr(value, 'shape', '')}",
)
def test_embeddings_that_cannot_be_used(cloner: Synthesizer, wrong: Any) -> None:
    for options in ({}, {"reference": A, "reference_text": WORDS}):
        with pytest.raises(UserError, match="speaker_embedding") as caught:
            speak(cloner, speaker_embedding=wrong, **options)
        assert "192" in caught.value.expected or "one a reference" in caught.value.expected


def test_an_array_beside_a_reference_without_words(cloner: Synthesizer) -> None:
    """Then nothing of the reference is used at all, and that is not passed over."""
    with pytest.raises(UserError, match="would be used"):
        speak(cloner, reference=A, speaker_embedding=EMBEDDING)


def test_an_unknown_voice_names_the_nearest(
    cloner: Synthesizer, store: VoiceStore, voice: Voice
) -> None:
    store.add("beatrice", voice, replace=True)
    with pytest.raises(UserError, match="There is no voice beatrix") as caught:
        speak(cloner, voice="beatrix")
    assert "beatrice" in caught.value.do


def test_a_shipped_voice_by_name(
    cloner: Synthesizer, store: VoiceStore, silent_voice: Voice, shipped: Path
) -> None:
    """As the voice itself, until another of the user's has its name; nobody lacks its words."""
    silent_voice.save(shipped / "carol.safetensors")
    speech = speak(cloner, voice="carol")
    assert_alike(speech, speak(cloner, voice=silent_voice))
    assert not any("without the reference's words" in warning for warning in speech.warnings)
    store.add("carol", cloner.encode_voice(B))
    try:
        hidden = speak(cloner, voice="carol")
        assert_alike(hidden, speak(cloner, reference=B))
        assert any("without the reference's words" in warning for warning in hidden.warnings)
    finally:
        store.remove("carol")


@pytest.mark.parametrize("field", [{"ip": "灵小甄"}, {"style": "温柔的女声"}])
def test_styles_without_a_speaker_are_warned_of(cloner: Synthesizer, field: Any) -> None:
    instruction = Instruction(**field)
    warned = [
        any("zero speaker" in warning for warning in speak(cloner, **options).warnings)
        for options in (
            {"instruction": instruction},
            {"instruction": instruction, "speaker_embedding": "zero"},
            {"instruction": instruction, "speaker_embedding": None},
            {"instruction": instruction, "voice": B},
            {"instruction": Instruction(emotion="happy")},
            {"instruction": json.loads(instruction.to_json())["audio_sequence"][0]},
        )
    ]
    assert warned == [True, False, False, False, False, False]


def test_several_references_of_a_plain_text_are_warned_of(cloner: Synthesizer) -> None:
    many = speak(cloner, reference=[A, B], reference_text=WORDS)
    assert any("2 speakers" in warning for warning in many.warnings)
    raw = speak(cloner, " speaker_1:a\n speaker_2:b\n", reference=[A, B])
    assert not any("2 speakers" in warning for warning in raw.warnings)


def test_instructions_with_latents_are_warned_of(cloner: Synthesizer, voice: Voice) -> None:
    said = {"voice": voice, "instruction": Instruction(emotion="happy")}
    warned = [
        any("latents=False" in warning for warning in speak(cloner, **said, **more).warnings)
        for more in ({}, {"latents": False})
    ]
    assert warned == [True, False]
