"""What may be fetched, and what a user is told where it cannot be. No test uses the network."""

from __future__ import annotations

import fnmatch
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from export.hub import PATTERNS, fetch, find_source, looks_like_hub_id
from trt_runtime.errors import UserError


@pytest.mark.parametrize("source", ["inclusionAI/Ming-omni-tts-0.5B", "a/b", "a.b/c_d"])
def test_a_hub_id(source: str) -> None:
    assert looks_like_hub_id(source)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "a",
        "a/b/c",
        "/a/b",
        "./a/b",
        "../a",
        "a/",
        "/b",
        "a b/c",
        "a/..",
        "https://x/y",
        "a/b\n",
    ],
)
def test_not_a_hub_id(source: str) -> None:
    assert not looks_like_hub_id(source)
    with pytest.raises(UserError, match="is not the id of a model"):
        fetch(source)


def test_fetches_only_what_a_checkpoint_consists_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}

    def download(repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert fetch("a/b", "v1") == tmp_path
    assert asked == {"repo_id": "a/b", "revision": "v1", "allow_patterns": list(PATTERNS)}


@pytest.mark.parametrize("name", ["model.py", "pytorch_model.bin", "x.pt", "README.md", "a.pkl"])
def test_no_code_and_no_pickle_is_fetched(name: str) -> None:
    assert not any(fnmatch.fnmatch(name, pattern) for pattern in PATTERNS)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.LocalEntryNotFoundError("offline"), "could not be fetched"),
        (OSError(28, "No space left on device"), "could not be fetched"),
        (ConnectionError("refused"), "could not be fetched"),
    ],
)
def test_failures_are_explained(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(UserError, match=message):
        fetch("a/b")


def test_a_hub_id_is_fetched_only_where_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def download(repo_id: str, **options: Any) -> str:
        asked.append((repo_id, options["revision"]))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"No such folder: a/b(?s:.*)--download"):
        find_source("a/b", download=False, revision=None)
    assert asked == []
    assert find_source("a/b", download=True, revision="v2") == tmp_path
    assert asked == [("a/b", "v2")]
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert find_source("a/b", download=False, revision=None) == "a/b"
    assert find_source("no-hub-id", download=False, revision=None) == "no-hub-id"


def test_a_revision_alone_is_a_mistake() -> None:
    with pytest.raises(UserError, match="--revision is of no use without --download"):
        find_source("a/b", download=False, revision="v2")


def test_a_missing_hub_client_is_said_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"no huggingface_hub(?s:.*)pip install 'ming-trt"):
        fetch("a/b")
