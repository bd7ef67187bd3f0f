"""What of the voices goes into the model: embeddings, latents, their posterior, the history."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Folders
from tests.trt_runtime.clones import (
    WORDS,
    A,
    B,
    assert_alike,
    count,
    differ,
    posterior_noise,
    reference_latents,
    speak,
)
from trt_runtime import Voice, load
from trt_runtime.cli.wording import in_options
from trt_runtime.errors import NumericError, UserError
from trt_runtime.noise import Stream, normal
from trt_runtime.prompt_embedding import embed_context
from trt_runtime.synthesizer import Synthesizer

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
    speech = speak(cloner, **source, posterior=posterior, noise=posterior_noise(cloner, recorded))
    np.testing.assert_array_equal(reference_latents(speech), mean + std * recorded)
    assert differ(speech, speak(cloner, **source, noise=posterior_noise(cloner, None)))


def test_zero_noise_is_the_mean(cloner: Synthesizer, voice: Voice) -> None:
    assert voice.latent_mean is not None
    zeros = np.zeros(voice.latent_mean.shape, np.float32)
    assert_alike(
        speak(cloner, voice=voice, noise=posterior_noise(cloner, zeros)),
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
        speak(cloner, voice=voice, noise=posterior_noise(cloner, posterior))


def test_recorded_noise_of_a_posterior_that_is_not_there(cloner: Synthesizer) -> None:
    recorded = np.zeros((8, cloner.geometry.latent_dim), np.float32)
    for options in ({}, {"reference": A}, {"speaker_embedding": "zero"}):
        with pytest.raises(UserError, match=r"noise\.posterior .* there are none"):
            speak(cloner, **options, noise=posterior_noise(cloner, recorded))


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


def test_a_shipped_voice_of_another_model(
    cloner: Synthesizer, silent_voice: Voice, shipped: Path
) -> None:
    """The way out is the default that it ships with; the rule is that of every stored voice."""
    for name, change in (("far", {"sample_rate": 16_000}), ("near", {"checkpoint": "0" * 64})):
        dataclasses.replace(silent_voice, **change).save(shipped / f"{name}.safetensors")
    with pytest.raises(UserError, match="voice 'far' was made for another model") as caught:
        speak(cloner, voice="far")
    assert "sample rate 16000" in str(caught.value)
    assert "leave engines out" in caught.value.do
    assert "voices add NAME REF.wav" in caught.value.do
    assert "leave --engines out" in in_options(str(caught.value))
    (warning,) = (w for w in speak(cloner, voice="near").warnings if "another checkpoint" in w)
    assert "leave engines out" in warning


def test_a_voice_too_large_for_float32(cloner: Synthesizer, voice: Voice) -> None:
    assert voice.latent_mean is not None
    wild = dataclasses.replace(voice, latent_mean=np.full_like(voice.latent_mean, 3e38))
    with pytest.raises(NumericError, match="aggregator") as caught:
        speak(cloner, voice=wild)
    assert "voice" in str(caught.value)


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
