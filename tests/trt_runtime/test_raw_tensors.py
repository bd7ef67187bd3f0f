from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import trt_runtime.raw_tensors
from trt_runtime.raw_tensors import DTYPE_BYTES, read_chunks


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_chunks_are_the_files_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(trt_runtime.raw_tensors, "_CHUNK", chunk)
    (tmp_path / "raw").write_bytes(bytes(range(50)))
    found = [bytes(part) for part in read_chunks(tmp_path / "raw", 7, 20)]
    assert b"".join(found) == bytes(range(7, 27))
    assert max(map(len, found)) <= chunk
    assert list(read_chunks(tmp_path / "raw", 7, 0)) == []


def test_reading_past_the_end_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"abc")
    with pytest.raises(EOFError):
        list(read_chunks(tmp_path / "raw", 1, 5))


def test_widths_are_numpys() -> None:
    for name in DTYPE_BYTES.keys() & np.sctypeDict.keys():
        assert DTYPE_BYTES[name] == np.dtype(name).itemsize
