"""The parts of a bundle that an export has finished, so that one which stopped can be gone on with.

A journal of JSON lines beside the growing bundle: one for each weight file and graph, written when
the file is whole, with its size and SHA-256 and the key of what it was made from. Only a file that
is byte for byte what its line says, made from what it would be made from now, is used again;
anything else in the folder is deleted.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trt_runtime.manifest import is_plain_name, sha256_of

JOURNAL = "journal.jsonl"
FOLDER = "bundle"

_THREADS = 4


@dataclass(frozen=True)
class Part:
    """One file of the bundle, made from what `key` stands for; `noted` is in JSON's types."""

    name: str
    key: str
    file: str
    bytes: int
    sha256: str
    noted: Mapping[str, Any]

    @property
    def is_of_its_types(self) -> bool:
        """False of what somebody else has written into the journal."""
        texts = (self.name, self.key, self.file, self.sha256)
        whole = isinstance(self.bytes, int)
        return whole and isinstance(self.noted, dict) and all(isinstance(t, str) for t in texts)


class FinishedParts:
    """The finished parts in a work folder, by name.

    `keys` gives the key that each part of this export has; kept parts with another, or without one,
    are deleted, as is everything with `fresh`. `folder` is where the bundle grows.
    """

    def __init__(self, work: Path, keys: Mapping[str, str], *, fresh: bool = False) -> None:
        self.folder = work / FOLDER
        self._keys = keys
        self._journal = work / JOURNAL
        _only_real(self.folder, self._journal)
        self.folder.mkdir(exist_ok=True)
        found = [] if fresh else [part for part in self._read() if part.key == keys.get(part.name)]
        with ThreadPoolExecutor(_THREADS) as pool:
            whole = list(pool.map(self._is_whole, found))
        self._parts = {part.name: part for part, kept in zip(found, whole, strict=True) if kept}
        self._delete_all_else()
        self._rewrite()

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, name: str) -> Part:
        return self._parts[name]

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    @property
    def planned(self) -> int:
        """How many parts the bundle has."""
        return len(self._keys)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self._parts.values())

    def files(self) -> dict[str, tuple[int, str]]:
        """Bytes and SHA-256 of every file in the folder, as a manifest lists them."""
        known = {part.file: (part.bytes, part.sha256) for part in self._parts.values()}
        return {
            path.name: known.get(path.name) or (path.stat().st_size, sha256_of(path))
            for path in sorted(self.folder.iterdir())
        }

    def add(self, name: str, file: str, noted: Mapping[str, Any]) -> None:
        """Notes that `file` in the folder is whole and closed."""
        path = self.folder / file
        part = Part(name, self._keys[name], file, path.stat().st_size, sha256_of(path), noted)
        with self._journal.open("ab") as journal:
            journal.write(_line(part))
            journal.flush()
            os.fsync(journal.fileno())
        self._parts[name] = part

    def leave(self) -> None:
        """Deletes what is not finished, and all where nothing is, for a later export to find."""
        self._delete_all_else()
        if not self._parts:
            self.discard()

    def discard(self) -> None:
        """Deletes everything."""
        self._parts.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._journal.unlink(missing_ok=True)

    def _read(self) -> list[Part]:
        """What the journal says, as far as it can be read: its last line may be half a line."""
        try:
            lines = self._journal.read_bytes().splitlines()
        except OSError:
            return []
        parts = {}
        for line in lines:
            try:
                part = Part(**json.loads(line))
                if not part.is_of_its_types:
                    break
            except (ValueError, TypeError, RecursionError):
                break
            parts[part.name] = part
        return list(parts.values())

    def _is_whole(self, part: Part) -> bool:
        path = self.folder / part.file
        try:
            return (
                is_plain_name(part.file)
                and not path.is_symlink()
                and path.stat().st_size == part.bytes
                and sha256_of(path) == part.sha256
            )
        except OSError:
            return False

    def _delete_all_else(self) -> None:
        wanted = {part.file for part in self._parts.values()}
        for path in self.folder.iterdir():
            if path.name not in wanted:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def _rewrite(self) -> None:
        new = self._journal.with_name(f"{JOURNAL}.new")
        new.write_bytes(b"".join(_line(part) for part in self._parts.values()))
        new.replace(self._journal)


def _only_real(folder: Path, journal: Path) -> None:
    """Removes what stands where ours belongs and is none of it: never what a link leads to."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        folder.unlink()
    for path in (journal, journal.with_name(f"{JOURNAL}.new")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.is_symlink():
            path.unlink()


def _line(part: Part) -> bytes:
    return json.dumps(asdict(part)).encode("utf-8") + b"\n"
