"""Cloned voices: every way to name a reference speaks alike, and what does not fit is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.conftest import Folders
from tests.goldens import OMNI_TTS, assert_close
from tests.trt_runtime.test_bad_requests import edited
from trt_runtime import RecordedNoise, Voice, VoiceStore, load
from trt_runtime.audio_encoder import encode_wave, padding_unit
from trt_runtime.errors import FolderError, NumericError, UserError
from trt_runtime.instruction import Instruction
from trt_runtime.noise import Stream, normal
from trt_runtime.prompt_embedding import embed_context
from trt_runtime.resampling import resample
from trt_runtime.speech import Speech
from trt_runtime.synthesizer import Synthesizer

A, B = OMNI_TTS / "wavs" / "a_24k.wav", OMNI_TTS / "wavs" / "b_16k.wav"
WORDS, TEXT = "The words of the reference.", "What is said in its voice."
#: Without patience for long speech: what is heard after a few patches depends on all that is asked.
FEW = {"max_steps": 3, "min_steps": 3}


def like_speech(seconds: float, rate: int = 16_000, seed: int = 0) -> np.ndarray:
    """(samples,) float32 with the level and unevenness of speech."""
    time = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(seed).standard_normal(len(time))
    wave = np.sin(2 * np.pi * (140 + 20 * seed) * time + 3 * np.sin(time)) + 0.1 * noise
    return (0.2 * (1 + np.sin(7 * time)) * wave).astype(np.float32)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> VoiceStore:
    return VoiceStore(tmp_path_factory.mktemp("voices"))


@pytest.fixture(scope="module")
def cloner(dense: Folders, store: VoiceStore) -> Iterator[Synthesizer]:
    with load(dense.engines, threads=1, voices=store.folder) as synthesizer:
        yield synthesizer


@pytest.fixture(scope="module")
def voice(cloner: Synthesizer) -> Voice:
    return cloner.encode_voice(A, WORDS)


@pytest.fixture(scope="module")
def silent_voice(cloner: Synthesizer) -> Voice:
    """Without words, and so without latents."""
    return cloner.encode_voice(A)


def speak(synthesizer: Synthesizer, text: Any = TEXT, **options: Any) -> Speech:
    return synthesizer.synthesize(text, trace=True, **(FEW | options))


def assert_alike(one: Speech, other: Speech) -> None:
    """The same prompt, latents and bytes."""
    assert one.trace is not None
    assert other.trace is not None
    np.testing.assert_array_equal(one.trace.prompt_ids, other.trace.prompt_ids)
    np.testing.assert_array_equal(one.trace.reference_latents, other.trace.reference_latents)
    assert one.audio.tobytes() == other.audio.tobytes()


def differ(*speeches: Speech) -> bool:
    return len({speech.audio.tobytes() for speech in speeches}) == len(speeches)


def reference_latents(speech: Speech) -> np.ndarray:
    assert speech.trace is not None
    return speech.trace.reference_latents


def count(synthesizer: Synthesizer, speech: Speech, token: str) -> int:
    assert speech.trace is not None
    return int((speech.trace.prompt_ids == synthesizer._tokenizer.token_id(token)).sum())


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


def _array(path: Path) -> tuple[np.ndarray, int]:
    return soundfile.read(path, dtype="float32")


SAME: dict[str, Callable[[Voice, VoiceStore, Path], dict[str, Any]]] = {
    "str": lambda v, s, f: {"reference": str(A), "reference_text": WORDS},
    "array": lambda v, s, f: {"reference": _array(A), "reference_text": WORDS},
    "list of one": lambda v, s, f: {"reference": [A], "reference_text": WORDS},
    "list of one array": lambda v, s, f: {"reference": [_array(A)], "reference_text": WORDS},
    "int16": lambda v, s, f: {
        "reference": soundfile.read(A, dtype="int16"), "reference_text": WORDS
    },
    "two equal channels": lambda v, s, f: {
        "reference": (np.stack([_array(A)[0]] * 2, 1), _array(A)[1]), "reference_text": WORDS
    },
    "voice": lambda v, s, f: {"voice": v},
    "voice of a file": lambda v, s, f: {"voice": f},
    "voice of a file's name": lambda v, s, f: {"voice": str(f)},
    "voice by name": lambda v, s, f: {"voice": "anna"},
    "path with words": lambda v, s, f: {"voice": (A, WORDS)},
    "path's name with words": lambda v, s, f: {"voice": (str(A), WORDS)},
    "array with words": lambda v, s, f: {"voice": (_array(A), WORDS)},
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


# Speaker embedding only, latents only, or both.


def test_what_goes_into_the_prompt(cloner: Synthesizer, voice: Voice) -> None:
    """A speaker slot where there is an embedding; patches where there are words."""
    assert voice.latent_mean is not None
    patches = len(voice.latent_mean) // cloner.geometry.patch
    for options, slots, expected in [
        ({}, 0, 0),
        ({"reference": A}, 1, 0),
        ({"reference": A, "reference_text": WORDS}, 1, patches),
        ({"reference": A, "reference_text": WORDS, "speaker_embedding": None}, 0, patches),
        ({"speaker_embedding": "zero"}, 1, 0),
        ({"speaker_embedding": None}, 0, 0),
        ({"speaker_embedding": voice.speaker_embedding}, 1, 0),
        ({"speaker_embedding": [voice.speaker_embedding] * 2}, 2, 0),
    ]:
        speech = speak(cloner, **options)
        assert count(cloner, speech, "<|vision_pad|>") == slots, options
        assert count(cloner, speech, "<audioPatch>") == expected, options
        assert len(reference_latents(speech)) == expected * cloner.geometry.patch


def test_embedding_latents_and_both_differ(cloner: Synthesizer, voice: Voice) -> None:
    both = {"reference": A, "reference_text": WORDS}
    assert differ(
        speak(cloner, **both),
        speak(cloner, **both, speaker_embedding=None),
        speak(cloner, reference=A),
        speak(cloner, speaker_embedding="zero"),
        speak(cloner),
    )


def test_latents_alone_of_a_stored_voice(cloner: Synthesizer, voice: Voice) -> None:
    recorded = speak(cloner, reference=A, reference_text=WORDS, speaker_embedding=None)
    assert_alike(speak(cloner, voice=voice, speaker_embedding=None), recorded)
    bare = dataclasses.replace(voice, speaker_embedding=None)
    assert_alike(speak(cloner, voice=bare, speaker_embedding=None), recorded)


@pytest.mark.parametrize("form", ["(192,)", "list", "tuple", "(1, 192)", "float64", "strided"])
def test_its_own_embedding_given_as_an_array(cloner: Synthesizer, voice: Voice, form: str) -> None:
    own = voice.speaker_embedding
    assert own is not None
    given: Any = {
        "(192,)": own,
        "list": [own],
        "tuple": (own,),
        "(1, 192)": own[None],
        "float64": own.astype(np.float64),
        "strided": np.repeat(own, 2)[::2],
    }[form]
    auto = speak(cloner, reference=A, reference_text=WORDS)
    assert_alike(speak(cloner, reference=A, reference_text=WORDS, speaker_embedding=given), auto)
    assert_alike(speak(cloner, voice=voice, speaker_embedding=given), auto)
    assert_alike(speak(cloner, speaker_embedding=given), speak(cloner, reference=A))


def test_another_embedding_than_the_references_own(cloner: Synthesizer, voice: Voice) -> None:
    other = cloner.encode_voice(B).speaker_embedding
    auto = speak(cloner, voice=voice)
    mixed = speak(cloner, voice=voice, speaker_embedding=other)
    assert differ(auto, mixed)
    np.testing.assert_array_equal(reference_latents(auto), reference_latents(mixed))


def test_the_zero_speaker_is_zeros_after_the_projection(cloner: Synthesizer) -> None:
    """The projection has a bias, so that an embedding of zeros is another speaker."""
    opened = cloner._require_open()
    none = np.zeros((0, cloner.geometry.latent_dim), np.float32)
    zeros = np.zeros(cloner.geometry.speaker_dim, np.float32)
    context = embed_context(opened.backend, cloner.geometry, [None, zeros], none)
    assert not context.speakers[0].any()
    assert context.speakers[1].any()
    assert differ(speak(cloner, speaker_embedding="zero"), speak(cloner, speaker_embedding=zeros))


def test_the_history_is_the_end_of_the_reference(cloner: Synthesizer) -> None:
    g = cloner.geometry
    opened = cloner._require_open()
    for length in (g.patch, g.history - g.patch, g.history, g.history + 3 * g.patch):
        latents = np.arange(length * g.latent_dim, dtype=np.float32).reshape(length, -1) / 1e4
        history = embed_context(opened.backend, g, [], latents).history
        kept = min(length, g.history)
        np.testing.assert_array_equal(history[g.history - kept :], latents[length - kept :])
        assert not history[: g.history - kept].any()


# The posterior.


def test_the_mean_does_not_depend_on_the_seed(cloner: Synthesizer, voice: Voice) -> None:
    speeches = [speak(cloner, reference=A, reference_text=WORDS, seed=seed) for seed in (1, 2)]
    for speech in speeches:
        np.testing.assert_array_equal(reference_latents(speech), voice.latent_mean)
    assert differ(*speeches)


def test_a_sample_is_drawn_with_the_seed(cloner: Synthesizer, voice: Voice) -> None:
    mean, std = voice.latent_mean, voice.latent_std
    assert mean is not None
    assert std is not None
    options: dict[str, Any] = {"reference": A, "reference_text": WORDS, "posterior": "sample"}
    one, again, two = (speak(cloner, **options, seed=seed) for seed in (1, 1, 2))
    assert_alike(one, again)
    assert not np.array_equal(reference_latents(one), reference_latents(two))
    for seed, speech in ((1, one), (2, two)):
        drawn = mean + std * normal(seed, 0, Stream.POSTERIOR, mean.shape)
        np.testing.assert_array_equal(reference_latents(speech), drawn)
        assert reference_latents(speech).dtype == np.float32
    assert_alike(speak(cloner, voice=voice, posterior="sample", seed=1), one)


def _noise(synthesizer: Synthesizer, posterior: Any, steps: int = 3) -> RecordedNoise:
    g = synthesizer.geometry
    drawn = [normal(5, step, Stream.INITIAL, (g.patch, g.latent_dim)) for step in range(steps)]
    return RecordedNoise(np.stack(drawn), posterior=posterior)


@pytest.mark.parametrize("posterior", ["mean", "sample"])
@pytest.mark.parametrize("stored", [False, True])
def test_recorded_noise_of_the_posterior(
    cloner: Synthesizer, voice: Voice, posterior: str, stored: bool
) -> None:
    mean, std = voice.latent_mean, voice.latent_std
    assert mean is not None
    assert std is not None
    recorded = np.random.default_rng(3).standard_normal(mean.shape).astype(np.float32)
    source: dict[str, Any] = (
        {"voice": voice} if stored else {"reference": A, "reference_text": WORDS}
    )
    speech = speak(cloner, **source, posterior=posterior, noise=_noise(cloner, recorded))
    np.testing.assert_array_equal(reference_latents(speech), mean + std * recorded)
    assert differ(speech, speak(cloner, **source, noise=_noise(cloner, None)))


def test_zero_noise_is_the_mean(cloner: Synthesizer, voice: Voice) -> None:
    assert voice.latent_mean is not None
    zeros = np.zeros(voice.latent_mean.shape, np.float32)
    assert_alike(
        speak(cloner, voice=voice, noise=_noise(cloner, zeros)),
        speak(cloner, voice=voice, seed=5),
    )


@pytest.mark.parametrize(
    ("posterior", "match"),
    [
        (np.zeros((3, 16), np.float32), "noise.posterior does not fit"),
        (np.zeros((4, 3), np.float32), "posterior"),
        (np.zeros(64, np.float32), "posterior"),
        (np.zeros((0, 16), np.float32), "posterior"),
        (np.zeros((4, 16)), "posterior"),
        (np.full((4, 16), np.nan, np.float32), "posterior"),
        ([[0.0] * 16] * 4, "posterior"),
        ("mean", "posterior"),
    ],
    ids=["rows", "columns", "1-d", "empty", "float64", "nan", "list", "str"],
)
def test_recorded_noise_that_does_not_fit(
    cloner: Synthesizer, voice: Voice, posterior: Any, match: str
) -> None:
    assert voice.latent_mean is not None
    if isinstance(posterior, np.ndarray) and posterior.shape == (4, 16):
        posterior = np.resize(posterior, voice.latent_mean.shape)
    with pytest.raises(UserError, match=match):
        speak(cloner, voice=voice, noise=_noise(cloner, posterior))


def test_recorded_noise_of_a_posterior_that_is_not_there(cloner: Synthesizer) -> None:
    recorded = np.zeros((8, cloner.geometry.latent_dim), np.float32)
    for options in ({}, {"reference": A}, {"speaker_embedding": "zero"}):
        with pytest.raises(UserError, match=r"noise\.posterior .* there are none"):
            speak(cloner, **options, noise=_noise(cloner, recorded))


# Rates, lengths, padding.


@pytest.mark.parametrize("seconds", [0.3, 0.32, 1.0, 3.1])
def test_references_are_padded_to_whole_patches(cloner: Synthesizer, seconds: float) -> None:
    g = cloner.geometry
    wave = like_speech(seconds, g.sample_rate)
    made = cloner.encode_voice((wave, g.sample_rate), WORDS)
    assert made.samples == len(wave)
    padded = np.pad(wave, (0, -len(wave) % padding_unit(g)))
    assert made.latent_mean is not None
    assert made.latent_std is not None
    assert len(made.latent_mean) * g.samples_per_latent == len(padded)
    mean, std = encode_wave(cloner._require_open().backend, g, padded)
    np.testing.assert_array_equal(made.latent_mean, mean)
    np.testing.assert_array_equal(made.latent_std, std)


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 24_000, 48_000, 96_000])
def test_references_of_any_rate_are_resampled(cloner: Synthesizer, rate: int) -> None:
    wave = like_speech(1.0, rate)
    made = cloner.encode_voice((wave, rate), WORDS)
    resampled = resample(wave, rate, cloner.sample_rate)
    assert made.samples == len(resampled)
    assert abs(made.samples - cloner.sample_rate) <= 1
    again = cloner.encode_voice((resampled, cloner.sample_rate), WORDS)
    assert made.latent_mean is not None
    assert again.latent_mean is not None
    np.testing.assert_array_equal(made.latent_mean, again.latent_mean)


def test_a_voice_of_several_recordings(cloner: Synthesizer) -> None:
    """Joined before padding; the embedding is the first one's."""
    g = cloner.geometry
    made = cloner.encode_voice([A, B], WORDS)
    alone = cloner.encode_voice(A)
    waves = [resample(*_array(path), g.sample_rate) for path in (A, B)]
    joined = np.concatenate(waves)
    assert made.samples == len(joined)
    assert made.latent_mean is not None
    np.testing.assert_array_equal(made.speaker_embedding, alone.speaker_embedding)  # type: ignore[arg-type]
    expected = cloner.encode_voice((joined, g.sample_rate), WORDS).latent_mean
    assert expected is not None
    assert_close(made.latent_mean, expected, "latents")
    first, second = cloner.encode_voice([B, A], WORDS), cloner.encode_voice(B)
    np.testing.assert_array_equal(first.speaker_embedding, second.speaker_embedding)  # type: ignore[arg-type]


