"""A buzz in place of a recording, for the examples that are run without one."""

import numpy as np


def buzz(pitch: int) -> tuple[np.ndarray, int]:
    """Stands for a recording: (samples,) float32 and samples a second."""
    t = np.arange(4 * 16_000) / 16_000
    voice = sum(np.sin(2 * np.pi * n * pitch * t) / n for n in range(1, 20))
    return (0.1 * voice * np.sin(3 * np.pi * t) ** 2).astype(np.float32), 16_000
