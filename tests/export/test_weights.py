"""The raw files hold what the table says, at the places that are returned."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import export.weights
from export.checkpoint import Checkpoint
from export.parameters import CONCAT, COPY, Parameter
from export.weights import ALIGNMENT, layout, write_component
from trt_runtime.errors import UserError
from trt_runtime.manifest import StoredTensor


def rows(checkpoint: Checkpoint, component: str) -> list[Parameter]:
    table = checkpoint.family.components(checkpoint.sizes)
    return [row for row in table if row.component == component]


def read(path: Path, entry: StoredTensor) -> np.ndarray:
    dtype = np.dtype(getattr(ml_dtypes, entry.dtype, None) or entry.dtype)
    raw = path.read_bytes()[entry.offset : entry.offset + entry.bytes]
    return np.frombuffer(raw, dtype).reshape(entry.shape)


def expected(checkpoint: Checkpoint, row: Parameter) -> np.ndarray:
    sources = [checkpoint.read(name) for name in row.sources]
    if row.transform == COPY:
        return sources[0]
    if row.transform == CONCAT:
        return np.concatenate(sources)
    return np.concatenate([source.T for source in sources], axis=1)


@pytest.fixture(params=["one block", "a row a block"])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "a row a block":
        monkeypatch.setattr(export.weights, "_BLOCK_BYTES", 1)


@pytest.mark.usefixtures("_blocks")
def test_every_component_is_what_the_table_says(folder: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    for component in checkpoint.family.component_names(checkpoint.sizes):
        table = rows(checkpoint, component)
        path = tmp_path / f"{component}.weights"
        stored = write_component(checkpoint, table, path)
        assert list(stored) == [row.name for row in table]
        end = 0
        for row in table:
            entry = stored[row.name]
            assert (entry.file, entry.shape) == (path.name, row.shape)
            assert entry.offset % ALIGNMENT == 0
            assert end <= entry.offset < end + ALIGNMENT
            end = entry.offset + entry.bytes
            assert entry.dtype == checkpoint.tensors[row.sources[0]].dtype
            np.testing.assert_array_equal(read(path, entry), expected(checkpoint, row))
        assert path.stat().st_size == end


def test_the_layout_is_known_without_reading(folder: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    table = rows(checkpoint, "flow")
    assert layout(checkpoint, table, "f.weights") == write_component(
        checkpoint, table, tmp_path / "f.weights"
    )


def test_the_bytes_are_the_same_each_time(folder: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    for name in ("a", "b"):
        write_component(checkpoint, rows(checkpoint, "flow_advance"), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.usefixtures("_blocks")
def test_sources_of_several_dtypes_become_float32(
    folder: Path, change_tensors: Callable[..., None], tmp_path: Path
) -> None:
    at = "model.model.layers.0.self_attn."

    def edit(tensors: dict[str, np.ndarray]) -> None:
        for kind in ("weight", "bias"):
            tensors[f"{at}q_proj.{kind}"] = tensors[f"{at}q_proj.{kind}"].astype(np.float32)
        tensors[f"{at}k_proj.weight"] = tensors[f"{at}k_proj.weight"].astype(np.float16)

    change_tensors(edit)
    checkpoint = Checkpoint.open(folder)
    table = rows(checkpoint, "talker")
    path = tmp_path / "talker.weights"
    stored = write_component(checkpoint, table, path)
    for row in table:
        mixed = row.name in ("talker.layers.0.qkv_weight", "talker.layers.0.qkv_bias")
        assert stored[row.name].dtype == ("float32" if mixed else "bfloat16")
        parts = [checkpoint.read(name).astype(np.float32) for name in row.sources]
        wanted = parts[0] if row.transform == COPY else None
        if mixed:
            wanted = np.concatenate([part.T for part in parts], axis=-1)
        if wanted is not None:
            found = read(path, stored[row.name]).astype(np.float32)
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_value_that_is_not_finite_is_an_error_that_names_its_tensor(
    folder: Path, change_tensors: Callable[..., None], tmp_path: Path, value: float, dtype: str
) -> None:
    name = "stop_head.weight"

    def edit(tensors: dict[str, np.ndarray]) -> None:
        kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
        tensors[name] = tensors[name].astype(kind)
        tensors[name][1, 5] = value

    change_tensors(edit)
    checkpoint = Checkpoint.open(folder)
    place = tmp_path / "out"
    place.mkdir()
    with pytest.raises(UserError, match=rf"{name} .*not finite") as caught:
        write_component(checkpoint, rows(checkpoint, "flow_advance"), place / "x.weights")
    assert f"{value} at [1, 5]" in str(caught.value)
    assert list(place.iterdir()) == []


def test_the_largest_finite_values_are_kept(
    folder: Path, change_tensors: Callable[..., None], tmp_path: Path
) -> None:
    largest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)

    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors["stop_head.bias"] = np.array([largest, -largest], ml_dtypes.bfloat16)

    change_tensors(edit)
    checkpoint = Checkpoint.open(folder)
    stored = write_component(checkpoint, rows(checkpoint, "flow_advance"), tmp_path / "x")
    assert read(tmp_path / "x", stored["stop_head.bias"]).tolist() == [largest, -largest]


def test_a_missing_source_is_named(
    folder: Path, change_tensors: Callable[..., None], tmp_path: Path
) -> None:
    change_tensors(lambda tensors: tensors.pop("stop_head.bias"))
    checkpoint = Checkpoint.open(folder)
    with pytest.raises(UserError, match=r"stop_head\.bias.*cannot be used"):
        write_component(checkpoint, rows(checkpoint, "flow_advance"), tmp_path / "x")


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "disk is full"), (errno.EIO, "not be written")],
)
def test_a_disk_that_fills_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    checkpoint = Checkpoint.open(folder)
    table = rows(checkpoint, "talker")
    stored = layout(checkpoint, table, "x")
    size = max(entry.offset + entry.bytes for entry in stored.values())
    written = 0
    write = export.weights._write

    def fill(*arguments: Any) -> Iterator[int]:
        nonlocal written
        written += 1
        if written == 5:
            raise OSError(number, "no room")
        return write(*arguments)

    monkeypatch.setattr(export.weights, "_write", fill)
    place = tmp_path / "out"
    place.mkdir()
    with pytest.raises(UserError, match=message) as caught:
        write_component(checkpoint, table, place / "talker.weights")
    if message == "disk is full":
        assert f"{size} bytes" in str(caught.value)
    assert list(place.iterdir()) == []


def test_every_byte_is_counted(folder: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    sizes: list[int] = []
    stored = write_component(checkpoint, rows(checkpoint, "talker"), tmp_path / "x", sizes.append)
    assert sum(sizes) == sum(entry.bytes for entry in stored.values())


def test_a_folder_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    with pytest.raises(UserError, match="could not be written"):
        write_component(checkpoint, rows(checkpoint, "flow"), tmp_path / "no" / "such" / "x")
