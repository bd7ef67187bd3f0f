"""Weights from a folder to a device: files memory-mapped, several threads through pinned memory."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from trt_runtime.backends.device_buffer import Place
from trt_runtime.manifest import StoredTensor
from trt_runtime.progress_bar import ProgressBar

_THREADS = 4
_PIECE_BYTES = 32 << 20


class _Piece(NamedTuple):
    """Some bytes of a mapped file, and where they go."""

    source: Any
    target: Any


def load_weights(folder: Path, tensors: Mapping[str, StoredTensor], place: Place) -> dict[str, Any]:
    """torch's tensor by name, contiguous on the place's device; returns when all are there."""
    torch = place.torch
    mapped = {file: _mapped(folder / file, torch) for file in {t.file for t in tensors.values()}}
    with place.ordered():
        loaded = {
            name: torch.empty(t.shape, dtype=getattr(torch, t.dtype), device=place.device)
            for name, t in tensors.items()
        }
    pieces = [
        piece for name, t in tensors.items() for piece in _pieces(mapped[t.file], t, loaded[name])
    ]
    own = threading.local()
    if place.device.type == "cuda":
        torch.cuda.synchronize(place.device)
    with (
        ProgressBar("loading the talker", sum(t.bytes for t in tensors.values())) as bar,
        ThreadPoolExecutor(_THREADS) as pool,
    ):
        for size in pool.map(lambda piece: _upload(piece, place, own), pieces):
            bar.add(size)
    return loaded


def _mapped(path: Path, torch: Any) -> Any:
    """The file's bytes as a tensor: pages are read when they are wanted."""
    with path.open("rb") as file:
        # A private mapping: torch takes no memory that may not be written.
        return torch.frombuffer(
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8
        )


def _pieces(mapped: Any, tensor: StoredTensor, target: Any) -> Iterator[_Piece]:
    raw = target.reshape(-1).view(mapped.dtype)
    for start in range(0, tensor.bytes, _PIECE_BYTES):
        end = min(start + _PIECE_BYTES, tensor.bytes)
        yield _Piece(mapped[tensor.offset + start : tensor.offset + end], raw[start:end])


def _upload(piece: _Piece, place: Place, own: threading.local) -> int:
    size = int(piece.source.numel())
    if place.device.type != "cuda":
        piece.target.copy_(piece.source)
        return size
    torch = place.torch
    if not hasattr(own, "staging"):
        own.staging = torch.empty(_PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
        own.stream = torch.cuda.Stream(place.device)
    staging = own.staging[:size]
    staging.copy_(piece.source)
    with torch.cuda.stream(own.stream):
        piece.target.copy_(staging, non_blocking=True)
    own.stream.synchronize()
    return size
