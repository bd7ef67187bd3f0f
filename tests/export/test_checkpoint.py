"""Opening a checkpoint folder, whole, sharded or damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from export.checkpoint import Checkpoint
from export.synthetic import write_random_checkpoint
from tests.goldens import OMNI_TTS, needs_goldens
from trt_runtime.errors import UserError

INDEX = "model.safetensors.index.json"


def refused(folder: Path, message: str) -> str:
    with pytest.raises(UserError, match=message) as caught:
        Checkpoint.open(folder).require_complete()
    return str(caught.value)


def test_opens_what_is_whole(folder: Path, config: dict[str, Any]) -> None:
    checkpoint = Checkpoint.open(folder)
    checkpoint.require_complete()
    assert checkpoint.config == config
    assert checkpoint.family.name == "ming-omni-tts-dense"
    assert checkpoint.sizes.talker.hidden == 16


def test_reads_views_of_the_stored_values(folder: Path) -> None:
    checkpoint = Checkpoint.open(str(folder))
    for name, expected in load_file(folder / "model.safetensors").items():
        found = checkpoint.read(name)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
        assert not found.flags.writeable
        assert not found.flags.owndata
    assert checkpoint.read("spk_head.weight").dtype == ml_dtypes.bfloat16
    assert checkpoint.read("audio.decoder.head.istft.window").dtype == np.float32


def test_a_view_can_be_read_again_after_its_memory_was_given_back(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    view = checkpoint.read("spk_head.weight")
    before = view.tobytes()
    checkpoint.release("spk_head.weight")
    assert view.tobytes() == before


def test_a_tensor_that_is_not_there(folder: Path) -> None:
    with pytest.raises(UserError, match="holds no tensor nonsense"):
        Checkpoint.open(folder).read("nonsense")


@pytest.fixture
def sharded(tmp_path: Path, config: dict[str, Any]) -> Path:
    folder = tmp_path / "sharded"
    write_random_checkpoint(folder, config, seed=7, shard_bytes=30_000)
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def test_shards_hold_the_same_tensors_and_digest(folder: Path, sharded: Path) -> None:
    whole, parts = Checkpoint.open(folder), Checkpoint.open(sharded)
    parts.require_complete()
    assert set(whole.tensors) == set(parts.tensors)
    for name in whole.tensors:
        assert whole.read(name).tobytes() == parts.read(name).tobytes()
    assert whole.digest() == parts.digest()


def test_the_digest_is_that_of_the_consumed_tensors(
    folder: Path, change_tensors: Callable[..., None]
) -> None:
    before = Checkpoint.open(folder).digest()
    assert len(before) == 64
    change_tensors(lambda tensors: tensors.update({"model.lm_head.weight": np.zeros((300, 16))}))
    # Unused: its values, and even its being there, do not matter.
    assert Checkpoint.open(folder).digest() == before
    change_tensors(lambda tensors: tensors["stop_head.bias"].__setitem__(0, 1.0))
    assert Checkpoint.open(folder).digest() != before


def test_a_dtype_changes_the_digest(folder: Path, change_tensors: Callable[..., None]) -> None:
    before = Checkpoint.open(folder).digest()
    change_tensors(
        lambda tensors: tensors.update(
            {"stop_head.bias": tensors["stop_head.bias"].astype(np.float32)}
        )
    )
    assert Checkpoint.open(folder).digest() != before


# What is not a checkpoint at all.


def test_no_such_folder(tmp_path: Path) -> None:
    message = refused(tmp_path / "absent", "No such folder")
    assert "--download" in message


def test_a_file_instead_of_a_folder(folder: Path) -> None:
    message = refused(folder / "model.safetensors", "is not a folder")
    assert f"give the folder that it lies in: {folder}" in message


def test_an_impossible_path() -> None:
    refused(Path("a\0b"), "No such folder|cannot be used as a path")
    refused(Path("x" * 5000), "No such folder|cannot be used as a path")


def test_a_folder_without_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "model.safetensors" in refused(folder, "holds no config.json")


def test_an_empty_folder(tmp_path: Path) -> None:
    assert "an empty folder" in refused(tmp_path, "holds no config.json")


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "[" * 100_000, "\xff"])
def test_a_config_that_is_not_a_json_object(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    refused(folder, r"config\.json cannot be read")


def test_an_unknown_architecture(folder: Path, write_config: Callable[[Any], None]) -> None:
    write_config({"model_type": "llama"})
    refused(folder, "unknown architecture")


# Weights that are damaged, incomplete or not of the config.


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(folder, "holds no weights")


def test_shards_without_an_index(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    assert f"without {INDEX}" in refused(sharded, "holds no weights")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt"])
def test_pickled_weights(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)
    message = refused(folder, "are pickled")
    assert name in message
    assert "can run any code" in message
    assert "save_file" in message


def test_a_truncated_file(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    refused(folder, r"model\.safetensors is truncated")


def test_a_missing_tensor(folder: Path, change_tensors: Callable[..., None]) -> None:
    change_tensors(lambda tensors: tensors.pop("model.model.layers.1.mlp.up_proj.weight"))
    refused(folder, r"1 missing: model\.model\.layers\.1\.mlp\.up_proj\.weight")


def test_an_extra_tensor(folder: Path, change_tensors: Callable[..., None]) -> None:
    change_tensors(lambda tensors: tensors.update(extra=np.zeros(3, np.float32)))
    refused(folder, "1 unexpected: extra")


def test_a_misshapen_tensor(folder: Path, change_tensors: Callable[..., None]) -> None:
    change_tensors(lambda tensors: tensors.update({"stop_head.bias": np.zeros(3, np.float32)}))
    refused(folder, r"stop_head\.bias \(expected \[2\], found \[3\]\)")


def test_a_config_of_another_size(
    folder: Path, config: dict[str, Any], write_config: Callable[[Any], None]
) -> None:
    config["llm_config"]["num_hidden_layers"] = 3
    write_config(config)
    refused(folder, r"12 missing: model\.model\.layers\.2\.")


def test_a_file_that_shrinks_while_it_is_read(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match="has become shorter"):
        checkpoint.read("stop_head.bias")
    with pytest.raises(UserError, match="has become shorter"):
        checkpoint.digest()


# An index is only believed about files in its folder.


def edit_index(folder: Path, edit: Callable[[dict[str, str]], Any]) -> None:
    data = json.loads((folder / INDEX).read_text())
    edit(data["weight_map"])
    (folder / INDEX).write_text(json.dumps(data))


@pytest.mark.parametrize(
    "file",
    [
        "../model.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "..\\model.safetensors",
        "C:model.safetensors",
        "model.bin",
        ".safetensors",
        "a\0.safetensors",
        "",
        7,
        None,
    ],
)
def test_an_index_that_points_elsewhere(sharded: Path, file: Any) -> None:
    edit_index(sharded, lambda names: names.update({"stop_head.bias": file}))
    assert "plain file names" in refused(sharded, r"index\.json cannot be used")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_an_index_that_is_damaged(sharded: Path, text: str) -> None:
    (sharded / INDEX).write_text(text)
    refused(sharded, r"index\.json cannot be used")


def test_a_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    refused(sharded, f"is missing: {shard.name}")


def test_an_index_that_lists_too_much(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[0].name
    edit_index(sharded, lambda names: names.update({"more.weight": shard}))
    assert "more.weight" in refused(sharded, "lacks tensors that the index lists")


def test_an_index_that_lists_too_little(sharded: Path) -> None:
    edit_index(sharded, lambda names: names.pop("stop_head.bias"))
    assert "stop_head.bias" in refused(sharded, "holds tensors that the index does not list")


def test_an_index_beside_a_single_file_of_that_name(folder: Path) -> None:
    names = load_file(folder / "model.safetensors")
    index = {"weight_map": dict.fromkeys(names, "model.safetensors")}
    (folder / INDEX).write_text(json.dumps(index))
    Checkpoint.open(folder).require_complete()


def test_float16_and_float32_are_read_too(tmp_path: Path, config: dict[str, Any]) -> None:
    for dtype in ("float16", "float32"):
        write_random_checkpoint(tmp_path / dtype, config, dtype=dtype)
        checkpoint = Checkpoint.open(tmp_path / dtype)
        checkpoint.require_complete()
        assert checkpoint.read("spk_head.weight").dtype == dtype


def test_an_integer_weight_is_refused(folder: Path, change_tensors: Callable[..., None]) -> None:
    change_tensors(lambda tensors: tensors.update({"stop_head.bias": np.zeros(2, np.int8)}))
    refused(folder, r"stored in a dtype other than .*stop_head\.bias \(int8\)")


@needs_goldens
def test_every_tensor_of_the_golden_checkpoint_is_accounted_for() -> None:
    checkpoint = Checkpoint.open(OMNI_TTS / "tiny-dense")
    checkpoint.require_complete()
    match = checkpoint.match
    assert len(match.consumed) + len(match.unused) == len(checkpoint.tensors) == 305


def test_a_copy_elsewhere_has_the_same_digest(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    tensors = load_file(copy / "model.safetensors")
    save_file(dict(reversed(tensors.items())), copy / "model.safetensors", {"note": "other header"})
    assert Checkpoint.open(copy).digest() == Checkpoint.open(folder).digest()