def test_what_a_voice_says_of_itself(cloner: Synthesizer, voice: Voice, dense: Folders) -> None:
    manifest = cloner._require_open().manifest
    assert voice.family == manifest.family == "ming-omni-tts-dense"
    assert voice.checkpoint == manifest.source["tensors_sha256"]
    assert (voice.sample_rate, voice.patch) == (44_100, cloner.geometry.patch)
    assert voice.transcript == WORDS
    assert voice.duration == pytest.approx(0.5, abs=0.01)
    assert any("too short for a good likeness" in warning for warning in voice.warnings)
    with load(dense.bundle, threads=1) as of_the_bundle:
        bundled = of_the_bundle.encode_voice(A, WORDS)
        assert bundled.checkpoint == voice.checkpoint
        assert_close(bundled.latent_mean, voice.latent_mean, "mean")  # type: ignore[arg-type]
        assert_close(bundled.speaker_embedding, voice.speaker_embedding, "embedding")  # type: ignore[arg-type]


def test_a_voice_without_words_has_no_latents(silent_voice: Voice) -> None:
    assert silent_voice.transcript is silent_voice.latent_mean is silent_voice.latent_std is None
    assert silent_voice.speaker_embedding is not None
    assert silent_voice.speaker_embedding.shape == (192,)


