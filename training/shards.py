"""Shards of speech, numbered files that training.generate writes one after the other."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from export.whole_file import whole_file
from training.speech import HOP, SAMPLES_PER_LATENT, Speech
from trt_runtime.errors import UserError, reason_of

#: In a folder of shards: a file that says that no more will come.
_COMPLETE = "complete"
_ARRAYS = ("audio", "phones", "first", "voices", "texts")
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


def end_shards(folder: Path) -> None:
    """Says that `folder` has all its shards: readers wait for no more."""
    (folder / _COMPLETE).touch()


def read_shard(path: Path) -> dict[str, np.ndarray]:
    """The arrays of :class:`training.speech.Speech`. Raises UserError for another file."""
    try:
        with np.load(path) as file:
            shard = {name: file[name] for name in _ARRAYS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise _foreign(path, reason_of(error)) from error
    latents = int(shard["first"][-1])
    found = (len(shard["audio"]), len(shard["phones"]), len(shard["first"]))
    texts = len(shard["texts"])
    wanted = (latents * SAMPLES_PER_LATENT, latents * (SAMPLES_PER_LATENT // HOP), texts + 1)
    if found != wanted:
        raise _foreign(path, f"samples, phones and utterances of {found} in place of {wanted}")
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
