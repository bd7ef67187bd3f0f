"""The voices that ship: each belongs to the embedded default, and speaks by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import trt_runtime
from trt_runtime import Voice, VoiceStore
from trt_runtime.folder import EMBEDDED
from trt_runtime.manifest import read_manifest
from trt_runtime.voice_encoder import checkpoint_of
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


def test_they_speak_with_nothing_added(tmp_path: Path) -> None:
    none = tmp_path / "none"
    plain = trt_runtime.synthesize("Hello.", seed=1, voices=none)
    for path in FILES:
        speech = trt_runtime.synthesize("Hello.", voice=path.stem, seed=1, voices=none)
        assert speech.finish_reason == "stop"
        assert speech.warnings == plain.warnings
        assert not np.array_equal(speech.audio, plain.audio)
