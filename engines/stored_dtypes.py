"""The types of stored tensors in NumPy, narrow floats among them."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def numpy_dtype(name: str) -> np.dtype:
    """NumPy's type of a manifest's dtype; TypeError for a name that is none."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)
