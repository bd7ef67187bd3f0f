"""One tokenizer.json out of whichever files a checkpoint has, and never any code of it."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from export.tokenizer import added_token, byte_level_bpe, tokenizer_json, write_tokenizer
from tests.goldens import OMNI_TTS, load_json, needs_goldens
from trt_runtime.errors import UserError


def written(folder: Path, tmp_path: Path) -> Tokenizer:
    write_tokenizer(folder, tmp_path / "out.json")
    return Tokenizer.from_file(str(tmp_path / "out.json"))


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """vocab.json, merges.txt and added tokens of a small vocabulary with a gap before the last."""
    folder = tmp_path / "parts"
    folder.mkdir()
    vocabulary = {chr(c): i for i, c in enumerate(range(0x21, 0x7F))}
    vocabulary |= {"Ġ": 94, "Ċ": 95, "he": 96, "llo": 97, "ll": 98, "hello": 99}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    merges = "#version: 0.2\nh e\nl l\nll o\nhe llo\n"
    (folder / "merges.txt").write_text(merges)
    decoder = {
        "100": {"content": "<|endoftext|>", "special": True, "normalized": False},
        "150": {"content": "<audio>", "special": True, "normalized": False},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    return folder


def test_made_of_vocabulary_merges_and_added_tokens(parts: Path, tmp_path: Path) -> None:
    tokenizer = written(parts, tmp_path)
    assert ids(tokenizer, "hello<audio> hell<|endoftext|>") == [99, 150, 94, 96, 98, 100]
    assert tokenizer.decode([99, 94, 96, 98], skip_special_tokens=False) == "hello hell"


def test_a_control_token_can_be_read_as_text(parts: Path, tmp_path: Path) -> None:
    tokenizer = written(parts, tmp_path)
    tokenizer.encode_special_tokens = True
    assert ids(tokenizer, "<audio>") == [vocabulary_id(c) for c in "<audio>"]


def vocabulary_id(character: str) -> int:
    return ord(character) - 0x21


def test_the_older_file_of_added_tokens(parts: Path, tmp_path: Path) -> None:
    (parts / "tokenizer_config.json").unlink()
    (parts / "added_tokens.json").write_text(json.dumps({"<audio>": 100, "plain": 101}))
    special = {"eos_token": {"content": "<audio>"}, "additional_special_tokens": []}
    (parts / "special_tokens_map.json").write_text(json.dumps(special))
    tokenizer = written(parts, tmp_path)
    assert ids(tokenizer, "<audio>plain") == [100, 101]
    added = json.loads((tmp_path / "out.json").read_text())["added_tokens"]
    assert [token["special"] for token in added] == [True, False]


def test_the_bytes_are_the_same_each_time(parts: Path, folder: Path) -> None:
    assert tokenizer_json(parts) == tokenizer_json(parts)
    assert tokenizer_json(folder) == (folder / "tokenizer.json").read_text(encoding="utf-8")


@needs_goldens
@pytest.mark.parametrize("own_file", [True, False])
def test_encodes_every_golden_row(tmp_path: Path, own_file: bool) -> None:
    folder = tmp_path / "dense"
    shutil.copytree(OMNI_TTS / "tiny-dense", folder)
    folder.chmod(0o755)
    if not own_file:
        (folder / "tokenizer.json").unlink()
    tokenizer = written(folder, tmp_path)
    rows = load_json("tokenizer_dense")["rows"]
    assert len(rows) > 20
    for row in rows:
        assert ids(tokenizer, row["text"]) == row["ids"], row["text"]


@needs_goldens
def test_the_one_that_is_made_is_the_one_that_was_stored() -> None:
    """But for the added tokens, which ours also puts into the vocabulary."""
    folder = OMNI_TTS / "tiny-dense"
    theirs = json.loads((folder / "tokenizer.json").read_text())
    made = json.loads(
        byte_level_bpe(
            json.loads((folder / "vocab.json").read_text()),
            [tuple(pair) for pair in theirs["model"]["merges"]],
            theirs["added_tokens"],
        )
    )
    for token in theirs["added_tokens"]:
        assert made["model"]["vocab"].pop(token["content"]) == token["id"]
    assert made == theirs


@needs_goldens
def test_the_moe_folder_s_python_class_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        tokenizer = written(OMNI_TTS / "tiny-moe", tmp_path)
    for row in load_json("tokenizer_moe")["rows"]:
        assert ids(tokenizer, row["text"]) == row["ids"], row["text"]


def test_a_python_class_is_logged_and_not_run(
    parts: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = json.loads((parts / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": ["evil.Evil"]}}
    (parts / "tokenizer_config.json").write_text(json.dumps(config))
    (parts / "evil.py").write_text("raise SystemExit('run')")
    with caplog.at_level(logging.INFO):
        written(parts, tmp_path)
    assert "EvilTokenizer" in caplog.text


# What is damaged gets an error that names the file.


def damage(name: str, text: str | None) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        if text is not None:
            (folder / name).write_bytes(text.encode("latin-1"))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage("vocab.json", None), "holds no tokenizer"),
        (damage("merges.txt", None), "holds no tokenizer"),
        (damage("vocab.json", "{"), r"vocab\.json cannot be used"),
        (damage("vocab.json", "[]"), r"vocab\.json cannot be used"),
        (damage("vocab.json", '{"a": "b"}'), r"vocab\.json cannot be used"),
        (damage("vocab.json", '{"a": 1, "b": 1}'), r"vocab\.json cannot be used"),
        (damage("vocab.json", '{"a": -1}'), r"vocab\.json cannot be used"),
        (damage("vocab.json", "\xff"), r"vocab\.json cannot be used"),
        (damage("merges.txt", "h e x\n"), r"merges\.txt cannot be used"),
        (damage("merges.txt", "q zz\n"), "cannot be used"),
        (damage("tokenizer_config.json", "["), r"tokenizer_config\.json cannot be used"),
        (
            damage("tokenizer_config.json", '{"added_tokens_decoder": {"x": {}}}'),
            r"tokenizer_config\.json cannot be used",
        ),
        (
            damage("tokenizer_config.json", '{"added_tokens_decoder": []}'),
            r"tokenizer_config\.json cannot be used",
        ),
        (damage("added_tokens.json", '{"a": "b"}'), r"added_tokens\.json cannot be used"),
        (damage("tokenizer.json", "{}"), r"tokenizer\.json cannot be used"),
        (damage("tokenizer.json", "not JSON"), r"tokenizer\.json cannot be used"),
        (damage("tokenizer.json", "\xff"), r"tokenizer\.json cannot be used"),
    ],
)
def test_a_damaged_file_is_named(
    parts: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    change(parts)
    with pytest.raises(UserError, match=message):
        write_tokenizer(parts, tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


def test_ids_that_the_package_would_change_are_refused(folder: Path) -> None:
    """The package numbers added tokens itself and only warns of the difference."""
    data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    data["added_tokens"].append(added_token("<new>", 5000))
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(UserError, match=r"'<new>' to have the id 5000"):
        tokenizer_json(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    """Reading it would wait for ever."""
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match="not a plain file"):
        write_tokenizer(tmp_path, tmp_path / "out.json")


def test_an_id_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    decoder = {"9" * 5000: {"content": "<x>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    with pytest.raises(UserError, match="added token"):
        write_tokenizer(tmp_path, tmp_path / "out.json")
