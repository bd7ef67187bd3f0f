"""Cosines within a voice and between two, on embeddings that are known."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.source_voice import Wave
from benchmarks.speaker_similarity import folder_encoder, resemblyzer_encoder, similarity
from tests.conftest import Folders
from trt_runtime.errors import UserError
from trt_runtime.folder import OpenFolder


def voice(*degrees: float) -> list[Wave]:
    """Waves whose embedding is a direction in the plane, of any length."""
    angles = np.deg2rad(np.asarray(degrees))
    return [
        Wave(np.float32(size) * np.array([np.cos(a), np.sin(a)], np.float32), 16_000)
        for size, a in enumerate(angles, 1)
    ]


def compared(first: Sequence[Wave], second: Sequence[Wave]) -> dict[str, object]:
    return similarity(lambda wave: wave.audio, first, second)


def test_two_voices_far_apart() -> None:
    found = compared(voice(0, 30, 10), voice(90, 120, 150))
    within = np.cos(np.deg2rad([30, 10, 20, 30, 60, 30]))
    between = np.cos(np.deg2rad([90, 120, 150, 60, 90, 120, 80, 110, 140]))
    for name, cosines in (("within", within), ("between", between)):
        expected = {
            "pairs": len(cosines), "min": cosines.min(), "median": np.median(cosines),
            "max": cosines.max(),
        }  # fmt: skip
        assert found[name] == pytest.approx(expected, abs=1e-6)
    # The pair of one voice that is 60 degrees apart is as alike as the nearest two of both.
    assert compared(voice(0, 20), voice(90, 110))["separated"] is True
    assert compared(voice(0, 50), voice(90, 110))["separated"] is False


def test_pairs_of_sentences() -> None:
    """The second sentence of the second voice is nearer to the first voice than to its own."""
    found = compared(voice(0, 20, 10), voice(90, 40, 95))
    assert (found["pairs_told_apart"], found["sentence_pairs"]) == (1, 3)
    assert compared(voice(0, 20), voice(90, 110))["pairs_told_apart"] == 1


def test_one_voice_twice() -> None:
    found = compared(voice(0, 10, 20), voice(0, 10, 20))
    assert found["separated"] is False
    assert found["between"]["max"] == pytest.approx(1)  # type: ignore[index]


def test_the_folders_own_encoder(dense_engines: OpenFolder, wave: Wave) -> None:
    embedding = folder_encoder(dense_engines)(wave)
    assert embedding.shape == (dense_engines.manifest.geometry.speaker_dim,)


def test_resemblyzer_is_asked_for_and_not_there(
    dense: Folders, dense_engines: OpenFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resemblyzer", None)
    with pytest.raises(UserError, match="--speaker-encoder folder"):
        resemblyzer_encoder(dense_engines)
