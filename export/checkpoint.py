"""A checkpoint folder: config.json and safetensors, opened without reading any tensor.

Tensors are memory-mapped: their bytes are read from disk when they are touched, and given back with
:meth:`Checkpoint.release`, so that a checkpoint larger than memory can be streamed through.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from export.families import Family, family_of
from export.matching import MatchReport, match_tensors, require_match
from export.parameters import Parameter
from export.safetensors_header import TensorInfo
from export.sizes import ModelSizes
from export.weight_files import find_weight_files, read_tensors
from trt_runtime.errors import UserError
from trt_runtime.printable import printable
from trt_runtime.raw_tensors import read_chunks

CONFIG = "config.json"

#: Reading threads: the work is disk and hashing, both outside the interpreter lock.
THREADS = 4

_LARGEST_CONFIG = 16 << 20


@dataclass
class Checkpoint:
    """An opened checkpoint; :meth:`open` makes one.

    `tensors` gives the place of every stored tensor by name, `config` the parsed config.json.
    Whether the tensors fit the family's table is checked by :meth:`require_complete`.
    """

    path: Path
    config: dict[str, Any]
    tensors: Mapping[str, TensorInfo]
    family: Family
    sizes: ModelSizes
    _maps: dict[Path, mmap.mmap] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """Reads config and headers of the folder `path`; raises UserError for unusable ones."""
        folder = check_folder(path)
        config = read_config(folder)
        family = family_of(config)
        sizes = family.sizes(config)
        tensors = read_tensors(find_weight_files(folder), threads=THREADS)
        return cls(folder, config, tensors, family, sizes)

    @cached_property
    def match(self) -> MatchReport:
        """The stored tensors compared with the family's table."""
        return match_tensors(self.family, self.sizes, self.tensors)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Every parameter of the family, made of the tensors that this checkpoint stores."""
        return self.match.layout.components(self.sizes)

    def require_complete(self) -> None:
        """Raises UserError naming every tensor that is missing, unexpected or misshapen."""
        require_match(self.match, self.path)

    def read(self, name: str) -> np.ndarray:
        """A read-only view of tensor `name` in its stored dtype and shape; nothing is copied.

        float16, float32 or ml_dtypes.bfloat16 for a tensor that is consumed. Raises UserError for a
        name that is not stored, or a file that has changed since it was opened.
        """
        info = self._info(name)
        dtype = np.dtype(getattr(ml_dtypes, info.dtype, None) or info.dtype)
        data = np.frombuffer(self._map(info.file), np.uint8, info.bytes, info.offset)
        return data.view(dtype).reshape(info.shape)

    def release(self, name: str) -> None:
        """Gives back the memory that reading `name` has taken; views stay valid and read anew."""
        info = self._info(name)
        mapped = self._maps.get(info.file)
        if mapped is not None and info.bytes and hasattr(mmap, "MADV_DONTNEED"):
            start = info.offset - info.offset % mmap.PAGESIZE
            mapped.madvise(mmap.MADV_DONTNEED, start, info.offset + info.bytes - start)

    def digest(self, on_bytes: Callable[[int], None] | None = None) -> str:
        """Hex SHA-256 of the consumed tensors: name, dtype, shape and bytes, in the order of names.

        The same for every way to shard or order the files, and whatever unused tensors hold.
        `on_bytes` is called with the size of every tensor that has been read.
        """
        names = sorted(self.match.consumed)
        whole = hashlib.sha256()
        # The largest first, so that no thread is left with the embedding table at the end.
        largest_first = sorted(names, key=lambda name: -self.tensors[name].bytes)
        with ThreadPoolExecutor(THREADS) as pool:
            hashes = {}
            for name, found in zip(largest_first, pool.map(self._hash, largest_first), strict=True):
                hashes[name] = found
                if on_bytes is not None:
                    on_bytes(self.tensors[name].bytes)
        for name in names:
            info = self.tensors[name]
            line = json.dumps([name, info.dtype, list(info.shape), hashes[name]])
            whole.update(line.encode("utf-8") + b"\n")
        return whole.hexdigest()

    def _hash(self, name: str) -> str:
        """SHA-256 of a tensor's bytes, read rather than mapped to keep them out of our memory."""
        info = self.tensors[name]
        digest = hashlib.sha256()
        try:
            for chunk in read_chunks(info.file, info.offset, info.bytes):
                digest.update(chunk)
        except EOFError as error:
            raise _changed(info.file) from error
        return digest.hexdigest()

    def _info(self, name: str) -> TensorInfo:
        try:
            return self.tensors[name]
        except KeyError:
            raise UserError(
                f"{self.path} holds no tensor {name}",
                expected="a tensor of the checkpoint",
                do="run python -m export --check on the folder",
            ) from None

    def _map(self, path: Path) -> mmap.mmap:
        mapped = self._maps.get(path)
        if mapped is None:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            end = max(t.offset + t.bytes for t in self.tensors.values() if t.file == path)
            if len(mapped) < end:
                raise _changed(path)
            # Two threads may map the same file at once; either map serves both.
            mapped = self._maps.setdefault(path, mapped)
        return mapped


def _changed(path: Path) -> UserError:
    return UserError(
        f"{path} has become shorter while it was read",
        expected="a file that nothing else writes",
        do="wait until the download or copy has finished, then start again",
    )


def check_folder(path: str | Path) -> Path:
    """`path` as a Path; raises UserError unless it is a folder."""
    folder = Path(path)
    try:
        if folder.is_dir():
            return folder
        exists = folder.exists()
    except (OSError, ValueError) as error:  # an impossible name, or no permission to look
        raise UserError(
            f"{str(path)!r} cannot be used as a path",
            expected="a checkpoint folder",
            found=str(error),
            do="give the path of a folder that you may read",
        ) from error
    if exists:
        raise UserError(
            f"{folder} is not a folder",
            expected="a checkpoint folder with config.json and model.safetensors",
            found="a file",
            do=f"give the folder that it lies in: {folder.parent}",
        )
    raise UserError(
        f"No such folder: {folder}",
        expected="a checkpoint folder with config.json and model.safetensors",
        do="check the path; for a model on the Hugging Face hub add --download",
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The parsed config.json of a folder; raises UserError unless it is a JSON object."""
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(
            f"{folder} holds no {CONFIG}",
            expected="a checkpoint folder in the released layout",
            found=_contents(folder),
            do="give the folder that holds config.json and the weights",
        )
    try:
        if path.stat().st_size > _LARGEST_CONFIG:
            raise ValueError(f"{path.stat().st_size} bytes are too many for a config")
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError(f"it holds a {type(config).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read",
            expected="a JSON object",
            found=str(error),
            do="download the file again",
        ) from error
    return config


def _contents(folder: Path) -> str:
    names = sorted(printable(entry.name) for entry in folder.iterdir())
    return (
        ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else "an empty folder"
    )
