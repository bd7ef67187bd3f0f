"""Making the voices that ship, from noise in flite's place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from training import voices
from training.speech import SAMPLE_RATE, VOICES
from trt_runtime import Voice
from trt_runtime.folder import EMBEDDED
from trt_runtime.manifest import read_manifest


def noise(
    program: Path, jobs: list[tuple[str, str]]
) -> Iterator[tuple[str, str, np.ndarray, None]]:
    assert program == Path("flite")
    for name, text in jobs:
        draw = np.random.default_rng(VOICES.index(name))
        yield name, text, draw.integers(-9000, 9000, 5 * SAMPLE_RATE, np.int16), None


def test_a_folder_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(voices, "find_program", lambda path: path)
    monkeypatch.setattr(voices, "spoken", noise)
    (tmp_path / "file").touch()
    given = ["--program", "flite", "--bundle", str(EMBEDDED), "--out", str(tmp_path / "file")]
    assert voices.main(given) == 2
    said = capsys.readouterr().err
    assert "choose another with --out" in said
    assert "--voices" not in said


def test_a_voice_of_each_speaker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voices, "spoken", noise)
    made = voices.make_voices(Path("flite"), EMBEDDED, tmp_path / "out")
    assert [path.name for path in made] == [f"{name}.safetensors" for name in VOICES]
    assert sorted((tmp_path / "out").iterdir()) == sorted(made)
    before = [path.read_bytes() for path in made]
    manifest = read_manifest(EMBEDDED)
    embeddings = []
    for path in made:
        voice = Voice.load(path)
        assert voice.family == manifest.family
        assert voice.checkpoint == manifest.source["tensors_sha256"]
        assert voice.transcript is None
        assert voice.latent_mean is None
        assert voice.duration == 5.0
        embeddings.append(voice.speaker_embedding)
    assert not np.array_equal(*embeddings)
    voices.make_voices(Path("flite"), EMBEDDED, tmp_path / "out")
    assert [path.read_bytes() for path in made] == before
