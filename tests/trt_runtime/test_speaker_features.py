"""The filter bank against torchaudio's recorded output."""

from __future__ import annotations

import kaldi_native_fbank
import numpy as np
import pytest

from tests.goldens import GOLDENS, assert_close, load_npz, needs_goldens
from trt_runtime.errors import UserError
from trt_runtime.speaker_features import filter_bank, speaker_features

CASES = {"w0": "wave", "w1": "wave", "w2": "wave16k", "w3": "wave16k"}


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_reference(case):
    """Also where the synthetic waves leave bands all but empty, whose features are rounding."""
    arrays = load_npz("fbank")
    wave = arrays[f"{case}/{CASES[case]}"]
    features = filter_bank(wave)
    assert features.dtype == np.float32
    assert_close(features, arrays[f"{case}/fbank"], "filter bank")
    assert_close(speaker_features(wave), arrays[f"{case}/fbank_cmn"], "features")


def test_agrees_with_another_implementation():
    """Of the same formulas, on a wave whose bands all hold sound."""
    wave = np.random.default_rng(3).normal(0, 0.1, 40_000).astype(np.float32)
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.dither = 0.0
    options.mel_opts.num_bins = 80
    options.mel_opts.high_freq = 8000
    other = kaldi_native_fbank.OnlineFbank(options)
    other.accept_waveform(16_000, wave)
    other.input_finished()
    theirs = np.stack([other.get_frame(i) for i in range(other.num_frames_ready)])
    assert_close(filter_bank(wave), theirs, "filter bank")


def test_a_long_wave_is_computed_in_blocks_that_do_not_show():
    wave = np.random.default_rng(4).normal(0, 0.1, 160 * 2300).astype(np.float32)
    whole = filter_bank(wave)
    np.testing.assert_array_equal(whole[990:1010], filter_bank(wave[990 * 160 :])[:20])


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
