"""Whether parameters fit float16, whose largest number is 65504."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from trt_runtime.errors import UserError
from trt_runtime.manifest import StoredTensor

LARGEST = 65504.0
_BLOCK = 1 << 24
# bfloat16 is the upper half of a float32.
_READ = {"bfloat16": np.uint16, "float32": np.uint32}


def check_float16(folder: Path, parameters: Iterable[tuple[str, StoredTensor]]) -> None:
    """Raises UserError naming the first parameter that is infinite as float16.

    Read in blocks through a mapping, as bits without their sign, whose order is that of the values.
    """
    for name, tensor in parameters:
        if tensor.dtype not in _READ:
            continue
        kind = np.dtype(_READ[tensor.dtype])
        count = tensor.bytes // kind.itemsize
        bits = np.memmap(folder / tensor.file, kind, "r", tensor.offset, (count,))
        unsigned = (1 << (8 * kind.itemsize - 1)) - 1
        largest = max(
            int((bits[start : start + _BLOCK] & unsigned).max(initial=0))
            for start in range(0, max(count, 1), _BLOCK)
        )
        shift = 32 - 8 * kind.itemsize
        value = float(np.array(largest << shift, np.uint32).view(np.float32))
        if not value <= LARGEST:
            raise UserError(
                f"The parameter {name} does not fit float16",
                expected=f"at most {LARGEST:.0f}",
                found=f"{value:g}",
                do="build it in another precision: --precision mixed-bf16, or float32",
            )
