"""The transform of 512 float32 values, against NumPy's in float64."""

from __future__ import annotations

import numpy as np
import pytest

from trt_runtime.float32_fft import SIZE, real_transform


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_fourier_transform(seed):
    x = np.random.default_rng(seed).normal(0, 1, (5, SIZE)).astype(np.float32)
    ours, exact = real_transform(x), np.fft.rfft(x.astype(np.float64))
    assert ours.dtype == np.complex64
    assert ours.shape == exact.shape
    # Some roundings of float32 on sums of 512 values of size 1.
    assert np.abs(ours - exact).max() < 1e-6 * np.abs(exact).max() * 4


@pytest.mark.parametrize("place", [0, 1, 255, 511])
def test_an_impulse_has_a_flat_spectrum(place):
    x = np.zeros((1, SIZE), np.float32)
    x[0, place] = 1
    np.testing.assert_allclose(np.abs(real_transform(x)), 1, atol=1e-6)


def test_rows_do_not_mix():
    x = np.random.default_rng(9).normal(0, 1, (3, SIZE)).astype(np.float32)
    for row in range(3):
        np.testing.assert_array_equal(real_transform(x)[row], real_transform(x[row : row + 1])[0])