def test_longer_than_the_engines_take(cloner: Synthesizer) -> None:
    g = cloner.geometry
    seconds = g.max_reference_latents * g.samples_per_latent / g.sample_rate
    long = (like_speech(seconds + 1), 16_000)
    with pytest.raises(UserError, match="too long for these engines") as caught:
        speak(cloner, reference=long, reference_text=WORDS)
    assert "--max-reference-latents" in str(caught.value)
    with pytest.raises(UserError, match="too long for these engines"):
        cloner.encode_voice(long, WORDS)
    half = (like_speech(seconds / 2 + 1), 16_000)
    with pytest.raises(UserError, match="of all speakers together"):
        speak(cloner, reference=[half, half], reference_text=WORDS)
    # Only the words make latents: without them it is not too long.
    assert speak(cloner, reference=long).steps == 3


def test_a_reference_that_leaves_no_room(dense: Folders, tmp_path: Path, voice: Voice) -> None:
    """A stored voice whose patches alone fill the context."""
    with load(dense.engines, threads=1) as synthesizer:
        g = synthesizer.geometry
        assert voice.latent_mean is not None
        rows = np.zeros((g.patch * g.cache_length, g.latent_dim), np.float32)
        long = dataclasses.replace(voice, latent_mean=rows, latent_std=rows + 1)
        with pytest.raises(UserError, match="too long for these engines") as caught:
            speak(synthesizer, voice=long)
        assert "reference" in caught.value.do


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


