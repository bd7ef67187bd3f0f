"""Arrays by name in .npz files, as numpy writes them."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trt_runtime.errors import reason_of


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """A file's arrays of those names. Raises ValueError, which says why, where it lacks one."""
    try:
        file = np.load(path)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("an array without a name")
        with file:
            arrays = {name: file[name] for name in names}
    except KeyError as error:
        raise ValueError(f"no array {error.args[0]}") from error
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(reason_of(error)) from error
    for name, array in arrays.items():
        # numpy gives the bytes of what is no array.
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name}, which is no array")
    return arrays
