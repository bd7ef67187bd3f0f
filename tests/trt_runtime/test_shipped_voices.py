"""The voices that ship: each belongs to the embedded default, and speaks by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import trt_runtime
from trt_runtime import Voice, VoiceStore
from trt_runtime.folder import EMBEDDED
from trt_runtime.manifest import read_manifest
from trt_runtime.reference_audio import ReferenceAudio
from trt_runtime.voice_encoder import VoiceEncoder, checkpoint_of
from trt_runtime.voice_store import SHIPPED

FILES = sorted(SHIPPED.iterdir())
MANIFEST = read_manifest(EMBEDDED)


def test_each_is_a_speaker_embedding_alone(tmp_path: Path) -> None:
    """No recording is taken along, and nothing is remarked of it in each result."""
    store = VoiceStore(tmp_path / "none")
    assert store.names() == [path.stem for path in FILES]
    assert "slt" in store.names()
    for path in FILES:
        assert store.path(path.stem) == path
        voice = store.get(path.stem)
        assert voice.to_bytes() == path.read_bytes()
        assert voice.speaker_embedding is not None
        assert voice.transcript is None
        assert voice.latent_mean is None
        assert voice.warnings == ()
        assert 3 < (voice.duration or 0) < 8


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_fits_the_embedded_default(path: Path) -> None:
    """Made again with each new checkpoint: python -m training.voices."""
    voice, g = Voice.load(path), MANIFEST.geometry
    assert (voice.family, voice.checkpoint) == (MANIFEST.family, checkpoint_of(MANIFEST.source))
    assert (voice.sample_rate, voice.patch) == (g.sample_rate, g.patch)


def test_each_is_who_its_name_says(tmp_path: Path) -> None:
    """The one of the default voice sounds like it, and the other like nobody else."""
    texts = ("The weather is fine today.", "He opened the door and went into the garden.")
    with trt_runtime.load(voices=tmp_path / "none") as synthesizer:
        encode = VoiceEncoder(synthesizer._require_open()).speaker_embedding

        def heard(voice: str | None) -> np.ndarray:
            waves = [synthesizer.synthesize(t, voice=voice, seed=2).audio for t in texts]
            rate = synthesizer.sample_rate
            vector = np.asarray(encode(ReferenceAudio(np.concatenate(waves), rate, "speech")))
            return vector / np.linalg.norm(vector)

        plain, rms, slt = heard(None), heard("rms"), heard("slt")
        assert plain @ rms > 0.8
        assert plain @ slt < 0.3
        stored = {path.stem: Voice.load(path).speaker_embedding for path in FILES}
        for name, vector in (("rms", rms), ("slt", slt)):
            mine, other = (
                vector @ (stored[voice] / np.linalg.norm(stored[voice]))
                for voice in (name, {"rms": "slt", "slt": "rms"}[name])
            )
            assert mine > other + 0.5


def test_they_speak_with_nothing_added(tmp_path: Path) -> None:
    none = tmp_path / "none"
    plain = trt_runtime.synthesize("Hello.", seed=1, voices=none)
    for path in FILES:
        speech = trt_runtime.synthesize("Hello.", voice=path.stem, seed=1, voices=none)
        assert speech.finish_reason == "stop"
        assert speech.warnings == plain.warnings
        assert not np.array_equal(speech.audio, plain.audio)
