"""Dialogues spoken: the typed form says what the reference's strings say; every rule is held."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.conftest import Folders
from tests.goldens import assert_close
from tests.trt_runtime.clones import A, B, assert_alike, count, differ, speak
from trt_runtime import Dialogue, Music, Turn, Voice, VoiceStore, load, read_script
from trt_runtime.errors import UserError
from trt_runtime.speech import Speech
from trt_runtime.synthesizer import Synthesizer

TURNS = [("anna", "Shall we?"), ("ben", "We shall."), ("anna", "Good.")]
RAW = " speaker_1:Shall we?\n speaker_2:We shall.\n speaker_1:Good.\n"
WORDS = {"anna": "What anna said.", "ben": "What ben said."}
RAW_WORDS = " speaker_1:What anna said.\n speaker_2:What ben said.\n"
EMBEDDING = np.full(192, 0.1, np.float32)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> VoiceStore:
    return VoiceStore(tmp_path_factory.mktemp("voices"))


@pytest.fixture(scope="module")
def talk(dense: Folders, store: VoiceStore) -> Iterator[Synthesizer]:
    with load(dense.engines, threads=1, voices=store.folder) as synthesizer:
        store.add("anna", synthesizer.encode_voice(A, WORDS["anna"]))
        store.add("ben", synthesizer.encode_voice(B, WORDS["ben"]))
        store.add("mute-anna", synthesizer.encode_voice(A))
        yield synthesizer


@pytest.fixture(scope="module")
def raw(talk: Synthesizer) -> Speech:
    """As the reference's own strings ask for it."""
    return speak(talk, RAW, reference=[A, B], reference_text=RAW_WORDS)


def prompt(synthesizer: Synthesizer, speech: Speech) -> str:
    """The prompt's text, control tokens left out."""
    assert speech.trace is not None
    return synthesizer._tokenizer.decode(speech.trace.prompt_ids.tolist())


TYPED: dict[str, dict[str, Any]] = {
    "mappings": {"reference": {"anna": A, "ben": B}, "reference_text": WORDS},
    "mappings in another order": {
        "reference": {"ben": B, "anna": A},
        "reference_text": dict(reversed(WORDS.items())),
    },
    "list and mapping": {"reference": [A, B], "reference_text": WORDS},
    "tuple and the reference's words": {"reference": (A, B), "reference_text": RAW_WORDS},
    "all of the reference's": {"reference": [str(A), str(B)], "reference_text": RAW_WORDS},
    "arrays": {
        "reference": {"anna": soundfile.read(A), "ben": soundfile.read(B, dtype="int16")},
        "reference_text": WORDS,
    },
    "recordings with words": {"voice": {"anna": (A, WORDS["anna"]), "ben": (B, WORDS["ben"])}},
    "recordings as voices": {"voice": {"anna": A, "ben": str(B)}, "reference_text": WORDS},
    "voice and reference": {
        "voice": {"anna": (A, WORDS["anna"])},
        "reference": {"ben": B},
        "reference_text": {"ben": WORDS["ben"]},
    },
}


@pytest.mark.parametrize("form", TYPED)
def test_typed_equals_raw(talk: Synthesizer, raw: Speech, form: str) -> None:
    assert_alike(speak(talk, TURNS, **TYPED[form]), raw)


@pytest.mark.parametrize(
    "text",
    [
        Dialogue(tuple(Turn(*turn) for turn in TURNS)),
        [{"speaker": speaker, "text": text} for speaker, text in TURNS],
        tuple(Turn(*turn) for turn in TURNS),
        [(f" {speaker} ", f"  {text}\n") for speaker, text in TURNS],
    ],
    ids=["Dialogue", "mappings", "turns", "white space"],
)
def test_forms_of_the_text(talk: Synthesizer, raw: Speech, text: Any) -> None:
    assert_alike(speak(talk, text, reference=[A, B], reference_text=WORDS), raw)


def test_a_script(talk: Synthesizer, raw: Speech, tmp_path: Path) -> None:
    path = tmp_path / "talk.txt"
    path.write_text("".join(f"{speaker}: {text}\n" for speaker, text in TURNS), encoding="utf-8")
    assert_alike(speak(talk, read_script(path), **TYPED["mappings"]), raw)


