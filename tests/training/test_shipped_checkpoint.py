"""The demonstration checkpoint in the repository is what this room writes."""

from __future__ import annotations

import json
from pathlib import Path

from export.preflight import check_checkpoint
from training.shape import config
from training.tokenizer import write_tokenizer
from trt_runtime.manifest import TOKENIZER

CHECKPOINT = Path(__file__).resolve().parents[2] / "examples" / "demo-checkpoint"


def test_its_config_and_its_tokenizer(tmp_path: Path) -> None:
    shipped = json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))
    assert shipped == config(patch=1, history=1)
    write_tokenizer(tmp_path, shipped["llm_config"]["vocab_size"])
    for name in (TOKENIZER, "tokenizer_config.json"):
        assert (CHECKPOINT / name).read_bytes() == (tmp_path / name).read_bytes(), name


def test_it_has_all_that_a_released_one_has() -> None:
    report = check_checkpoint(CHECKPOINT)
    assert report.ok
    assert (CHECKPOINT / "campplus.onnx").is_file()
