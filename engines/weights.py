"""One file of weights a component: each distinct tensor once, however many graphs use it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from trt_runtime.manifest import StoredTensor
from trt_runtime.raw_tensors import ALIGNMENT

#: Called for each pass over a tensor's bytes.
Chunks = Callable[[], Iterator[bytes | memoryview]]


class WeightStore:
    """Writes tensors to `folder / file`, addressed by content; only hashes are kept in memory.

    The file is made at the first tensor. Use as a context manager: it closes the file.
    """

    def __init__(self, folder: Path, file: str) -> None:
        self.file = file
        self._path = folder / file
        self._output: BinaryIO | None = None
        self._end = 0
        self._stored: dict[bytes, StoredTensor] = {}

    def __enter__(self) -> WeightStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._output is not None:
            self._output.close()

    @property
    def bytes_written(self) -> int:
        return self._end

    def add(self, dtype: str, shape: tuple[int, ...], chunks: Chunks) -> StoredTensor:
        """Where the tensor lies; it is written unless an equal one was before.

        `chunks` is read once to hash and again only to write, so that a tensor used by many graphs
        costs no writing and no tensor is held whole.
        """
        digest = hashlib.sha256(f"{dtype} {shape} ".encode())
        for chunk in chunks():
            digest.update(chunk)
        key = digest.digest()
        if key not in self._stored:
            self._stored[key] = self._write(dtype, shape, chunks)
        return self._stored[key]

    def flush(self) -> None:
        """Hands what was written to the system, so that others can read it by the file's name."""
        if self._output is not None:
            self._output.flush()

    def _write(self, dtype: str, shape: tuple[int, ...], chunks: Chunks) -> StoredTensor:
        if self._output is None:
            self._output = self._path.open("xb")
        padding = -self._end % ALIGNMENT
        self._output.write(bytes(padding))
        start = end = self._end + padding
        for chunk in chunks():
            end += self._output.write(chunk)
        self._end = end
        return StoredTensor(self.file, dtype, shape, start, end - start)