def test_streamed_equals_whole(talk: Synthesizer) -> None:
    whole = talk.synthesize(TURNS, **TYPED["mappings"], max_steps=7, seed=3)
    for size in (1, 3):
        chunks = list(
            talk.stream(TURNS, chunk_patches=size, **TYPED["mappings"], max_steps=7, seed=3)
        )
        assert np.concatenate([c.audio for c in chunks]).tobytes() == whole.audio.tobytes()


def test_what_the_prompt_says(talk: Synthesizer, raw: Speech) -> None:
    assert RAW_WORDS + RAW in prompt(talk, raw)
    assert count(talk, raw, "<|vision_pad|>") == 2
    assert raw.trace is not None
    patches = len(raw.trace.reference_latents) // talk.geometry.patch
    assert count(talk, raw, "<audioPatch>") == patches > 0


def test_references_are_joined_before_they_are_padded(talk: Synthesizer, raw: Speech) -> None:
    """As the reference does it; so the latents are those of one recording of both."""
    both = talk.encode_voice([A, B], "any words")
    assert raw.trace is not None
    np.testing.assert_array_equal(raw.trace.reference_latents, both.latent_mean)


def test_speakers_are_numbered_as_they_speak(talk: Synthesizer, raw: Speech) -> None:
    """Names and the order of mappings do not matter; who speaks first does."""
    renamed = [("zoe" if speaker == "anna" else "abe", text) for speaker, text in TURNS]
    voices = {"abe": (B, WORDS["ben"]), "zoe": (A, WORDS["anna"])}
    assert_alike(speak(talk, renamed, voice=voices), raw)
    turned = [("ben", "Shall we?"), ("anna", "We shall."), ("ben", "Good.")]
    other = speak(talk, turned, **TYPED["mappings"])
    assert differ(other, raw)
    swapped = " speaker_1:What ben said.\n speaker_2:What anna said.\n"
    assert_alike(other, speak(talk, RAW, reference=[B, A], reference_text=swapped))


def test_three_speakers(talk: Synthesizer) -> None:
    turns = [*TURNS, ("cleo", "Hello!")]
    typed = speak(talk, turns, reference={"cleo": B, "anna": A, "ben": B})
    assert count(talk, typed, "<|vision_pad|>") == 3
    assert_alike(typed, speak(talk, f"{RAW} speaker_3:Hello!\n", reference=[A, B, B]))
    assert differ(typed, speak(talk, turns, reference=[A, B, A]))


def test_one_voice_for_two_speakers(talk: Synthesizer) -> None:
    assert_alike(
        speak(talk, TURNS, voice={"anna": "anna", "ben": "anna"}, speaker_embedding=None),
        speak(
            talk, TURNS, voice=dict.fromkeys(("anna", "ben"), talk._store.get("anna")),
            speaker_embedding=None,
        ),
    )  # fmt: skip


# Speaker embeddings only, latents only, or both.


def test_embeddings_alone(talk: Synthesizer, raw: Speech) -> None:
    typed = speak(talk, TURNS, voice={"anna": A, "ben": B})
    assert_alike(typed, speak(talk, RAW, reference=[A, B]))
    assert count(talk, typed, "<|vision_pad|>") == 2
    assert count(talk, typed, "<audioPatch>") == 0
    assert any("reference_text" in warning for warning in typed.warnings)
    assert differ(typed, raw)


def test_latents_alone(talk: Synthesizer, raw: Speech) -> None:
    typed = speak(talk, TURNS, **TYPED["mappings"], speaker_embedding=None)
    plain = speak(talk, RAW, reference=[A, B], reference_text=RAW_WORDS, speaker_embedding=None)
    assert_alike(typed, plain)
    assert count(talk, typed, "<|vision_pad|>") == 0
    assert differ(typed, raw)


def test_given_arrays(talk: Synthesizer, raw: Speech) -> None:
    own = [talk.encode_voice(path).speaker_embedding for path in (A, B)]
    typed = TYPED["mappings"]
    assert_alike(speak(talk, TURNS, **typed, speaker_embedding=own), raw)
    assert_alike(speak(talk, TURNS, **typed, speaker_embedding=np.stack(own)), raw)  # type: ignore[arg-type]
    assert differ(speak(talk, TURNS, **typed, speaker_embedding=own[::-1]), raw)


