"""The talker writing text: against the reference's generate_text, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import trt_runtime
from tests.conftest import Folders
from tests.goldens import OMNI_TTS, load_json, needs_goldens
from tests.trt_runtime.test_bad_requests import edited
from trt_runtime import language_model
from trt_runtime.errors import FolderError, UserError
from trt_runtime.synthesizer import Synthesizer, load

ROWS: list[dict[str, Any]] = (
    load_json("dense_textgen")["rows"]
    if (OMNI_TTS / "goldens" / "dense_textgen.json").is_file()
    else []
)
#: A text whose end the goldens' model writes, and one whose it does not.
ENDS, GOES_ON = "化学反应方程式：2H2 + O2", "a"


@pytest.fixture(scope="module")
def writer(dense: Folders) -> Iterator[Synthesizer]:
    with load(dense.engines, threads=1) as synthesizer:
        yield synthesizer


@needs_goldens
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["text"][:20])
def test_the_references_texts(writer: Synthesizer, row: dict[str, Any]) -> None:
    """The same words; where the reference finds no end and raises, an error that says so."""
    if "upstream_raises" in row:
        with pytest.raises(UserError, match="did not end") as caught:
            writer.normalize_text(row["text"], prompt=row["prompt"])
        assert "within 200 tokens" in str(caught.value)
    else:
        assert writer.normalize_text(row["text"], prompt=row["prompt"]) == row["response"]


@needs_goldens
def test_the_rows_hold_both_kinds() -> None:
    assert {"upstream_raises" in row for row in ROWS} == {True, False}


def test_the_limit_counts_the_end(writer: Synthesizer) -> None:
    """The end is a token too: with room for all but it there is none."""
    text = writer.normalize_text(ENDS)
    least = next(n for n in range(1, 20) if _written(writer, n) is not None)
    assert least > 1
    assert all(_written(writer, n) == text for n in range(least, least + 3))


def _written(writer: Synthesizer, max_tokens: int) -> str | None:
    try:
        return writer.normalize_text(ENDS, max_tokens=max_tokens)
    except UserError:
        return None


@pytest.mark.parametrize("max_tokens", [0, -1, 1.5, True, "3", None])
def test_bad_max_tokens(writer: Synthesizer, max_tokens: Any) -> None:
    with pytest.raises(UserError, match="max_tokens"):
        writer.normalize_text(ENDS, max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("text", "match"),
    [("", "blank"), (" ", "blank"), (3, "not text"), ("a\0b", "control"), (["a"], "not text")],
)
def test_bad_texts(writer: Synthesizer, text: Any, match: str) -> None:
    with pytest.raises(UserError, match=match):
        writer.normalize_text(text)


def test_a_text_that_leaves_no_room(writer: Synthesizer) -> None:
    limit = writer.geometry.cache_length
    for text, max_tokens in (("word " * 3000, 200), (ENDS, limit)):
        with pytest.raises(UserError, match="too little room") as caught:
            writer.normalize_text(text, max_tokens=max_tokens)
        assert str(limit) in str(caught.value)


def test_as_many_tokens_as_there_is_room_for(
    writer: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest limit that is not refused is one that the cache holds to its last token."""
    monkeypatch.setattr(language_model, "TEXT_END", "<audioPatch>")  # which is never written
    limit, text = writer.geometry.cache_length, GOES_ON + " word" * 370
    with pytest.raises(UserError, match="too little room") as caught:
        writer.normalize_text(text, max_tokens=limit)
    room = limit - int(str(caught.value).split("Found: ")[1].split(" +")[0])
    assert 0 < room < 1000
    with pytest.raises(UserError, match="too little room"):
        writer.normalize_text(text, max_tokens=room + 1)
    with pytest.raises(UserError, match="did not end"):
        writer.normalize_text(text, max_tokens=room)


def test_writing_leaves_no_trace(writer: Synthesizer) -> None:
    """Neither a text nor speech depends on what was written before."""
    spoken = writer.synthesize("Hello.", max_steps=2).audio
    text = writer.normalize_text(ENDS)
    with pytest.raises(UserError):
        writer.normalize_text(GOES_ON, max_tokens=5)
    assert writer.normalize_text(ENDS) == text
    assert writer.synthesize("Hello.", max_steps=2).audio.tobytes() == spoken.tobytes()


def test_the_modules_function(dense: Folders, writer: Synthesizer) -> None:
    found = trt_runtime.normalize_text(ENDS, engines=dense.engines, max_tokens=20)
    assert found == writer.normalize_text(ENDS)


def test_a_folder_without_the_head(dense: Folders, tmp_path: Any) -> None:
    """Built without it: the folder speaks, and says what to do to write."""
    folder = edited(dense.engines, tmp_path / "engines", lambda m: m["graphs"].pop("language_head"))
    with load(folder, threads=1) as synthesizer:
        assert synthesizer.synthesize("Hello.", max_steps=1).steps == 1
        with pytest.raises(FolderError, match="no language-model head"):
            synthesizer.normalize_text(ENDS)


def test_a_closed_synthesizer(dense: Folders) -> None:
    synthesizer = load(dense.engines, threads=1)
    synthesizer.close()
    with pytest.raises(UserError, match="closed"):
        synthesizer.normalize_text(ENDS)
