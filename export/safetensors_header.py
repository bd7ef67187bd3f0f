"""The header of a safetensors file, read without trusting it.

The format (https://huggingface.co/docs/safetensors): eight bytes of little-endian header length,
that many bytes of JSON, then the tensors' bytes. A header says where each tensor is; a false one
would have us read the wrong bytes or beyond the file, so every statement in it is checked first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from trt_runtime.errors import UserError, reason_of
from trt_runtime.printable import printable
from trt_runtime.raw_tensors import DTYPE_BYTES

#: Our name by the format's name. Sub-byte types are not read.
DTYPES: dict[str, str] = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
}

_METADATA = "__metadata__"
_LARGEST_HEADER = 100_000_000  # the limit of the format's own library
_MOST_DIMENSIONS = 16
_LARGEST_DIMENSION = 1 << 40
_DOWNLOAD_AGAIN = "download or copy the file again"


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: `bytes` bytes from byte `offset` of `file`, row-major, little-endian.

    `dtype` is our name ("bfloat16", "float32", ...), not the format's ("BF16").
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Every tensor of a safetensors file, in the order in which their bytes lie.

    Raises UserError naming the file where it cannot be read, is truncated or longer than it says,
    or where any entry is not exactly consistent: unknown dtype, bytes unlike the shape's, tensors
    that overlap, gaps between them, names given twice.
    """
    try:
        if not path.is_file():  # a pipe would be waited for
            raise OSError("not a plain file")
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            _check_length(path, size, len(prefix), length)
            text = file.read(length)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read",
            expected="a readable safetensors file",
            found=reason_of(error),
            do="check the path and its permissions",
        ) from error
    if len(text) < length:
        raise _truncated(path, 8 + length, 8 + len(text))
    entries = _parse(path, text)
    tensors = [
        _tensor(path, name, entry, 8 + length)
        for name, entry in entries.items()
        if name != _METADATA
    ]
    tensors.sort(key=lambda item: (item[1].offset, item[1].bytes))
    _check_layout(path, size, 8 + length, tensors)
    return dict(tensors)


def _check_length(path: Path, size: int, prefix: int, length: int) -> None:
    if prefix < 8:
        raise _truncated(path, 8, size)
    if length > _LARGEST_HEADER:
        raise UserError(
            f"{path} is not a safetensors file, or its start is damaged",
            expected=f"a header of at most {_LARGEST_HEADER} bytes",
            found=f"a header length of {length} bytes",
            do=_DOWNLOAD_AGAIN,
        )
    if 8 + length > size:
        raise _truncated(path, 8 + length, size)


def _truncated(path: Path, expected: int, found: int) -> UserError:
    return UserError(
        f"{path} is truncated",
        expected=f"{expected} bytes",
        found=f"{found} bytes",
        do=_DOWNLOAD_AGAIN,
    )


def _bad(path: Path, what: str, expected: str, found: object) -> UserError:
    shown = printable(str(found))
    shown = shown if len(shown) <= 200 else shown[:200] + "..."
    return UserError(
        f"The header of {path} is damaged: {what}",
        expected=expected,
        found=shown,
        do=_DOWNLOAD_AGAIN,
    )


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"{twice!r} is given twice")
        return dict(pairs)

    try:
        entries = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise _bad(path, "it is not JSON", "a JSON object of tensors", error) from error
    if not isinstance(entries, dict):
        raise _bad(path, "it is not a JSON object", "a JSON object of tensors", type(entries))
    metadata = entries.get(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _bad(path, f"{_METADATA} is malformed", "texts by name", metadata)
    return entries


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> tuple[str, TensorInfo]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _bad(path, f"entry {name!r} is malformed", "dtype, shape and data_offsets", entry)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _bad(path, f"{name!r} has an unknown dtype", f"one of {', '.join(DTYPES)}", dtype)
    if (
        not isinstance(shape, list)
        or len(shape) > _MOST_DIMENSIONS
        or not all(_whole(size) and size <= _LARGEST_DIMENSION for size in shape)
    ):
        raise _bad(path, f"{name!r} has an impossible shape", "a list of whole numbers", shape)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_whole, offsets)):
        raise _bad(path, f"{name!r} has impossible data_offsets", "two whole numbers", offsets)
    begin, end = offsets
    our_name = DTYPES[dtype]
    expected = prod(shape) * DTYPE_BYTES[our_name]
    if end - begin != expected:
        raise _bad(
            path,
            f"the bytes of {name!r} do not fit its shape",
            f"{expected} bytes for {dtype} {shape}",
            f"{end - begin} bytes (data_offsets {offsets})",
        )
    return name, TensorInfo(path, our_name, tuple(shape), data_start + begin, expected)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_layout(
    path: Path, size: int, data_start: int, tensors: list[tuple[str, TensorInfo]]
) -> None:
    """Tensors must follow each other without overlap or gap and end where the file ends."""
    position = data_start
    for name, tensor in tensors:
        if tensor.offset != position:
            kind = "overlaps the tensor before it" if tensor.offset < position else "leaves a gap"
            raise _bad(
                path,
                f"{name!r} {kind}",
                f"data_offsets that begin at {position - data_start}",
                tensor.offset - data_start,
            )
        position += tensor.bytes
    if size < position:
        raise _truncated(path, position, size)
    if size > position:
        raise UserError(
            f"{path} is longer than its header says",
            expected=f"{position} bytes",
            found=f"{size} bytes",
            do=_DOWNLOAD_AGAIN,
        )
