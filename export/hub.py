"""Fetching a checkpoint from the Hugging Face hub. Only `--download` calls this."""

from __future__ import annotations

import re
from pathlib import Path

from export.packages import TO_DOWNLOAD, require_packages
from trt_runtime.errors import UserError
from trt_runtime.printable import printable

#: What a checkpoint consists of. No Python file and no pickle of a repository is ever fetched.
PATTERNS = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "campplus.onnx",
)

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_HUB_ID = re.compile(rf"{_PART}/{_PART}")


def looks_like_hub_id(source: str) -> bool:
    """Whether `source` has the form owner/name of a hub repository."""
    return (
        len(source) <= 200
        and _HUB_ID.fullmatch(source) is not None
        and "--" not in source
        and ".." not in source
    )


def find_source(source: str, *, download: bool, revision: str | None) -> str | Path:
    """The folder that a command line's `source` names, fetched first where `download` says so.

    Raises UserError for what looks like a hub id and is no folder, without `download`: nothing is
    fetched unasked. Any other path is returned as it is, for others to say what is wrong with it.
    """
    if download:
        return fetch(source, revision)
    if revision is not None:
        raise UserError(
            "--revision is of no use without --download",
            expected="a revision of a model on the hub",
            found=f"--revision {printable(revision)} for the folder {printable(source)}",
            do="add --download, or leave --revision out",
        )
    if looks_like_hub_id(source) and not Path(source).exists():
        raise UserError(
            f"No such folder: {source}",
            expected="a folder of this machine",
            found="what may be a hub id; nothing is fetched unasked",
            do="add --download to fetch it, or check the path",
        )
    return source


def fetch(repo_id: str, revision: str | None = None) -> Path:
    """Fetches the files of a checkpoint and returns the folder in the hub's cache that holds them.

    Shows a progress bar on a terminal; files that the cache already holds are not fetched again.
    Raises UserError for what is not a hub id, a repository or revision that does not exist or is
    not open to the user, and a network that cannot be reached.
    """
    if not looks_like_hub_id(repo_id):
        raise UserError(
            f"{repo_id!r} is not the id of a model on the hub",
            expected="owner/name, as in the address of the model's page",
            do="give the id, or leave --download out to use a folder",
        )
    require_packages(f"Fetching {repo_id}", TO_DOWNLOAD)
    from huggingface_hub import snapshot_download

    # HTTPError is that of whichever HTTP library the hub's client is built on.
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        GatedRepoError,
        HTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=list(PATTERNS)))
    except GatedRepoError as error:
        raise UserError(
            f"{repo_id} is not open to you",
            expected="a model that your account may read",
            found=_first_line(error),
            do="ask for access on the model's page, then: hf auth login",
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"The hub has no model {repo_id}, or it is private",
            found=_first_line(error),
            do="check the id on the model's page; for a private one: hf auth login",
        ) from error
    except RevisionNotFoundError as error:
        raise UserError(
            f"{repo_id} has no revision {revision}",
            found=_first_line(error),
            do="give a branch, tag or commit of that repository",
        ) from error
    # OSError: no such entry in the cache either, or a disk that is full.
    except (HTTPError, OSError) as error:
        raise UserError(
            f"{repo_id} could not be fetched",
            expected="a connection to the hub and room in its cache",
            found=_first_line(error),
            do="check the network and the disk and try again: what was fetched is kept",
        ) from error


def _first_line(error: Exception) -> str:
    return printable((str(error).strip().splitlines() or [type(error).__name__])[0])
