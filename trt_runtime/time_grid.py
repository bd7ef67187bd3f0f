"""The flow's time grid: unequal steps, then a sway towards the start (the reference's schedule)."""

from __future__ import annotations

import numpy as np

from trt_runtime.errors import UserError

#: Points in 32nds for the step counts that have a table; other counts are evenly spaced.
_TABLES = {
    5: (0, 2, 4, 8, 16, 32),
    6: (0, 2, 4, 6, 8, 16, 32),
    7: (0, 2, 4, 6, 8, 16, 24, 32),
    10: (0, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32),
    12: (0, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32),
    16: (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32),
}


def time_grid(steps: int) -> np.ndarray:
    """Flow times of an Euler solve, float32 (steps + 1,), from 0 to 1.

    Raises UserError for fewer than one step. The sway t' = t - (cos(pi t / 2) - 1 + t) is computed
    in float32 and in this order, as the reference does.
    """
    if steps < 1:
        raise UserError(
            "A flow solve needs steps",
            expected="1 or more",
            found=str(steps),
            do="export again from a checkpoint whose flow has solver steps",
        )
    if steps in _TABLES:
        times = np.array(_TABLES[steps], np.float32) * np.float32(1 / 32)
    else:
        times = np.linspace(0, 1, steps + 1, dtype=np.float32)
    half_pi = np.float32(np.pi / 2)
    return times - (np.cos(half_pi * times) - np.float32(1) + times)