def test_without_words_it_says_what_to_give(cloner: Synthesizer, silent_voice: Voice) -> None:
    for options in ({"reference": A}, {"voice": A}, {"voice": silent_voice}):
        assert any("reference_text" in warning for warning in speak(cloner, **options).warnings)
    # An instruction is what the reference implementation combines with an embedding alone.
    speech = speak(cloner, reference=A, instruction={"情感": "高兴"})
    assert not any("reference_text" in warning for warning in speech.warnings)


# Recordings that work and that do not.


def test_stereo_telephone_audio(cloner: Synthesizer, tmp_path: Path) -> None:
    path = tmp_path / "call.wav"
    wave = np.stack([like_speech(1, 8_000), like_speech(1, 8_000, seed=1)], 1)
    soundfile.write(path, wave, 8_000, subtype="ULAW")
    speech = speak(cloner, reference=path, reference_text=WORDS)
    assert any("channels" in warning for warning in speech.warnings)
    first = speak(cloner, reference=(_array(path)[0][:, 0].copy(), 8_000), reference_text=WORDS)
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


def test_a_voice_without_what_is_asked_of_it(
    cloner: Synthesizer, voice: Voice, silent_voice: Voice
) -> None:
    bare = dataclasses.replace(voice, speaker_embedding=None)
    with pytest.raises(UserError, match="has no speaker embedding") as caught:
        speak(cloner, voice=bare)
    assert "speaker_embedding=None" in caught.value.do
    with pytest.raises(UserError, match="would be used"):
        speak(cloner, voice=silent_voice, speaker_embedding=None)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"family": "ming-omni-tts-moe"}, "family ming-omni-tts-moe"),
        ({"sample_rate": 16_000}, "sample rate 16000"),
        ({"patch": 2}, "patch 2"),
        ({"latent_mean": np.zeros((4, 5), np.float32), "latent_std": np.ones((4, 5), np.float32)},
         "latent channels 5"),
    ],
)  # fmt: skip
def test_voices_of_other_models(
    cloner: Synthesizer, voice: Voice, tmp_path: Path, change: dict[str, Any], match: str
) -> None:
    other = dataclasses.replace(voice, **change)
    other.save(tmp_path / "other.safetensors")
    for given in (other, tmp_path / "other.safetensors"):
        with pytest.raises(UserError, match="made for another model") as caught:
            speak(cloner, voice=given)
        assert match in str(caught.value)
        assert "voices add" in caught.value.do


