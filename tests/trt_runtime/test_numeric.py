"""trt_runtime.numeric: what counts as a number that a caller gave."""

from fractions import Fraction

import numpy as np
import pytest

from trt_runtime.numeric import finite_number, whole_number

NO_NUMBERS = [True, np.True_, None, "1", 1j, np.array([1]), [1]]


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3)])
def test_whole_numbers_become_int(value):
    number = whole_number(value, 3, 3)
    assert number == 3
    assert type(number) is int


@pytest.mark.parametrize("value", [*NO_NUMBERS, 3.0, np.float32(3), 2, 6, -(10**400), 10**400])
def test_no_whole_number_from_3_to_5(value):
    assert whole_number(value, 3, 5) is None


def test_a_whole_number_without_a_highest():
    assert whole_number(10**400, 1) == 10**400


@pytest.mark.parametrize("value", [-0.5, np.float16(-0.5), Fraction(-1, 2)])
def test_real_numbers_become_float(value):
    number = finite_number(value)
    assert number == -0.5
    assert type(number) is float


@pytest.mark.parametrize("value", [*NO_NUMBERS, float("nan"), float("inf"), 10**400])
def test_no_finite_number(value):
    assert finite_number(value) is None
