"""A tokenizer that the runtime would refuse is refused before minutes of work."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import export.bundle
from export import export_checkpoint
from export.checkpoint import Checkpoint
from export.control_tokens import require_control_tokens
from export.families import FAMILIES
from export.synthetic import write_random_checkpoint
from trt_runtime.errors import UserError
from trt_runtime.prompt import GRAMMARS

Edit = Callable[[Callable[[dict[str, Any]], None]], None]


@pytest.fixture
def edit(folder: Path) -> Edit:
    """Changes the folder's tokenizer.json."""

    def change(how: Callable[[dict[str, Any]], None]) -> None:
        path = folder / "tokenizer.json"
        data = json.loads(path.read_text(encoding="utf-8"))
        how(data)
        path.write_text(json.dumps(data), encoding="utf-8")

    return change


def refusal(folder: Path) -> str:
    checkpoint = Checkpoint.open(folder)
    with pytest.raises(UserError) as caught:
        require_control_tokens(folder, checkpoint.family, checkpoint.sizes)
    return str(caught.value)


def without(text: str, *, keep_as_word: bool) -> Callable[[dict[str, Any]], None]:
    def how(data: dict[str, Any]) -> None:
        data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] != text]
        if not keep_as_word:
            del data["model"]["vocab"][text]

    return how


def test_a_whole_tokenizer_passes(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    require_control_tokens(folder, checkpoint.family, checkpoint.sizes)


@pytest.mark.parametrize("keep_as_word", [False, True])
def test_a_missing_token_is_named(folder: Path, edit: Edit, keep_as_word: bool) -> None:
    """Also where it is an ordinary word: the runtime looks among added tokens only."""
    edit(without("<audioPatch>", keep_as_word=keep_as_word))
    message = refusal(folder)
    assert "lacks control tokens of the prompt grammar: <audioPatch>" in message
    assert "What to do:" in message


def test_ids_that_the_table_has_no_row_for_are_named(
    folder: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    config["llm_config"]["vocab_size"] = 299
    write_random_checkpoint(tmp_path / "b", config, tokenizer=False)
    shutil.copy(folder / "tokenizer.json", tmp_path / "b")
    # No control token of the grammar, but a text may hold it.
    assert "has 299 rows, too few for: </spk> (299)" in refusal(tmp_path / "b")


def test_an_export_begins_with_it(
    folder: Path, tmp_path: Path, edit: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(without("<audio>", keep_as_word=False))
    monkeypatch.setattr(export.bundle, "write_component", lambda *_: pytest.fail("too late"))
    with pytest.raises(UserError, match="lacks control tokens"):
        export_checkpoint(folder, tmp_path / "bundle")


def test_exporter_and_runtime_need_the_same_tokens() -> None:
    """Two lists, since the exporter does not import the runtime's prompts: one content."""
    for family in FAMILIES:
        assert set(family.control_tokens) == set(GRAMMARS[family.name].control_tokens)
        assert len(set(family.control_tokens)) == len(family.control_tokens)
