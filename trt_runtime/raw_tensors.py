"""Tensors in raw files, as bundles, engine folders and checkpoints hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

#: Bytes an element, by dtype as manifests and headers name it.
DTYPE_BYTES: Mapping[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e5m2": 1,
    "float8_e4m3fn": 1,
    "float8_e8m0fnu": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
}

#: Every tensor that we write begins at a multiple of this: a cache line, and the widest load.
ALIGNMENT = 64

_CHUNK = 8 << 20


def read_chunks(path: Path, offset: int, length: int) -> Iterator[memoryview]:
    """`length` bytes from `offset` of a file, a few megabytes at a time, in one buffer.

    Read, not memory-mapped: mapped pages would count as memory of this process. Raises EOFError
    where the file ends before.
    """
    buffer = memoryview(bytearray(min(_CHUNK, length)))
    left = length
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while left:
            count = file.readinto(buffer[: min(left, len(buffer))])
            if not count:
                raise EOFError(f"{path} ends {left} bytes before byte {offset + length}")
            left -= count
            yield buffer[:count]
