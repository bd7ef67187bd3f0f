"""The demonstration's speaker encoder, on voices that numpy makes: no flite is needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from export.speaker_encoder import CAMPPLUS, read_speaker_encoder
from training.speaker_encoder import embeddings, similarities
from training.speaker_network import SpeakerNetwork, onnx_bytes
from training.speaker_training import degraded, train_speaker_encoder
from trt_runtime.speaker_encoder import SpeakerEncoder
from trt_runtime.speaker_features import FRAME_SAMPLES, SAMPLE_RATE, speaker_features

#: Hz of each voice: pitch, and the middle of its one formant.
VOICES = {"low": (95.0, 700.0), "high": (210.0, 1500.0)}


def sentences(name: str, count: int, seed: int) -> list[np.ndarray]:
    """Harmonic tones of 1.5 s: pitch and loudness wander, syllables differ in the formant."""
    pitch, formant = VOICES[name]
    draw = np.random.default_rng((seed, len(name)))
    seconds = np.arange(int(1.5 * SAMPLE_RATE)) / SAMPLE_RATE
    made = []
    for _ in range(count):
        glide = pitch * (
            1 + 0.1 * np.sin(2 * np.pi * (draw.uniform(1, 3) * seconds + draw.random()))
        )
        phase = 2 * np.pi * np.cumsum(glide) / SAMPLE_RATE
        middle = formant * np.repeat(draw.uniform(0.8, 1.25, 6), len(seconds) // 6)
        wave = sum(
            np.exp(-(((k * pitch - middle) / 500) ** 2)) * np.sin(k * phase) for k in range(1, 20)
        )
        loudness = 0.1 * np.abs(np.sin(2 * np.pi * draw.uniform(1.5, 3) * seconds))
        noise = 1e-4 * draw.standard_normal(len(seconds))
        made.append((loudness * wave + noise).astype(np.float32))
    return made


def trained(seed: int, steps: int, count: int) -> tuple[SpeakerNetwork, list[float]]:
    voices = {name: sentences(name, count, 1) for name in VOICES}
    return train_speaker_encoder(voices, steps=steps, seed=seed, batch=8, log=lambda line: None)


@pytest.fixture(scope="module")
def learned() -> tuple[SpeakerNetwork, list[float]]:
    return trained(0, 30, 9)


@pytest.fixture(scope="module")
def folder(
    learned: tuple[SpeakerNetwork, list[float]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("speaker_encoder")
    (folder / CAMPPLUS).write_bytes(onnx_bytes(learned[0]))
    return folder


def test_it_learns_to_tell_voices_apart(learned: tuple[SpeakerNetwork, list[float]]) -> None:
    losses = learned[1]
    assert len(losses) == 30
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])


def test_other_sentences_of_a_voice_are_nearer_than_those_of_another(folder: Path) -> None:
    encoder = SpeakerEncoder(folder / CAMPPLUS, threads=1)
    low, high = (embeddings(encoder, sentences(name, 5, 2)) for name in VOICES)
    within_low, within_high, between = similarities(low, high)
    assert min(within_low, within_high) > between


def test_its_outputs_have_the_level_of_embeddings(folder: Path) -> None:
    encoder = SpeakerEncoder(folder / CAMPPLUS, threads=1)
    made = np.concatenate([embeddings(encoder, sentences(name, 5, 2)) for name in VOICES])
    assert made.shape == (10, 192)
    assert made.dtype == np.float32
    assert 0.7 < np.sqrt(np.mean(made**2)) < 1.4


@pytest.mark.parametrize("frames", [1, 2, 18, 20, 301])
def test_the_graph_computes_what_torch_does(
    learned: tuple[SpeakerNetwork, list[float]], folder: Path, frames: int
) -> None:
    features = np.random.default_rng(frames).normal(0, 4, (3, frames, 80)).astype(np.float32)
    session = onnxruntime.InferenceSession(
        str(folder / CAMPPLUS), providers=["CPUExecutionProvider"]
    )
    (output,) = session.run(["output"], {"input": features})
    with torch.no_grad():
        expected = learned[0](torch.from_numpy(features)).numpy()
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-4)


def test_it_is_taken_for_a_released_one(folder: Path) -> None:
    content = read_speaker_encoder(folder)
    assert content is not None
    assert len(content) <= 500_000
    model = onnx.ModelProto.FromString(content)
    assert model.ir_version <= 8
    assert [entry.version for entry in model.opset_import] == [13]


def test_the_shortest_wave_of_the_runtime_is_embedded(folder: Path) -> None:
    features = speaker_features(np.ones(FRAME_SAMPLES, np.float32))
    assert features.shape == (1, 80)
    assert np.isfinite(SpeakerEncoder(folder / CAMPPLUS, threads=1)._run(features)).all()


def test_a_seed_gives_the_same_bytes_and_leaves_other_draws_alone() -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    first, again, other = (onnx_bytes(trained(seed, 2, 3)[0]) for seed in (5, 5, 6))
    assert first == again
    assert first != other
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])


def test_a_degraded_wave_has_nothing_above_the_cut_off_but_noise() -> None:
    draw = np.random.default_rng(3)
    wave = draw.standard_normal(SAMPLE_RATE).astype(np.float32)
    power = np.abs(np.fft.rfft(degraded(wave, 8_000, 40, draw))) ** 2
    assert power[4500:].mean() < 1e-3 * power[:3500].mean()
    assert power[4500:].mean() > 1e-5 * power[:3500].mean()
