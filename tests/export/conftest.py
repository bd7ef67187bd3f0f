"""A small random checkpoint in the released layout, and ways to damage it."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from export.synthetic import write_random_checkpoint

_BACKBONE: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 12,
    "vocab_size": 3,
    "rope_theta": 10000.0,
}

_CONFIG: dict[str, Any] = {
    "model_type": "dense",
    "architectures": ["BailingMMNativeForConditionalGeneration"],
    "llm_config": {
        "model_type": "qwen2",
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 24,
        "vocab_size": 300,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    },
    "audio_tokenizer_config": {
        "sample_rate": 16000,
        "patch_size": 4,
        "enc_kwargs": {
            "input_dim": 16,
            "hop_size": 16,
            "latent_dim": 6,
            "backbone": _BACKBONE | {"num_hidden_layers": 5},
        },
        "dec_kwargs": {"output_dim": 16, "latent_dim": 6, "backbone": _BACKBONE},
    },
    "ditar_config": {
        "hidden_size": 16,
        "depth": 2,
        "num_heads": 2,
        "mlp_ratio": 2.0,
        "patch_size": 4,
        "history_patch_size": 8,
    },
    "aggregator_config": {"hidden_size": 12, "depth": 1, "num_heads": 2},
}


@pytest.fixture
def config() -> dict[str, Any]:
    """A config.json of every section, small enough that its checkpoint is written in no time."""
    return copy.deepcopy(_CONFIG)


@pytest.fixture(scope="session")
def _written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "small"
    write_random_checkpoint(folder, _CONFIG, seed=7)
    return folder


@pytest.fixture
def folder(_written: Path, tmp_path: Path) -> Path:
    """A checkpoint folder of `config`, free to be damaged."""
    return Path(shutil.copytree(_written, tmp_path / "checkpoint"))


Change = Callable[[dict[str, np.ndarray]], None]


@pytest.fixture
def change_tensors(folder: Path) -> Callable[[Change], None]:
    """Rewrites the folder's model.safetensors after a change to its tensors by name."""

    def change(edit: Change) -> None:
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors")

    return change


@pytest.fixture
def write_config(folder: Path) -> Callable[[Any], None]:
    def write(config: Any) -> None:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")

    return write


@pytest.fixture
def checkpoint(tmp_path: Path, config: dict[str, Any]) -> Path:
    folder = tmp_path / "checkpoint"
    write_random_checkpoint(folder, config, seed=3)
    return folder
