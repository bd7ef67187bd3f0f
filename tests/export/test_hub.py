"""What may be fetched, and what a user is told where it cannot be. No test uses the network."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from export.hub import PATTERNS, download, looks_like_hub_id
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
        download(source)


def test_fetches_only_what_a_checkpoint_consists_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}

    def fetch(repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert download("a/b", "v1") == tmp_path
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
        download("a/b")
