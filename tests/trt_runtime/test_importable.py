"""Whether a module could be imported: what is found, without importing it."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from trt_runtime.importable import is_importable


def test_what_is_there_is_found_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "found_but_broken.py").write_text("raise RuntimeError\n")
    assert is_importable("found_but_broken")
    assert "found_but_broken" not in sys.modules


@pytest.mark.parametrize("module", ["no_such_module", "no_such_module.part", "json.no_such_part"])
def test_what_is_not_there(module: str) -> None:
    assert not is_importable(module)


def test_what_says_nothing_of_itself_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = types.ModuleType("empty")
    empty.__spec__ = None
    monkeypatch.setitem(sys.modules, "empty", empty)
    assert not is_importable("empty")
