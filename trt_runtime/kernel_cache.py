"""Kernels that TensorRT-RTX compiled for this GPU, kept in the user's cache for the next process.

A convenience: whatever goes wrong with it is a warning, and the kernels are compiled again. The
library itself refuses a cache of another version, GPU or driver.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

_PLACES = {
    "win32": ("LOCALAPPDATA", "~/AppData/Local"),
    "darwin": ("", "~/Library/Caches"),
}


def cache_folder() -> Path | None:
    """`ming-trt/tensorrt-rtx` in the system's place for a user's caches; None where there is none.

    The places: https://specifications.freedesktop.org/basedir-spec (Linux and others).
    """
    variable, otherwise = _PLACES.get(sys.platform, ("XDG_CACHE_HOME", "~/.cache"))
    place = Path(os.environ.get(variable, ""))
    if not place.is_absolute():
        try:
            place = Path(otherwise).expanduser()
        except RuntimeError:
            return None
    return place / "ming-trt" / "tensorrt-rtx"


class KernelCache:
    """The kernels of one engine. `key` names the engine, the library and the GPU."""

    def __init__(self, key: str) -> None:
        folder = cache_folder()
        self._path = folder and folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', key)}.cache"
        self._cache: Any = None
        self._saved = -1

    def attach(self, config: Any) -> None:
        """Lets contexts of this runtime configuration take kernels from here and leave them."""
        try:
            if self._cache is None:
                self._cache = config.create_runtime_cache()
                self._load()
            if not config.set_runtime_cache(self._cache):
                raise RuntimeError("the library does not take it")
        except Exception as error:  # whatever the library throws: the engine runs without
            log.warning("compiled kernels are not kept: %s", error)

    def _load(self) -> None:
        if self._path is None or not self._path.is_file():
            return
        stored = self._path.read_bytes()
        if self._cache.deserialize(stored):
            self._saved = len(stored)
        else:
            log.info("%s is of another version, GPU or driver: compiling again", self._path)

    def save(self) -> None:
        """Writes what there is to the user's cache, where it has grown; readers see all or none."""
        if self._cache is None or self._path is None:
            return
        try:
            serialized = self._cache.serialize()
            kernels = b"" if serialized is None else bytes(memoryview(serialized))
            if not kernels or len(kernels) == self._saved:
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(f".{os.getpid()}-{id(self)}.tmp")
            try:
                temporary.write_bytes(kernels)
                temporary.replace(self._path)
            finally:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
            self._saved = len(kernels)
        except Exception as error:  # as above
            log.warning("compiled kernels were not kept in %s: %s", self._path, error)
