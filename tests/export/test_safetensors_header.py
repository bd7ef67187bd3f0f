"""A header is believed only where every statement in it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from export.safetensors_header import read_header
from trt_runtime.errors import UserError


def write(path: Path, header: Any, data: bytes = b"", *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_reads_what_the_format_s_own_library_writes(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array(3, np.int64),
        "c": np.zeros((0, 4), np.float16),
    }
    path = tmp_path / "x.safetensors"
    save_file(arrays, path, metadata={"format": "np"})
    header = read_header(path)
    assert set(header) == set(arrays)
    raw = path.read_bytes()
    for name, array in arrays.items():
        info = header[name]
        assert (info.file, info.dtype, info.shape) == (path, array.dtype.name, array.shape)
        assert raw[info.offset : info.offset + info.bytes] == array.tobytes()


def test_reads_an_empty_header(tmp_path: Path) -> None:
    assert read_header(write(tmp_path / "x.safetensors", {})) == {}


LIES: dict[str, tuple[Any, bytes, str]] = {
    "not JSON": (b"{nonsense", b"", "not JSON"),
    "not UTF-8": (b"\xff\xfe{}", b"", "not JSON"),
    "deep nesting": (b"[" * 100_000, b"", "not JSON"),
    "a list": ([], b"", "not a JSON object"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, b"", "__metadata__"),
    "a name twice": (b'{"a": {}, "a": {}}', b"", "twice"),
    "an entry that is no object": ({"a": 3}, b"", "malformed"),
    "an entry without shape": ({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, b"", "malformed"),
    "an unknown dtype": ({"a": entry("F12", [1], 0, 4)}, b"1234", "unknown dtype"),
    "a dtype that is no text": ({"a": entry(["F32"], [1], 0, 4)}, b"1234", "unknown dtype"),  # type: ignore[arg-type]
    "a negative size": ({"a": entry("F32", [-1], 0, 4)}, b"1234", "impossible shape"),
    "a fractional size": ({"a": entry("F32", [1.0], 0, 4)}, b"1234", "impossible shape"),
    "a size that is true": ({"a": entry("F32", [True], 0, 4)}, b"1234", "impossible shape"),
    "an enormous size": ({"a": entry("F32", [0, 1 << 70], 0, 0)}, b"", "impossible shape"),
    "too many dimensions": ({"a": entry("F32", [1] * 99, 0, 4)}, b"1234", "impossible shape"),
    "negative offsets": ({"a": entry("F32", [1], -4, 0)}, b"1234", "data_offsets"),
    "three offsets": (
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}},
        b"1234",
        "data_offsets",
    ),
    "bytes unlike the shape": ({"a": entry("F32", [2], 0, 4)}, b"1234", "do not fit its shape"),
    "an end before the begin": ({"a": entry("F32", [1], 4, 0)}, b"1234", "do not fit its shape"),
    "an overlap": (
        {"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 2, 6)},
        b"123456",
        "overlaps",
    ),
    "a gap": ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, b"x" * 12, "gap"),
    "a gap at the start": ({"a": entry("F32", [1], 4, 8)}, b"x" * 8, "gap"),
}


@pytest.mark.parametrize(("header", "data", "message"), LIES.values(), ids=LIES.keys())
def test_refuses_a_header_that_lies(tmp_path: Path, header: Any, data: bytes, message: str) -> None:
    path = write(tmp_path / "x.safetensors", header, data)
    with pytest.raises(UserError, match=message) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("size", [0, 4, 8, 20, -5])
def test_says_how_much_of_a_truncated_file_is_there(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": np.zeros(10, np.float32)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    found = len(whole[:size])
    with pytest.raises(UserError, match=rf"truncated(.|\n)*Found: {found} bytes"):
        read_header(path)


def test_refuses_bytes_beyond_the_last_tensor(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": np.zeros(10, np.float32)}, path)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(UserError, match="longer than its header says"):
        read_header(path)


def test_refuses_an_enormous_header_length_before_reading_it(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {}, length=1 << 62)
    with pytest.raises(UserError, match="not a safetensors file"):
        read_header(path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_header(tmp_path / "absent.safetensors")
