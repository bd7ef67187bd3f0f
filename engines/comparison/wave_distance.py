"""Distances between waveforms, in NumPy: how far a wave is from its reference, by ear too.

All are computed in float64 over waves of one length; (samples,) each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Wave = NDArray[np.floating]

#: Mel bands, and the window of their spectra in seconds.
MEL_BANDS, MEL_WINDOW_S, MEL_HOP_S = 80, 0.032, 0.008
#: Below the loudest power of the reference, where levels are no longer told apart.
FLOOR_DB = 80.0
#: FFT size, hop and window length of each resolution, in samples (Yamamoto et al. 2020, table 1).
RESOLUTIONS = ((1024, 120, 600), (2048, 240, 1200), (512, 50, 240))


def signal_to_noise(wave: Wave, reference: Wave) -> float:
    """10 log10(sum reference^2 / sum (wave - reference)^2) in dB; infinite for equal waves.

    Minus infinity where the reference is silent and the wave is not.
    """
    noise = float(np.square(np.asarray(wave, np.float64) - reference).sum())
    signal = float(np.square(np.asarray(reference, np.float64)).sum())
    if noise == 0.0:
        return float("inf")
    return float(10 * np.log10(signal / noise)) if signal else float("-inf")


def log_mel_distance(wave: Wave, reference: Wave, sample_rate: int) -> float:
    """Log spectral distance over mel bands, in dB: the mean over frames of a root mean square.

    mean_t sqrt(mean_m (10 log10 P(t, m) - 10 log10 Q(t, m))^2), P and Q the powers of both waves in
    mel band m of frame t (Gray & Markel, "Distance measures for speech processing", IEEE TASSP
    1976), both floored :data:`FLOOR_DB` below the reference's loudest.
    """
    powers = [_mel_powers(x, sample_rate) for x in (wave, reference)]
    floor = max(float(powers[1].max()) * 10 ** (-FLOOR_DB / 10), 1e-20)
    levels = [10 * np.log10(np.maximum(power, floor)) for power in powers]
    return float(np.sqrt(np.square(levels[0] - levels[1]).mean(1)).mean())


def multi_resolution_stft_distance(wave: Wave, reference: Wave) -> float:
    """The multi-resolution STFT loss of Yamamoto, Song & Kim, "Parallel WaveGAN" (ICASSP 2020).

    The mean over :data:`RESOLUTIONS` of spectral convergence, || |S| - |R| ||_F / || |R| ||_F, plus
    the mean of |log |S| - log |R||, S and R the short-time spectra of wave and reference.
    Magnitudes are floored :data:`FLOOR_DB` below the reference's largest.
    """
    total = 0.0
    for size, hop, window in RESOLUTIONS:
        magnitudes = [np.abs(stft(x, size, hop, window)) for x in (wave, reference)]
        floor = max(float(magnitudes[1].max()) * 10 ** (-FLOOR_DB / 20), 1e-10)
        found, wanted = (np.maximum(m, floor) for m in magnitudes)
        convergence = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
        total += float(convergence + np.abs(np.log(found) - np.log(wanted)).mean())
    return total / len(RESOLUTIONS)


def stft(wave: Wave, size: int, hop: int, window: int) -> NDArray[np.complex128]:
    """Short-time Fourier transform under a Hann window, (frames, size // 2 + 1) complex128.

    The wave is padded with zeros by half a window at both ends, so that every sample counts.
    """
    padded = np.pad(np.asarray(wave, np.float64), window // 2)
    padded = np.pad(padded, (0, max(0, window - len(padded))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
    # Periodic, as for analysis: the last point would repeat the first.
    taper = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    return np.fft.rfft(frames * taper, size, axis=1)


def mel_filters(bands: int, size: int, sample_rate: int) -> NDArray[np.float64]:
    """(bands, size // 2 + 1) triangles, even in mel = 2595 log10(1 + f / 700) (O'Shaughnessy 1987).

    From 0 Hz to half the sample rate; each triangle's peak is 1.
    """
    top = 2595 * np.log10(1 + sample_rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1)
    frequencies = np.arange(size // 2 + 1) * sample_rate / size
    low, peak, high = (edges[i : i + bands, None] for i in range(3))
    rising = (frequencies - low) / (peak - low)
    falling = (high - frequencies) / (high - peak)
    return np.maximum(0.0, np.minimum(rising, falling))


def _mel_powers(wave: Wave, sample_rate: int) -> NDArray[np.float64]:
    window, hop = int(MEL_WINDOW_S * sample_rate), int(MEL_HOP_S * sample_rate)
    size = 1 << (window - 1).bit_length()
    power = np.square(np.abs(stft(wave, size, hop, window)))
    return power @ mel_filters(MEL_BANDS, size, sample_rate).T