def test_voices_of_another_checkpoint(cloner: Synthesizer, voice: Voice) -> None:
    """A fine-tune may share its voices; nobody can know, so that it is said."""
    other = dataclasses.replace(voice, checkpoint="0" * 64)
    speech = speak(cloner, voice=other)
    assert any("another checkpoint" in warning for warning in speech.warnings)
    for known in (voice, dataclasses.replace(voice, checkpoint="")):
        warnings = speak(cloner, voice=known).warnings
        assert not any("another checkpoint" in warning for warning in warnings)


def test_a_voice_too_large_for_float32(cloner: Synthesizer, voice: Voice) -> None:
    assert voice.latent_mean is not None
    wild = dataclasses.replace(voice, latent_mean=np.full_like(voice.latent_mean, 3e38))
    with pytest.raises(NumericError, match="aggregator") as caught:
        speak(cloner, voice=wild)
    assert "voice" in str(caught.value)


# Folders that lack a part.


@pytest.fixture(scope="module")
def no_speaker_encoder(
    dense: Folders, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Synthesizer]:
    """As exported from a checkpoint without campplus.onnx."""
    folder = tmp_path_factory.mktemp("without") / "engines"
    edited(dense.engines, folder, lambda m: m["files"].pop("speaker_encoder.onnx"))
    with load(folder, threads=1) as synthesizer:
        yield synthesizer