def test_a_sampled_posterior(talk: Synthesizer) -> None:
    options = TYPED["mappings"] | {"posterior": "sample"}
    one, again, two = (speak(talk, TURNS, **options, seed=seed) for seed in (1, 1, 2))
    assert_alike(one, again)
    assert one.trace is not None
    assert two.trace is not None
    assert not np.array_equal(one.trace.reference_latents, two.trace.reference_latents)
    sampled = speak(
        talk, RAW, reference=[A, B], reference_text=RAW_WORDS, posterior="sample", seed=1
    )
    assert_alike(sampled, one)


# Stored voices.


def test_stored_voices_by_every_name(talk: Synthesizer, store: VoiceStore, tmp_path: Path) -> None:
    by_name = speak(talk, TURNS, voice={"anna": "anna", "ben": "ben"})
    loaded: dict[str, Voice] = {name: store.get(name) for name in ("anna", "ben")}
    file = tmp_path / "b.safetensors"
    loaded["ben"].save(file)
    for voices in (
        loaded,
        {"anna": loaded["anna"], "ben": file},
        {"anna": "anna", "ben": str(file)},
    ):
        assert_alike(speak(talk, TURNS, voice=voices), by_name)


def test_stored_voices_have_the_prompt_of_their_recordings(
    talk: Synthesizer, store: VoiceStore, raw: Speech
) -> None:
    """The same words and speakers. Latents are each voice's own, padded on its own."""
    stored = speak(talk, TURNS, voice={"anna": "anna", "ben": "ben"})
    assert RAW_WORDS + RAW in prompt(talk, stored)
    assert stored.trace is not None
    latents = [store.get(name).latent_mean for name in ("anna", "ben")]
    np.testing.assert_array_equal(stored.trace.reference_latents, np.concatenate(latents))  # type: ignore[arg-type]
    # The first speaker's are those of the joined recordings too, but for its last, padded patch.
    assert raw.trace is not None
    whole = len(latents[0]) - talk.geometry.patch  # type: ignore[arg-type]
    np.testing.assert_array_equal(
        stored.trace.reference_latents[:whole], raw.trace.reference_latents[:whole]
    )


def test_stored_voices_without_words_equal_their_recordings(
    talk: Synthesizer, store: VoiceStore
) -> None:
    assert_alike(
        speak(talk, TURNS, voice={"anna": "mute-anna", "ben": B}),
        speak(talk, TURNS, reference=[A, B]),
    )


@pytest.mark.parametrize(
    "ben", [B, (B, WORDS["ben"])], ids=["with reference_text", "with its words"]
)
def test_a_stored_voice_beside_a_recording(talk: Synthesizer, store: VoiceStore, ben: Any) -> None:
    words = None if isinstance(ben, tuple) else {"ben": WORDS["ben"]}
    mixed = speak(talk, TURNS, voice={"anna": "anna", "ben": ben}, reference_text=words)
    split = speak(
        talk, TURNS, voice={"anna": "anna"}, reference={"ben": B},
        reference_text={"ben": WORDS["ben"]},
    )  # fmt: skip
    assert_alike(mixed, split)
    assert mixed.trace is not None
    parts = [store.get(name).latent_mean for name in ("anna", "ben")]
    assert_close(mixed.trace.reference_latents, np.concatenate(parts), "latents")  # type: ignore[arg-type]


def test_a_voice_of_another_model_names_its_speaker(talk: Synthesizer, store: VoiceStore) -> None:
    other = dataclasses.replace(store.get("ben"), sample_rate=16_000)
    with pytest.raises(UserError, match="made for another model") as caught:
        speak(talk, TURNS, voice={"anna": "anna", "ben": other})
    assert "ben" in caught.value.what


def test_warnings_of_every_voice(talk: Synthesizer) -> None:
    speech = speak(talk, TURNS, **TYPED["mappings"])
    for path in (A, B):
        assert any(str(path) in warning and "short" in warning for warning in speech.warnings)


def test_voices_of_those_who_say_nothing(talk: Synthesizer, raw: Speech) -> None:
    """A cast may be larger than a scene; but a name that is misspelt is one of these."""
    voices = {"anna": (A, WORDS["anna"]), "ben": (B, WORDS["ben"]), "cleo": B}
    speech = speak(talk, TURNS, voice=voices)
    assert_alike(speech, raw)
    assert any("cleo" in warning for warning in speech.warnings)
    speech = speak(
        talk, TURNS, reference=voices | {"anna": A, "ben": B}, reference_text=WORDS | {"dan": "x"}
    )
    assert any("cleo" in warning and "dan" in warning for warning in speech.warnings)
    assert not any("not used" in warning for warning in raw.warnings)


