"""The weight files of a checkpoint folder: one safetensors file, or an index with its shards."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.safetensors_header import TensorInfo, read_header
from trt_runtime.errors import UserError
from trt_runtime.manifest import is_plain_name
from trt_runtime.printable import printable

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_LARGEST_INDEX = 256 << 20
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
#: FILE.bin is not replaced by the file's name: that is a stranger's text, and this is a command.
_CONVERT = (
    'convert it where you trust its source: python -c "import torch; '
    "from safetensors.torch import save_file; "
    "save_file({k: v.contiguous().clone() for k, v in torch.load('FILE.bin', map_location='cpu', "
    "weights_only=True).items()}, 'model.safetensors')\""
)


@dataclass(frozen=True)
class WeightFiles:
    """The files of `folder`, and for shards the names that the index lists for each of them."""

    folder: Path
    listed: Mapping[str, tuple[str, ...] | None]


def find_weight_files(folder: Path) -> WeightFiles:
    """The weight files of `folder`; raises UserError where there are none, or only pickled ones."""
    if (folder / INDEX).exists():
        return WeightFiles(folder, _read_index(folder))
    if (folder / SINGLE).exists():
        return WeightFiles(folder, {SINGLE: None})
    pickled = sorted(printable(path.name) for pattern in _PICKLED for path in folder.glob(pattern))
    if pickled:
        raise UserError(
            f"The weights of {folder} are pickled",
            expected=f"{SINGLE}, or {INDEX} with its shards",
            found=", ".join(pickled[:5])
            + (", ..." if len(pickled) > 5 else "")
            + " (reading a pickle can run any code that its writer put in it)",
            do=_CONVERT,
        )
    others = sorted(printable(path.name) for path in folder.glob("*.safetensors"))
    raise UserError(
        f"{folder} holds no weights",
        expected=f"{SINGLE}, or {INDEX} with its shards",
        found=f"{', '.join(others[:5])} without {INDEX}" if others else "no safetensors file",
        do="download the missing files, or give the folder that holds them",
    )


def _bad_index(path: Path, expected: str, found: object) -> UserError:
    shown = printable(str(found))
    return UserError(
        f"{path} cannot be used",
        expected=expected,
        found=shown if len(shown) <= 200 else shown[:200] + "...",
        do="download the index and its shards again",
    )


def _read_index(folder: Path) -> dict[str, tuple[str, ...] | None]:
    path = folder / INDEX
    try:
        if not path.is_file():
            raise ValueError("not a plain file")
        if path.stat().st_size > _LARGEST_INDEX:
            raise ValueError(f"{path.stat().st_size} bytes are too many for an index")
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _bad_index(path, "a JSON object with weight_map", error) from error
    weight_map = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise _bad_index(path, "weight_map: a shard's file name for each tensor", weight_map)
    listed: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _is_plain(file):
            raise _bad_index(
                path, "plain file names ending in .safetensors", f"{file!r} for {name!r}"
            )
        listed.setdefault(file, []).append(name)
    for file in listed:
        if not (folder / file).is_file():
            raise UserError(
                f"A shard of {folder} is missing: {file}",
                expected=f"{len(listed)} shards: {', '.join(sorted(listed)[:5])}",
                found=f"{sum((folder / name).is_file() for name in listed)} of them",
                do="download the missing shard",
            )
    return {file: tuple(names) for file, names in listed.items()}


def _is_plain(file: str) -> bool:
    """A name in the folder itself: an index must not point anywhere else."""
    return file.endswith(".safetensors") and is_plain_name(file)


def read_tensors(
    files: WeightFiles,
    *,
    threads: int,
    on_error: Callable[[UserError], None] | None = None,
) -> dict[str, TensorInfo]:
    """Every tensor by name, from the headers of all files, read by several threads.

    Raises UserError for a damaged header, and where a shard's tensors are not exactly those that
    the index lists for it. With `on_error` those are handed to it instead, one a file, and the
    tensors of the other files are returned.
    """

    def read(file: str) -> dict[str, TensorInfo]:
        header = read_header(files.folder / file)
        listed = files.listed[file]
        if listed is not None:
            _check_shard(files.folder, file, set(listed), set(header))
        return header

    tensors: dict[str, TensorInfo] = {}
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(read, file) for file in sorted(files.listed)]:
            try:
                tensors.update(future.result())
            except UserError as error:
                if on_error is None:
                    raise
                on_error(error)
    return tensors


def _check_shard(folder: Path, file: str, listed: set[str], stored: set[str]) -> None:
    for names, problem in (
        (sorted(listed - stored), "lacks tensors that the index lists for it"),
        (sorted(stored - listed), "holds tensors that the index does not list for it"),
    ):
        if names:
            raise UserError(
                f"{folder / file} {problem}",
                expected=f"the {len(listed)} tensors of {INDEX}",
                found=f"{len(names)} that differ: {printable(', '.join(names[:5]))}",
                do="download the index and its shards again: they are not of one version",
            )