def test_without_a_speaker_encoder(
    no_speaker_encoder: Synthesizer, cloner: Synthesizer, voice: Voice
) -> None:
    for options in ({"reference": A}, {"reference": A, "reference_text": WORDS}):
        with pytest.raises(FolderError, match="no speaker encoder") as caught:
            speak(no_speaker_encoder, **options)
        assert "campplus.onnx" in str(caught.value)
    latents_alone: dict[str, Any] = {
        "reference": A, "reference_text": WORDS, "speaker_embedding": None
    }  # fmt: skip
    assert_alike(speak(no_speaker_encoder, **latents_alone), speak(cloner, **latents_alone))
    given = latents_alone | {"speaker_embedding": voice.speaker_embedding}
    assert_alike(speak(no_speaker_encoder, **given), speak(cloner, voice=voice))
    assert_alike(speak(no_speaker_encoder, voice=voice), speak(cloner, voice=voice))


def test_voices_made_without_a_speaker_encoder(
    no_speaker_encoder: Synthesizer, voice: Voice
) -> None:
    made = no_speaker_encoder.encode_voice(A, WORDS)
    assert made.speaker_embedding is None
    np.testing.assert_array_equal(made.latent_mean, voice.latent_mean)  # type: ignore[arg-type]
    with pytest.raises(FolderError, match="no speaker encoder"):
        no_speaker_encoder.encode_voice(A)


def test_without_an_audio_encoder(dense: Folders, cloner: Synthesizer, tmp_path: Path) -> None:
    """An earlier export: its voices are those without latents, and stored ones."""
    edited(dense.engines, tmp_path / "engines", lambda m: m["graphs"].pop("audio_encoder"))
    stored = cloner.encode_voice(A, WORDS)
    with load(tmp_path / "engines", threads=1) as synthesizer:
        assert_alike(speak(synthesizer), speak(cloner))
        assert_alike(speak(synthesizer, reference=A), speak(cloner, reference=A))
        assert_alike(speak(synthesizer, voice=stored), speak(cloner, voice=stored))
        for options in ({"reference": A, "reference_text": WORDS}, {"voice": (A, WORDS)}):
            with pytest.raises(FolderError, match="no audio encoder") as caught:
                speak(synthesizer, **options)
            assert "transcript" in caught.value.do


def test_a_closed_synthesizer_makes_no_voice(dense: Folders) -> None:
    synthesizer = load(dense.engines, threads=1)
    synthesizer.close()
    with pytest.raises(UserError, match="closed"):
        synthesizer.encode_voice(A)


def test_encode_voice_checks_its_arguments(cloner: Synthesizer) -> None:
    for reference, words, match in [
        ([], None, "no recording"),
        (None, None, "cannot be read"),
        (A, "", "reference_text is blank"),
        (A, 3, "reference_text is not text"),
        ([A, "nowhere.wav"], None, "nowhere.wav"),
    ]:
        with pytest.raises(UserError, match=match):
            cloner.encode_voice(reference, words)  # type: ignore[arg-type]


def test_four_references_at_once(cloner: Synthesizer) -> None:
    """Requests that encode in parallel share the encoders, and hear only their own."""
    from concurrent.futures import ThreadPoolExecutor

    references = [(like_speech(1, seed=seed), 16_000) for seed in range(4)]

    def one(reference: Any) -> bytes:
        return speak(cloner, reference=reference, reference_text=WORDS).audio.tobytes()

    alone = list(map(one, references))
    assert len(set(alone)) == 4
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, references)) == alone


def test_a_voice_with_words_speaks_by_its_embedding_alone(
    cloner: Synthesizer, voice: Voice, silent_voice: Voice
) -> None:
    """As the reference does with instructions, whose voices have no latents."""
    said = {"instruction": {"情感": "高兴"}}
    alone = speak(cloner, voice=voice, latents=False, **said)
    assert_alike(alone, speak(cloner, voice=silent_voice, **said))
    assert not len(reference_latents(alone))
    reference = {"reference": A, "reference_text": WORDS, "latents": False}
    assert_alike(speak(cloner, **reference), speak(cloner, voice=silent_voice))
    assert not any("reference_text" in warning for warning in speak(cloner, **reference).warnings)


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


def test_a_voice_knows_its_length_without_words(voice: Voice, silent_voice: Voice) -> None:
    assert silent_voice.samples == voice.samples > 0
    assert voice.duration == pytest.approx(0.5, abs=1e-3)


def test_what_is_shown_of_voices_and_speech_is_short(cloner: Synthesizer, voice: Voice) -> None:
    assert "array" not in repr(voice)
    assert "array" not in repr(speak(cloner, voice=voice))
