"""Cloned voices: every way to name a reference speaks alike, and what is none is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.conftest import Folders
from tests.trt_runtime.clones import (
    FEW,
    TEXT,
    WORDS,
    A,
    B,
    assert_alike,
    differ,
    like_speech,
    recorded,
    speak,
)
from trt_runtime import Voice, VoiceStore, load
from trt_runtime.errors import UserError
from trt_runtime.synthesizer import Synthesizer

# One voice, many names.


def test_the_same_reference_twice(cloner: Synthesizer) -> None:
    first, second = (speak(cloner, reference=A, reference_text=WORDS) for _ in range(2))
    assert_alike(first, second)


def test_another_reference_or_other_words_sound_different(cloner: Synthesizer) -> None:
    assert differ(
        speak(cloner),
        speak(cloner, reference=A, reference_text=WORDS),
        speak(cloner, reference=B, reference_text=WORDS),
        speak(cloner, reference=A, reference_text="Other words."),
        speak(cloner, reference=A),
    )


SAME: dict[str, Callable[[Voice, VoiceStore, Path], dict[str, Any]]] = {
    "str": lambda v, s, f: {"reference": str(A), "reference_text": WORDS},
    "array": lambda v, s, f: {"reference": recorded(A), "reference_text": WORDS},
    "list of one": lambda v, s, f: {"reference": [A], "reference_text": WORDS},
    "list of one array": lambda v, s, f: {"reference": [recorded(A)], "reference_text": WORDS},
    "int16": lambda v, s, f: {
        "reference": soundfile.read(A, dtype="int16"), "reference_text": WORDS
    },
    "two equal channels": lambda v, s, f: {
        "reference": (np.stack([recorded(A)[0]] * 2, 1), recorded(A)[1]), "reference_text": WORDS
    },
    "voice": lambda v, s, f: {"voice": v},
    "voice of a file": lambda v, s, f: {"voice": f},
    "voice of a file's name": lambda v, s, f: {"voice": str(f)},
    "voice by name": lambda v, s, f: {"voice": "anna"},
    "path with words": lambda v, s, f: {"voice": (A, WORDS)},
    "path's name with words": lambda v, s, f: {"voice": (str(A), WORDS)},
    "array with words": lambda v, s, f: {"voice": (recorded(A), WORDS)},
}  # fmt: skip


@pytest.mark.parametrize("way", SAME)
def test_every_name_of_a_voice_speaks_alike(
    cloner: Synthesizer, store: VoiceStore, voice: Voice, tmp_path: Path, way: str
) -> None:
    store.add("anna", voice, replace=True)
    voice.save(tmp_path / "kept.safetensors")
    options = SAME[way](voice, store, tmp_path / "kept.safetensors")
    assert_alike(speak(cloner, **options), speak(cloner, reference=A, reference_text=WORDS))


@pytest.mark.parametrize("way", ["voice", "path", "by name", "file"])
def test_every_name_of_a_voice_without_words(
    cloner: Synthesizer, store: VoiceStore, silent_voice: Voice, tmp_path: Path, way: str
) -> None:
    store.add("mute", silent_voice, replace=True)
    silent_voice.save(tmp_path / "mute.safetensors")
    named = {
        "voice": silent_voice,
        "path": A,
        "by name": "mute",
        "file": tmp_path / "mute.safetensors",
    }
    assert_alike(speak(cloner, voice=named[way]), speak(cloner, reference=A))


def test_a_stored_voice_speaks_after_a_restart(
    dense: Folders, store: VoiceStore, voice: Voice, cloner: Synthesizer
) -> None:
    store.add("kept", voice, replace=True)
    with load(dense.engines, threads=2, voices=store.folder) as other:
        assert_alike(speak(other, voice="kept"), speak(cloner, voice=voice))


def test_a_stored_voice_costs_no_encoding(cloner: Synthesizer, voice: Voice) -> None:
    encoders = {"speaker_encoder", "audio_encoder"}
    stored, fresh = speak(cloner, voice=voice), speak(cloner, reference=A, reference_text=WORDS)
    assert sum(stored.timings.components[name] for name in encoders) < 1e-3
    assert encoders <= fresh.timings.components.keys()


def test_streamed_equals_whole(cloner: Synthesizer) -> None:
    options: dict[str, Any] = {"reference": A, "reference_text": WORDS, "seed": 2}
    whole = cloner.synthesize(TEXT, **options)
    for size in (1, 2, 5):
        chunks = list(cloner.stream(TEXT, chunk_patches=size, **options))
        assert np.concatenate([c.audio for c in chunks]).tobytes() == whole.audio.tobytes()
        assert chunks[-1].warnings == whole.warnings


def test_a_stream_encodes_when_it_is_asked_for(cloner: Synthesizer, tmp_path: Path) -> None:
    path = Path(shutil.copy(A, tmp_path / "gone.wav"))
    chunks = cloner.stream(TEXT, reference=path, reference_text=WORDS, **FEW)
    path.unlink()
    audio = np.concatenate([chunk.audio for chunk in chunks])
    expected = cloner.synthesize(TEXT, reference=A, reference_text=WORDS, **FEW).audio
    assert audio.tobytes() == expected.tobytes()
    with pytest.raises(UserError, match="cannot be opened"):
        cloner.stream(TEXT, reference=path)


# Warnings.


@pytest.mark.parametrize(
    ("reference", "match"),
    [
        ((like_speech(0.5), 16_000), "too short for a good likeness"),
        ((like_speech(2.0), 16_000), "short for a good likeness"),
        ((like_speech(3.5, 8_000), 8_000), "telephone"),
        ((np.clip(4 * like_speech(3.5), -1, 1), 16_000), "clipped"),
        (
            (np.stack([like_speech(3.5), like_speech(3.5, seed=1)], 1), 16_000),
            "2 different channels",
        ),
    ],
    ids=["too short", "short", "telephone", "clipped", "stereo"],
)
def test_warnings_reach_the_result(
    cloner: Synthesizer, store: VoiceStore, reference: Any, match: str
) -> None:
    """Of the recording as of the voice that was made of it, in a stream too."""
    made = cloner.encode_voice(reference, WORDS)
    assert any(match in warning for warning in made.warnings)
    store.add("warned", made, replace=True)
    for options in (
        {"reference": reference, "reference_text": WORDS},
        {"voice": made},
        {"voice": "warned"},
        {"voice": (reference, WORDS)},
    ):
        speech = speak(cloner, **options)
        assert sum(match in warning for warning in speech.warnings) == 1, options
        assert not any("reference_text" in warning for warning in speech.warnings)
    last = list(cloner.stream(TEXT, voice=made, **FEW))[-1]
    assert any(match in warning for warning in last.warnings)


def test_a_good_reference_has_no_warnings(cloner: Synthesizer) -> None:
    good = (like_speech(4.0), 16_000)
    assert speak(cloner, reference=good, reference_text=WORDS).warnings == ()
    assert cloner.encode_voice(good, WORDS).warnings == ()


# Recordings that work and that do not.


def test_stereo_telephone_audio(cloner: Synthesizer, tmp_path: Path) -> None:
    path = tmp_path / "call.wav"
    wave = np.stack([like_speech(1, 8_000), like_speech(1, 8_000, seed=1)], 1)
    soundfile.write(path, wave, 8_000, subtype="ULAW")
    speech = speak(cloner, reference=path, reference_text=WORDS)
    assert any("channels" in warning for warning in speech.warnings)
    first = speak(cloner, reference=(recorded(path)[0][:, 0].copy(), 8_000), reference_text=WORDS)
    assert_alike(speech, first)


def test_mp3(cloner: Synthesizer, tmp_path: Path) -> None:
    path = tmp_path / "v.mp3"
    soundfile.write(path, like_speech(1), 16_000)
    assert speak(cloner, reference=path, reference_text=WORDS).steps == 3
    assert_alike(speak(cloner, voice=str(path)), speak(cloner, reference=path))


@pytest.mark.parametrize("option", ["reference", "voice"])
@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("empty.wav", b"", "an empty file"),
        ("film.mp4", b"\0\0\0\x18ftypmp42" + bytes(64), "a video"),
        ("text.wav", b"no audio at all, only words", "cannot be read as audio"),
        ("short.wav", like_speech(0.1), r"too short.*\n.*0\.2 seconds"),
        ("silent.wav", np.zeros(16_000, np.float32), "is silent"),
    ],
)
def test_recordings_that_are_refused(
    cloner: Synthesizer, tmp_path: Path, option: str, name: str, content: Any, match: str
) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        soundfile.write(path, content, 16_000)
    for call in (
        lambda: cloner.synthesize(TEXT, **{option: path}),
        lambda: cloner.stream(TEXT, **{option: str(path)}),
        lambda: cloner.encode_voice(path, WORDS),
    ):
        with pytest.raises(UserError, match=match) as caught:
            call()
        assert caught.value.do


def test_what_is_shown_of_voices_and_speech_is_short(cloner: Synthesizer, voice: Voice) -> None:
    assert "array" not in repr(voice)
    assert "array" not in repr(speak(cloner, voice=voice))
