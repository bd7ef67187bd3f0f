"""Shards of speech, numbered files that training.generate writes one after the other."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from export.whole_file import whole_file, write_json
from training.array_files import read_arrays
from training.speech import HOP, PHONES, SAMPLES_PER_LATENT, VOICES, Speech
from trt_runtime.errors import UserError, reason_of

#: In a folder of shards: a file that says that no more will come.
_COMPLETE = "complete"
#: The same: what the shards were made with.
OPTIONS = "options.json"
#: What a shard holds, by numpy's names of types.
_ARRAYS = {"audio": "int16", "phones": "uint8", "first": "int64", "voices": "uint8", "texts": "str"}
_MADE_BY = "python -m training.generate"


def shard_path(folder: Path, index: int) -> Path:
    return folder / f"speech-{index:03d}.npz"


def write_shard(path: Path, speech: Speech) -> None:
    """The file appears whole or not at all. Raises UserError where it cannot be written."""
    with whole_file(path, speech.audio.nbytes + speech.phones.nbytes) as file:
        np.savez(
            file, audio=speech.audio, phones=speech.phones, first=speech.first,
            voices=speech.voices, texts=np.array(speech.texts),
        )  # fmt: skip


def begin_shards(folder: Path, count: int, options: Mapping[str, Any]) -> None:
    """Keeps `options` beside the shards; where one of `count` is missing, readers wait for it.

    Raises UserError where there are shards that were made with others.
    """
    if any(folder.glob("speech-*.npz")):
        _check_options(folder, options)
    else:
        write_json(folder / OPTIONS, options)
    if not all(shard_path(folder, index).exists() for index in range(count)):
        (folder / _COMPLETE).unlink(missing_ok=True)


def _check_options(folder: Path, options: Mapping[str, Any]) -> None:
    do = "choose another folder with --out, or delete this one"
    try:
        kept = json.loads((folder / OPTIONS).read_text(encoding="utf-8"))
        if not isinstance(kept, dict) or kept.keys() != options.keys():
            raise ValueError("a file of something else")
    except (OSError, ValueError) as error:
        raise UserError(
            f"Nothing says with which options the shards in {folder} were made",
            expected=f"{OPTIONS} beside them",
            found=reason_of(error),
            do=do,
        ) from error
    if differing := [name for name in options if kept[name] != options[name]]:
        raise UserError(
            f"The shards in {folder} were made with other options",
            expected=_named(kept, differing),
            found=_named(options, differing),
            do=f"give those that they were made with, or {do}",
        )


def _named(options: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(
        f"--texts of SHA-256 {str(options[name])[:12]}..."
        if name == "texts"
        else f"--{name} {options[name]}"
        for name in names
    )


def end_shards(folder: Path) -> None:
    """Says that `folder` has all its shards: readers wait for no more."""
    (folder / _COMPLETE).touch()


def read_shard(path: Path) -> dict[str, np.ndarray]:
    """The arrays of :class:`training.speech.Speech`. Raises UserError for another file."""
    try:
        shard = read_arrays(path, tuple(_ARRAYS))
    except ValueError as error:
        raise _foreign(path, str(error)) from error
    for name, kind in _ARRAYS.items():
        array = shard[name]
        if array.ndim != 1 or not array.size or not np.issubdtype(array.dtype, kind):
            found = f"{name} of shape {list(array.shape)} and type {array.dtype}"
            raise _foreign(path, found)
    first = shard["first"]
    latents, texts = int(first[-1]), len(shard["texts"])
    sizes = tuple(len(shard[name]) for name in ("audio", "phones", "first", "voices"))
    wanted = (latents * SAMPLES_PER_LATENT, latents * (SAMPLES_PER_LATENT // HOP), texts + 1, texts)
    if sizes != wanted:
        raise _foreign(path, f"samples, phones and utterances of {sizes} in place of {wanted}")
    if first[0] != 0 or (np.diff(first) < 0).any():
        raise _foreign(path, "utterances that do not follow one another")
    if shard["phones"].max() >= len(PHONES) or shard["voices"].max() >= len(VOICES):
        raise _foreign(path, "phones or voices that there are not")
    return shard


def _foreign(path: Path, found: str) -> UserError:
    return UserError(
        f"{path} is no shard of speech",
        expected=f"a file that {_MADE_BY} wrote",
        found=found,
        do="delete it, and run that again",
    )


class Shards:
    """The shards of a folder in their order, some of which may be yet to come; at most `most`."""

    def __init__(self, folder: Path, most: int, log: Callable[[str], None]) -> None:
        if not folder.is_dir():
            raise UserError(
                f"There is no speech in {folder}",
                expected=f"a folder of shards, {shard_path(folder, 0).name} and so on",
                found="no such folder",
                do=f"make it first: {_MADE_BY}",
            )
        self.taken = 0
        self._folder, self._most, self._log = folder, most, log

    def following(self, wait: bool) -> Path | None:
        """The next shard, which then counts as taken; None where there is none.

        With `wait` None means that there will be none. Raises UserError where the very first is
        missing and no more will come.
        """
        path = shard_path(self._folder, self.taken)
        if self.taken >= self._most or not (self._wait_for(path) if wait else path.exists()):
            return None
        self.taken += 1
        return path

    def end(self) -> None:
        """No more are wanted."""
        self._most = self.taken

    def _wait_for(self, path: Path) -> bool:
        ended = self._folder / _COMPLETE
        if not path.exists() and not ended.exists():
            self._log(f"waiting for {path}")
        while not path.exists():
            if ended.exists() and not path.exists():
                if self.taken == 0:
                    raise UserError(
                        f"There is no speech in {self._folder}",
                        expected=f"shards, {path.name} first",
                        found=f"none, and {_COMPLETE}: no more will come",
                        do=f"delete {ended}, and run {_MADE_BY}",
                    )
                return False
            time.sleep(0.2)
        return True
