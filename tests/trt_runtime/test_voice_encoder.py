"""Recordings to voices: padding, rates, several recordings, and folders that lack an encoder."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Folders
from tests.goldens import assert_close
from tests.trt_runtime.clones import (
    WORDS,
    A,
    B,
    assert_alike,
    like_speech,
    recorded,
    speak,
)
from tests.trt_runtime.test_bad_requests import edited
from trt_runtime import Voice, load
from trt_runtime.audio_encoder import encode_wave, padding_unit
from trt_runtime.errors import FolderError, UserError
from trt_runtime.resampling import resample
from trt_runtime.synthesizer import Synthesizer

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
    waves = [resample(*recorded(path), g.sample_rate) for path in (A, B)]
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
    references = [(like_speech(1, seed=seed), 16_000) for seed in range(4)]

    def one(reference: Any) -> bytes:
        return speak(cloner, reference=reference, reference_text=WORDS).audio.tobytes()

    alone = list(map(one, references))
    assert len(set(alone)) == 4
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, references)) == alone


def test_a_voice_knows_its_length_without_words(voice: Voice, silent_voice: Voice) -> None:
    assert silent_voice.samples == voice.samples > 0
    assert voice.duration == pytest.approx(0.5, abs=1e-3)
