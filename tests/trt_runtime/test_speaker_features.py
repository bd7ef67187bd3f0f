"""The filter bank against torchaudio's recorded output."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.goldens import (
    GOLDENS,
    RELATIVE_ERROR,
    assert_close,
    load_npz,
    needs_goldens,
    relative_error,
)
from trt_runtime.errors import UserError
from trt_runtime.speaker_features import filter_bank, speaker_features

CASES = {"w0": "wave", "w1": "wave", "w2": "wave16k", "w3": "wave16k"}

#: The recorded waves are synthetic, and leave bands all but empty. There the reference's features
#: are the rounding of its Fourier transform: half a unit in the last place of the samples moves
#: them by 4.7e-4 of the largest, and a transform in float64 is 1.7e-4 from them.
ROUNDING = 5e-4
#: ln of the energy from which a band is more than that.
SOUNDING = -12.0


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_reference(case):
    arrays = load_npz("fbank")
    wave, expected = arrays[f"{case}/{CASES[case]}"], arrays[f"{case}/fbank"]
    actual = filter_bank(wave)
    assert actual.dtype == np.float32
    assert relative_error(actual, expected) <= ROUNDING
    difference = np.abs(actual - expected)
    assert difference[expected > SOUNDING].max() <= RELATIVE_ERROR * np.abs(expected).max()
    assert np.median(difference) < 1e-4
    assert relative_error(speaker_features(wave), arrays[f"{case}/fbank_cmn"]) <= ROUNDING


@needs_goldens
@pytest.mark.parametrize("samples", [720, 8000])
def test_agrees_with_the_reference_where_bands_are_full(samples):
    with np.load(GOLDENS / "ming-3" / "speaker_frontend" / f"fbank_{samples}.npz") as arrays:
        assert_close(filter_bank(arrays["waveform"]), arrays["fbank"], "filter bank")
        assert_close(speaker_features(arrays["waveform"]), arrays["features"], "features")


@pytest.mark.parametrize("samples", [400, 401, 559, 560, 3200, 16000])
def test_only_whole_frames_count(samples):
    wave = np.random.default_rng(0).uniform(-1, 1, samples).astype(np.float32)
    features = speaker_features(wave)
    assert features.shape == (1 + (samples - 400) // 160, 80)
    assert np.abs(features.mean(axis=0)).max() < 1e-5


def test_the_same_wave_gives_the_same_features():
    wave = np.random.default_rng(0).uniform(-1, 1, 8000).astype(np.float32)
    assert np.array_equal(filter_bank(wave), filter_bank(wave))


def test_silence_is_at_the_floor_and_finite():
    assert filter_bank(np.zeros(800, np.float32)) == pytest.approx(np.log(np.float32(2**-23)))


@pytest.mark.parametrize("samples", [0, 1, 399])
def test_a_wave_without_a_whole_frame_is_refused(samples):
    with pytest.raises(UserError, match=rf"at least 400 samples[\s\S]*{samples} samples"):
        speaker_features(np.zeros(samples, np.float32))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaldi_native_fbank", None)
    with pytest.raises(UserError, match="pip install kaldi-native-fbank"):
        speaker_features(np.zeros(400, np.float32))
