"""What the speaker encoder hears of a wave: Kaldi's log mel filter bank, less its mean over time.

Computed by kaldi-native-fbank. Where a band is all but empty, near the floor of the logarithm, its
value is the rounding of the wave and of a float32 Fourier transform: half a unit in the last place
of the samples moves the reference's own features by 5e-4 of their largest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trt_runtime.contract import SPEAKER_FEATURES
from trt_runtime.errors import UserError

#: Hz. Other waves are resampled first.
SAMPLE_RATE = 16_000
#: Samples of a frame (25 ms): a shorter wave has none.
FRAME_SAMPLES = 400
_FRAME_MS, _SHIFT_MS = 25, 10
_LOWEST_HZ, _HIGHEST_HZ = 20, 8000


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
    Raises UserError for a wave shorter than a frame, and where kaldi-native-fbank is missing.

    Source: Kaldi's compute-fbank-feats; torchaudio.compliance.kaldi.fbank has the same defaults.
    """
    if len(wave16k) < FRAME_SAMPLES:
        raise UserError(
            "The reference audio is too short for the speaker encoder",
            expected=f"at least {FRAME_SAMPLES} samples at {SAMPLE_RATE} Hz, one frame",
            found=f"{len(wave16k)} samples",
            do="give a longer recording",
        )
    kaldi = _import_kaldi()
    options = kaldi.FbankOptions()
    options.frame_opts.samp_freq = SAMPLE_RATE
    options.frame_opts.frame_length_ms = _FRAME_MS
    options.frame_opts.frame_shift_ms = _SHIFT_MS
    options.frame_opts.window_type = "povey"
    options.frame_opts.preemph_coeff = 0.97
    options.frame_opts.remove_dc_offset = True
    options.frame_opts.snip_edges = True
    options.frame_opts.dither = 0.0
    options.mel_opts.num_bins = SPEAKER_FEATURES
    options.mel_opts.low_freq = _LOWEST_HZ
    options.mel_opts.high_freq = _HIGHEST_HZ
    options.use_energy = False
    extractor = kaldi.OnlineFbank(options)
    extractor.accept_waveform(SAMPLE_RATE, wave16k)
    extractor.input_finished()
    # Frames are views into the extractor, which ends here: stacking copies them.
    return np.stack([extractor.get_frame(index) for index in range(extractor.num_frames_ready)])


def _import_kaldi() -> Any:
    try:
        import kaldi_native_fbank
    except (ImportError, OSError) as error:
        raise UserError(
            "Voices cannot be cloned",
            expected="the package kaldi-native-fbank, which makes the speaker encoder's input",
            found=str(error),
            do="pip install kaldi-native-fbank",
        ) from error
    return kaldi_native_fbank
