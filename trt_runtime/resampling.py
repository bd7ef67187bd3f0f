"""Waves at another sample rate, as torchaudio's `Resample` with its default filter makes them.

A wave is taken for the sum of sinc functions that its samples stand for (Whittaker–Shannon),
low-passed at 0.99 of the lower Nyquist frequency; the sinc is cut after six zero crossings by a
Hann window. With both rates divided by their greatest common divisor, the filter of output j is
that of output j + to: there are `to` different ones, and only few of their taps are not zero.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from trt_runtime.errors import UserError
from trt_runtime.printable import shown

#: From a rate that speech does not survive to one above any recorder. They bound a filter bank: it
#: has at most 12.2 taps for each unit of the higher rate, and a phase at most 12.2 of their ratio.
LOWEST_RATE, HIGHEST_RATE = 1_000, 768_000

#: torchaudio's defaults: zero crossings on a side of the sinc, and the cut-off in Nyquists.
_ZERO_CROSSINGS = 6
_ROLLOFF = 0.99

#: Numbers in the arrays of one block: some megabytes, which stay near the processor.
_BLOCK = 1 << 18


def check_rate(rate: object, name: str = "sample rate") -> int:
    """`rate` as int; raises UserError unless it is whole and from LOWEST_RATE to HIGHEST_RATE."""
    whole = int(rate) if isinstance(rate, int | np.integer) and not isinstance(rate, bool) else 0
    if not LOWEST_RATE <= whole <= HIGHEST_RATE:
        raise UserError(
            f"The {name} cannot be used",
            expected=f"a whole number of samples a second, {LOWEST_RATE} to {HIGHEST_RATE}",
            found=shown(rate),
            do="give the rate at which the audio was recorded, such as 16000, 24000 or 44100",
        )
    return whole


def resample(wave: NDArray[np.float32], from_rate: int, to_rate: int) -> NDArray[np.float32]:
    """`wave`: (samples,) float32 at `from_rate` Hz → (ceil(samples·to/from),) float32 at `to_rate`.

    The wave is taken for silent before its start and after its end. Equal rates give the wave
    itself, not a copy. The time it takes is linear in the longer of the two waves, and memory
    beyond them is bounded for any rates. Raises UserError for a rate that :func:`check_rate`
    refuses and ValueError for an array that is no wave.

    Source: torchaudio.transforms.Resample (sinc_interp_hann, lowpass_filter_width 6, rolloff 0.99),
    after J. O. Smith, Digital Audio Resampling. torchaudio.functional.resample computes the whole
    filter in float32, and differs from this in the sixth decimal.
    """
    from_rate, to_rate = check_rate(from_rate), check_rate(to_rate)
    if wave.ndim != 1 or wave.dtype != np.float32:
        raise ValueError(f"wave is {wave.shape} {wave.dtype}, not (samples,) float32")
    if from_rate == to_rate:
        return wave
    divisor = math.gcd(from_rate, to_rate)
    old, new = from_rate // divisor, to_rate // divisor
    if not len(wave):
        return wave.copy()
    filters = _filters(old, new)
    taps = filters.shape[1]
    # A filter's middle tap lies on the last input sample that is not after the output.
    windows = sliding_window_view(np.pad(wave, taps // 2), taps)
    resampled = np.empty(-(-len(wave) * new // old), np.float32)
    block = max(1, _BLOCK // taps)
    for first in range(0, len(resampled), block):
        output = np.arange(first, min(first + block, len(resampled)), dtype=np.int64)
        resampled[output[0] : output[-1] + 1] = np.einsum(
            "ij,ij->i", windows[output * old // new], filters[output % new]
        )
    return resampled


@lru_cache(maxsize=4)
def _filters(old: int, new: int) -> NDArray[np.float32]:
    """The filter of each phase: (new, taps) float32, for coprime rates.

    Row j makes output j, at input position j·old/new, of the inputs around floor(j·old/new).
    """
    # The cut-off in cycles of the common time unit, in which inputs are 1/old apart.
    cutoff = min(old, new) * _ROLLOFF
    side = math.ceil(_ZERO_CROSSINGS * old / cutoff)
    tap = np.arange(-side, side + 1, dtype=np.int64)
    filters = np.empty((new, len(tap)), np.float32)
    rows = max(1, _BLOCK // len(tap))
    for first in range(0, new, rows):
        phase = np.arange(first, min(first + rows, new), dtype=np.int64)[:, None]
        # torchaudio divides in float32 here, and in float64 from here on. For awkward pairs of
        # rates that is noise at -75 dB, which the reference's waves have too.
        position = (phase.astype(np.float32) / np.float32(new)).astype(np.float64)
        time = ((phase * old // new + tap) / old - position) * cutoff
        window = np.cos(np.clip(time / _ZERO_CROSSINGS, -1, 1) * (math.pi / 2)) ** 2
        filters[first : first + rows] = np.sinc(time) * window * (cutoff / old)
    filters.flags.writeable = False
    return filters
