"""The Fourier transform of 512 real float32 values, rounded as torch rounds it on x86-64.

Where a mel band is all but empty its logarithm is made of the transform's rounding, so features
that must equal torchaudio's need the same operations in the same order: a complex transform of 256
by decimation in time with radices 8, 8 and 4, and the split of a real transform packed in two
halves (Sorensen et al. 1987). No product is fused with a sum. Held bit for bit to recorded features
by tests, within their tolerance.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Complex = NDArray[np.complex64]

SIZE = 512
_RADICES = (8, 8, 4)
#: The root of one half, rounded up where the nearest float32 lies below it.
_HALF_ROOT = np.nextafter(np.float32(math.sqrt(0.5)), np.float32(1))


def real_transform(x: NDArray[np.float32]) -> Complex:
    """x: (rows, 512) float32 to its non-negative frequencies, (rows, 257) complex64."""
    packed = (x[..., 0::2] + 1j * x[..., 1::2]).astype(np.complex64)
    halves = _transform(packed, _RADICES)
    bins = np.arange(SIZE // 2 + 1)
    turns = np.pi * bins / (SIZE // 2)
    even, odd = halves[..., bins % (SIZE // 2)], np.conj(halves[..., -bins % (SIZE // 2)])
    half = np.float32(0.5)
    weight = half - half * np.sin(turns).astype(np.float32)
    split = (weight - 1j * (half * np.cos(turns).astype(np.float32))).astype(np.complex64)
    return odd + _product(even - odd, split)


def _transform(x: Complex, radices: tuple[int, ...]) -> Complex:
    """Decimation in time: every `radix`-th value is transformed, then they are combined."""
    if not radices:
        return x
    radix, size = radices[0], x.shape[-1]
    places = np.arange(size // radix)
    parts = [_transform(x[..., first::radix], radices[1:]) for first in range(radix)]
    turned = [parts[0]]
    for first in range(1, radix):
        twiddle = np.exp(-2j * np.pi * first * places / size).astype(np.complex64)
        turned.append(_product(parts[first], twiddle))
    return np.concatenate(_of_four(turned) if radix == 4 else _of_eight(turned), axis=-1)


def _of_four(y: list[Complex]) -> list[Complex]:
    a, b = y[0] + y[2], y[0] - y[2]
    c, d = y[1] + y[3], _times_i(y[1] - y[3])
    return [a + c, b - d, a - c, b + d]


def _of_eight(y: list[Complex]) -> list[Complex]:
    even = _of_four([y[i] + y[i + 4] for i in range(4)])
    odd = [y[i] - y[i + 4] for i in range(4)]
    p, q = odd[0] - _times_i(odd[2]), odd[0] + _times_i(odd[2])
    m = _HALF_ROOT * (odd[1] - _times_i(odd[3]))
    n = _HALF_ROOT * (odd[1] + _times_i(odd[3]))
    u = ((m.real + m.imag) + 1j * (m.imag - m.real)).astype(np.complex64)
    v = ((n.imag - n.real) - 1j * (n.real + n.imag)).astype(np.complex64)
    return [even[0], p + u, even[1], q + v, even[2], p - u, even[3], q - v]


def _times_i(z: Complex) -> Complex:
    return (-z.imag + 1j * z.real).astype(np.complex64)


def _product(a: Complex, b: Complex) -> Complex:
    """Written out: libraries may fuse its products and sums."""
    real = a.real * b.real - a.imag * b.imag
    return (real + 1j * (a.real * b.imag + a.imag * b.real)).astype(np.complex64)
