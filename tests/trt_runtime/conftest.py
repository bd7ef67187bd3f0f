"""What several tests speak with: cloned voices, and what stands in place of engines."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Folders
from tests.trt_runtime.clones import WORDS, A
from trt_runtime import Voice, VoiceStore, load, synthesizer, voice_store
from trt_runtime.synthesizer import Synthesizer


@pytest.fixture
def in_place_of_load(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Puts an object of the test's in place of the synthesizer that `load` would open.

    It gets the attributes `loaded`, the arguments by the real signature's names or None, and
    `closed`. Returns the object.
    """
    signature = inspect.signature(synthesizer.load)

    def put(speaker: Any) -> Any:
        speaker.loaded, speaker.closed = None, False

        @contextlib.contextmanager
        def opened() -> Iterator[Any]:
            try:
                yield speaker
            finally:
                speaker.closed = True

        def load(*arguments: Any, **options: Any) -> Any:
            speaker.loaded = signature.bind(*arguments, **options).arguments
            return opened()

        monkeypatch.setattr(synthesizer, "load", load)
        return speaker

    return put


@pytest.fixture
def shipped(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of that of the voices that ship; empty, so that a test ships its own."""
    folder = tmp_path_factory.mktemp("shipped")
    monkeypatch.setattr(voice_store, "SHIPPED", folder)
    return folder


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> VoiceStore:
    return VoiceStore(tmp_path_factory.mktemp("voices"))


@pytest.fixture(scope="session")
def cloner(dense: Folders, store: VoiceStore) -> Iterator[Synthesizer]:
    with load(dense.engines, threads=1, voices=store.folder) as synthesizer:
        yield synthesizer


@pytest.fixture(scope="session")
def voice(cloner: Synthesizer) -> Voice:
    return cloner.encode_voice(A, WORDS)


@pytest.fixture(scope="session")
def silent_voice(cloner: Synthesizer) -> Voice:
    """Without words, and so without latents."""
    return cloner.encode_voice(A)
