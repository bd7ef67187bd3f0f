"""What the speaker encoder hears of a wave: Kaldi's log mel filter bank, less its mean over time.

As `torchaudio.compliance.kaldi.fbank`, which the reference calls, computes it: in float32 and in
its order. Where a band is all but empty, near the floor of the logarithm, its value is rounding,
and other implementations of the same formulas (kaldi-native-fbank among them) differ there by twice
what this project allows. A block of frames is computed at a time, some 25 kB each.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from trt_runtime.contract import SPEAKER_FEATURES
from trt_runtime.errors import UserError
from trt_runtime.float32_fft import SIZE, real_transform

#: Hz. Other waves are resampled first.
SAMPLE_RATE = 16_000
#: Samples of a frame (25 ms), and from one to the next (10 ms): a shorter wave has no frame.
FRAME_SAMPLES = 400
_SHIFT = 160
_LOWEST_HZ, _HIGHEST_HZ = 20.0, 8000.0
_PRE_EMPHASIS = np.float32(0.97)
#: The Povey window is a Hann window to this power.
_POVEY = 0.85
_FLOOR = np.float32(np.finfo(np.float32).eps)
#: Frames that are computed at a time.
_BLOCK = 1000

#: Places of the Hann window's cosine where torch's float32 is the next one up, and down.
_COSINES_UP = (19, 68, 121, 122, 178, 185, 267, 273, 329, 337)
_COSINES_DOWN = (150, 155, 158, 202, 235, 358)


def speaker_features(wave16k: NDArray[np.float32]) -> NDArray[np.float32]:
    """:func:`filter_bank` less each band's mean over time: the speaker encoder's input.

    `wave16k`: (samples,) float32 at 16 kHz, full scale 1 → (frames, 80) float32.
    """
    features = filter_bank(wave16k)
    return features - features.mean(axis=0)


def filter_bank(wave16k: NDArray[np.float32]) -> NDArray[np.float32]:
    """`wave16k`: (samples,) float32 at 16 kHz, full scale 1 → (frames, 80) float32, ln of energy.

    Frames of 25 ms every 10 ms, only whole ones: 1 + (samples - 400) // 160. Of each, the mean is
    removed, pre-emphasis 0.97 and a Povey window applied, a power spectrum of 512 points taken, and
    summed in triangles on the mel scale from 20 to 8000 Hz; ln has a floor of 1.19e-7. No dither,
    and no scaling to 16-bit integers, which Kaldi itself expects: the encoder was trained without.
    Raises UserError for a wave shorter than a frame.

    Source: Kaldi's compute-fbank-feats; torchaudio.compliance.kaldi.fbank has the same defaults.
    """
    if len(wave16k) < FRAME_SAMPLES:
        raise UserError(
            "The reference audio is too short for the speaker encoder",
            expected=f"at least {FRAME_SAMPLES} samples at {SAMPLE_RATE} Hz, one frame",
            found=f"{len(wave16k)} samples",
            do="give a longer recording",
        )
    frames = np.lib.stride_tricks.sliding_window_view(wave16k, FRAME_SAMPLES)[::_SHIFT]
    return np.concatenate(
        [_log_energies(frames[first : first + _BLOCK]) for first in range(0, len(frames), _BLOCK)]
    )


def _log_energies(frames: NDArray[np.float32]) -> NDArray[np.float32]:
    """(frames, 400) float32 to (frames, 80) float32."""
    centred = np.ascontiguousarray(frames) - _means(frames)
    before = np.concatenate((centred[:, :1], centred[:, :-1]), axis=1)
    windowed = (centred - _PRE_EMPHASIS * before) * _window()
    spectrum = real_transform(np.pad(windowed, ((0, 0), (0, SIZE - FRAME_SAMPLES))))
    power = np.abs(spectrum) ** 2
    return np.log(np.maximum(power @ _mel_bank(), _FLOOR))


def _means(frames: NDArray[np.float32]) -> NDArray[np.float32]:
    """(frames, 400) to (frames, 1): sums in 8 lanes and 4 accumulators, as torch's vectors do."""
    values = np.ascontiguousarray(frames).reshape(len(frames), FRAME_SAMPLES // 8, 8)
    sums = [np.zeros((len(frames), 8), np.float32) for _ in range(4)]
    whole = values.shape[1] // 4 * 4
    for index in range(whole):
        sums[index % 4] = sums[index % 4] + values[:, index]
    for index in range(whole, values.shape[1]):
        sums[0] = sums[0] + values[:, index]
    lanes = sums[0] + sums[1] + sums[2] + sums[3]
    total = np.zeros(len(frames), np.float32)
    for lane in range(8):
        total = total + lanes[:, lane]
    return (total / np.float32(FRAME_SAMPLES))[:, None]


@cache
def _window() -> NDArray[np.float32]:
    """(400,) float32, symmetric."""
    step = np.float32(2 * math.pi / (FRAME_SAMPLES - 1))
    angles = np.arange(FRAME_SAMPLES, dtype=np.float32) * step
    cosines = np.cos(angles.astype(np.float64)).astype(np.float32)
    bits = cosines.view(np.int32)
    bits[list(_COSINES_UP)] += 1
    bits[list(_COSINES_DOWN)] -= 1
    hann = cosines * np.float32(-0.5) + np.float32(0.5)
    return (hann.astype(np.float64) ** np.float64(np.float32(_POVEY))).astype(np.float32)


@cache
def _mel_bank() -> NDArray[np.float32]:
    """(257, 80) float32: triangles of equal width on the mel scale; the last bin has no weight."""

    def mel(hertz: float) -> float:
        return 1127.0 * math.log(1.0 + hertz / 700.0)

    lowest = np.float32(mel(_LOWEST_HZ))
    width = np.float32((mel(_HIGHEST_HZ) - mel(_LOWEST_HZ)) / (SPEAKER_FEATURES + 1))
    band = np.arange(SPEAKER_FEATURES, dtype=np.float32)
    one = np.float32(1)
    left, centre, right = (lowest + (band + np.float32(k)) * width for k in range(3))
    hertz = np.float32(SAMPLE_RATE / SIZE) * np.arange(SIZE // 2, dtype=np.float32)
    mels = (np.float32(1127) * np.log(one + hertz / np.float32(700)))[:, None]
    rising, falling = (mels - left) / (centre - left), (right - mels) / (right - centre)
    weights = np.maximum(np.float32(0), np.minimum(rising, falling))
    return np.pad(weights, ((0, 1), (0, 0)))
