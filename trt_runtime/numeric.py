"""Numbers that a caller gave: Python's and NumPy's alike, and no truth value for one."""

from __future__ import annotations

import math
import numbers


def whole_number(value: object, least: int, most: int | None = None) -> int | None:
    """`value` as int; None unless it is a whole number from `least` to `most`."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        return None
    number = int(value)
    return number if least <= number and (most is None or number <= most) else None


def finite_number(value: object) -> float | None:
    """`value` as float; None unless it is a real number that a float can hold."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # an int too large for a float
        return None
    return number if math.isfinite(number) else None