# Rules.

BOTH: dict[str, Any] = {"anna": A, "ben": B}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no voices": ({}, "without a reference: anna, ben"),
    "one voice": ({"voice": {"anna": A}}, "without a reference: ben"),
    "one reference": ({"reference": {"ben": B}}, "without a reference: anna"),
    "misspelt": ({"voice": {"anna": A, "Ben": B}}, "without a reference: ben"),
    "words only": ({"reference_text": WORDS}, "without a reference: anna, ben"),
    "zero speakers": ({"speaker_embedding": "zero"}, "without a reference"),
    "arrays only": ({"speaker_embedding": [EMBEDDING] * 2}, "without a reference"),
    "one voice for all": ({"voice": A}, "mapping from each speaker"),
    "a list of voices": ({"voice": [A, B]}, "mapping from each speaker"),
    "one recording": ({"reference": A}, "mapping from each speaker"),
    "too few in a list": ({"reference": [A]}, "mapping from each speaker"),
    "too many in a list": ({"reference": [A, B, B]}, "mapping from each speaker"),
    "names that are none": ({"voice": {1: A, 2: B}}, "mapping from each speaker"),
    "voice and reference": ({"voice": BOTH, "reference": {"ben": B}}, "ben: both"),
    "words of some": ({"reference": BOTH, "reference_text": {"anna": "x"}}, "none for .*ben"),
    "words of some voices": ({"voice": {"anna": "anna", "ben": B}}, "none for .*ben"),
    "words twice": (
        {"voice": {"anna": (A, "x"), "ben": (B, "y")}, "reference_text": WORDS}, "own transcript"
    ),
    "words of a stored voice": (
        {"voice": {"anna": "anna", "ben": B}, "reference_text": WORDS}, "own transcript"
    ),
    "words as a list": ({"reference": BOTH, "reference_text": ["x", "y"]}, "mapping"),
    "words of one line": (
        {"reference": BOTH, "reference_text": WORDS | {"ben": "a\nb"}}, "line break"
    ),
    "a label in words": (
        {"reference": BOTH, "reference_text": WORDS | {"ben": "a speaker_3: b"}}, "label"
    ),
    "blank words": ({"reference": BOTH, "reference_text": WORDS | {"ben": " "}}, "ben is blank"),
    "words that are none": ({"reference": BOTH, "reference_text": WORDS | {"ben": 3}}, "not text"),
    "blank raw words": ({"reference": BOTH, "reference_text": " "}, "reference_text is blank"),
    "no voice": ({"voice": {"anna": A, "ben": None}}, "voice of ben cannot be used"),
    "an unknown voice": ({"voice": {"anna": "anna", "ben": "benn"}}, "no voice benn"),
    "no file": ({"reference": {"anna": A, "ben": "nowhere.wav"}}, r"nowhere\.wav"),
    "zero with references": ({"reference": BOTH, "speaker_embedding": "zero"}, "zero speaker"),
    "nothing used": ({"reference": BOTH, "speaker_embedding": None}, "would be used"),
    "one array for two": (
        {"reference": BOTH, "reference_text": WORDS, "speaker_embedding": EMBEDDING}, "in number"
    ),
    "three arrays for two": (
        {"reference": BOTH, "reference_text": WORDS, "speaker_embedding": [EMBEDDING] * 3},
        "in number",
    ),
    "latents of a voice without any": (
        {"voice": {"anna": "mute-anna", "ben": B}, "reference_text": WORDS}, "without its words"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(talk: Synthesizer, case: str) -> None:
    options, match = REFUSED[case]
    for call in (talk.synthesize, talk.stream):
        with pytest.raises(UserError, match=match) as caught:
            call(TURNS, **options)
        assert caught.value.do


@pytest.mark.parametrize(
    ("raw_words", "match"),
    [
        ("just words", "speaker"),
        (" speaker_1:only the first\n", "speaker"),
        (" speaker_1:a\n speaker_2:b\n speaker_3:c\n", "speaker"),
    ],
)
def test_raw_words_that_are_not_of_these_speakers(
    talk: Synthesizer, raw_words: str, match: str
) -> None:
    """A typed dialogue's rules hold for the reference's own form of its words, too."""
    with pytest.raises(UserError, match=match):
        talk.synthesize(TURNS, reference=BOTH, reference_text=raw_words)


def test_raw_words_do_not_replace_those_of_stored_voices(talk: Synthesizer) -> None:
    with pytest.raises(UserError, match="own transcript"):
        talk.synthesize(TURNS, voice={"anna": "anna", "ben": "ben"}, reference_text=RAW_WORDS)


@pytest.mark.parametrize(
    ("turns", "match"),
    [
        ([], "too few speakers"),
        ([("anna", "Alone.")], "too few speakers"),
        ([("anna", "Hm."), ("ben", " ")], "turn 2"),
        ([("anna", "Hm."), ("ben", "a\nb")], "turn 2.*line break"),
        ([("anna", "Hm."), ("ben", "speaker_1: a")], "turn 2.*label"),
        ([("anna", "Hm."), "Hello."], "turn 2"),
        ([("anna", "Hm."), {"speaker": "ben"}], "turn 2"),
        ([("speaker_2", "Hm."), ("speaker_1", "Ha.")], "would be speaker 1"),
        ({"anna": "Hm.", "ben": "Ha."}, "not text"),
    ],
)
def test_texts_that_are_no_dialogue(talk: Synthesizer, turns: Any, match: str) -> None:
    with pytest.raises(UserError, match=match):
        talk.synthesize(turns, voice={"anna": A, "ben": B})


@pytest.mark.parametrize("text", ["Plain text.", RAW])
@pytest.mark.parametrize(
    "options",
    [
        {"voice": BOTH},
        {"reference": BOTH},
        {"reference": A, "reference_text": WORDS},
        {"reference": {}},
        {"voice": {}},
    ],
    ids=["voice", "reference", "reference_text", "no references", "no voices"],
)
def test_mappings_are_for_dialogues(talk: Synthesizer, text: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="mapping of speakers") as caught:
        talk.synthesize(text, **options)
    assert '{"speaker": ..., "text": ...}' in caught.value.do


@pytest.mark.parametrize("options", [{}, {"reference": A}, {"reference": [A]}, {"voice": A}])
def test_a_raw_dialogue_needs_a_reference_for_each(
    talk: Synthesizer, options: dict[str, Any]
) -> None:
    with pytest.raises(UserError, match="speaker_2 has no reference"):
        talk.synthesize(RAW, **options)


def test_a_raw_text_of_one_speaker(talk: Synthesizer) -> None:
    """The reference takes it; with one reference it is complete."""
    assert speak(talk, " speaker_1:Alone.\n", reference=A).steps == 3
    with pytest.raises(UserError, match="speaker_1 has no reference"):
        talk.synthesize(" speaker_1:Alone.\n")


def test_music_has_no_speakers(talk: Synthesizer) -> None:
    music = Music(genre="g", mood="m", instrument="i", theme="t", duration=20)
    for options in ({"voice": BOTH}, {"reference": A}, {"reference_text": "x"}):
        with pytest.raises(UserError, match="description alone"):
            talk.synthesize(music, **options)


def test_a_dialogue_is_one_passage(talk: Synthesizer) -> None:
    """However long: its speakers would change their numbers."""
    turns = [(speaker, "Word after word after word. " * 5) for speaker in ("anna", "ben", "anna")]
    speech = talk.synthesize(turns, reference=[A, B], max_steps=2)
    text = Dialogue.from_any(turns).text()
    assert [(s.text, s.start, s.end) for s in speech.sentences] == [(text, 0, len(text))]


def test_normalised_turns(talk: Synthesizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn by turn, so that the labels stay as they are."""
    seen: list[str] = []

    def spelled(text: str) -> str:
        seen.append(text)
        return text.replace("3", "three")

    monkeypatch.setattr("trt_runtime.text_normalization.spell_out", spelled)
    turns = [("anna", "At 3?"), ("ben", "At 3.")]
    speech = speak(talk, turns, reference=[A, B], normalize=True)
    assert seen == ["At 3?", "At 3."]
    assert_alike(speech, speak(talk, [("a", "At three?"), ("b", "At three.")], reference=[A, B]))
