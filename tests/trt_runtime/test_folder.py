"""Opening a folder: which backend a target gets, and in which order a folder is checked."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.targets import TARGETS
from trt_runtime import folder
from trt_runtime.backends.onnxruntime_cpu import CpuBackend
from trt_runtime.errors import FolderError
from trt_runtime.folder import (
    EMBEDDED,
    check_contract,
    open_folder,
)
from trt_runtime.manifest import BUNDLE, ENGINES, MANIFEST, read_manifest


def test_every_target_that_is_built_can_be_spoken_from() -> None:
    """A bundle has no target; every other row is one that build-engines knows, and none is missing.

    The runtime may not import the builders, so the two tables are held together here.
    """
    assert set(folder.TARGETS) == {"", *TARGETS}
    for name, target in TARGETS.items():
        rows = (target.row, *target.others.values())
        assert {row.backend for row in rows} == set(folder.TARGETS[name].runners)


def test_none_is_the_embedded_default() -> None:
    opened = open_folder(None)
    assert opened.path == EMBEDDED
    assert opened.manifest.kind == BUNDLE
    assert isinstance(opened.backend, CpuBackend)


def test_a_name_is_as_good_as_a_path(demo_engines: Path) -> None:
    opened = open_folder(str(demo_engines))
    assert (opened.path, opened.manifest.kind) == (demo_engines, ENGINES)


@pytest.fixture
def copied(demo_engines: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo_engines, tmp_path / "engines"))


def _change(path: Path, **fields: Any) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | fields))


def test_a_target_without_a_backend_names_those_that_have_one(copied: Path) -> None:
    _change(copied, target="abacus")
    with pytest.raises(FolderError, match=r"'abacus'[\s\S]*Expected: [^\n]*'cpu'") as caught:
        open_folder(copied)
    assert "''" not in str(caught.value)


def test_a_changed_file_is_found_before_anything_is_loaded(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*arguments: object) -> None:
        raise AssertionError("it was loaded")

    for name, row in folder.TARGETS.items():
        monkeypatch.setitem(folder.TARGETS, name, replace(row, load=load))
    weights = copied / "talker.weights"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    with pytest.raises(FolderError, match=r"talker\.weights has changed"):
        open_folder(copied)
    weights.unlink()
    with pytest.raises(FolderError, match=r"talker\.weights is missing"):
        open_folder(copied)


def test_the_machine_is_compared_before_the_files(copied: Path) -> None:
    """Rehashing gigabytes of another machine's engines would tell nothing."""
    manifest = json.loads((copied / "manifest.json").read_text())
    _change(copied, machine=manifest["machine"] | {"architecture": "pdp11"})
    (copied / "talker.weights").unlink()
    with pytest.raises(FolderError, match="pdp11"):
        open_folder(copied)


def test_hashing_may_be_left_out(copied: Path) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["files"]["tokenizer.json"]["sha256"] = "0" * 64
    _change(copied, files=manifest["files"])
    with pytest.raises(FolderError, match=r"tokenizer\.json has changed"):
        open_folder(copied)
    open_folder(copied, verify=False)


def test_a_component_for_another_backend_is_refused(demo_engines: Path, tmp_path: Path) -> None:
    manifest = read_manifest(demo_engines)
    talker = replace(manifest.components["talker"], backend="abacus")
    other = replace(manifest, components={**manifest.components, "talker": talker})
    with pytest.raises(FolderError, match=r"cannot run the component talker(?s:.*)'abacus'"):
        check_contract(demo_engines, other)


@pytest.mark.parametrize("component", ["nope", "", "talker"])
def test_a_graph_of_another_component_is_refused(copied: Path, component: str) -> None:
    manifest = json.loads((copied / MANIFEST).read_text(encoding="utf-8"))
    manifest["graphs"]["prompt_embedding"]["component"] = component
    (copied / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(FolderError, match=r"prompt_embedding .* belongs to a component"):
        open_folder(copied)
