from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import engines.build
import engines.onnxruntime_cpu
from engines import build_engines
from trt_runtime.errors import FolderError, UserError
from trt_runtime.machine import check_machine, describe_machine
from trt_runtime.manifest import ENGINES, MANIFEST, check_files, read_manifest

ROOT = Path(engines.__file__).parents[1]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def loadable(parent: Path) -> list[Path]:
    """Folders below `parent`, hidden ones too, that would load as engines."""
    found = []
    for manifest in parent.rglob(MANIFEST):
        try:
            if read_manifest(manifest.parent).kind == ENGINES:
                found.append(manifest.parent)
        except FolderError:
            continue
    return found


def leftovers(out: Path) -> list[str]:
    return [path.name for path in out.parent.iterdir() if path.name.startswith(".")]


def test_the_manifest_says_what_was_built(bundle: Path, tmp_path: Path):
    lines: list[str] = []
    out = build_engines(bundle, tmp_path / "engines", progress=lines.append)
    manifest, source = read_manifest(out), read_manifest(bundle)
    check_files(out, manifest)
    check_machine(manifest, out)
    assert (manifest.kind, manifest.target) == (ENGINES, "cpu")
    assert manifest.geometry == source.geometry
    assert manifest.source["tensors"] == "abc"
    assert len(manifest.source["bundle_sha256"]) == 64
    assert manifest.machine == {**describe_machine(), "needs": []}
    assert manifest.precision == {
        "prompt_embedding": "bfloat16",
        "talker": "float32",
        "flow": "float32",
    }
    assert set(manifest.graphs) == set(source.graphs) - {"tail"}
    assert manifest.graphs["talker_1"].in_place == ("key_cache_0",)
    assert set(manifest.files) == {
        "tokenizer.json",
        *(f"{name}.onnx" for name in ("prompt_embedding", "talker_1", "talker_4", "flow_step")),
        *(f"{name}.weights" for name in ("prompt_embedding", "talker", "flow")),
    }
    figures = manifest.build["graphs"]["talker_1"]
    assert figures["seconds"] > 0
    assert figures["peak_memory_bytes"] > 1e6
    assert [line for line in lines if line.startswith("talker_4: ") and "peak memory" in line]
    assert leftovers(out) == []


def test_results_equal_the_bundles(bundle: Path, tmp_path: Path):
    out = build_engines(bundle, tmp_path / "engines")
    rng = np.random.default_rng(5)
    for name, graph in read_manifest(out).graphs.items():
        feeds = {
            spec.name: rng.integers(0, 4, spec.shape)
            if spec.dtype == "int64"
            else rng.standard_normal(spec.shape, dtype=np.float32)
            for spec in graph.inputs
        }
        results = [
            ort.InferenceSession(folder / graph.file, providers=["CPUExecutionProvider"]).run(
                [spec.name for spec in graph.outputs], feeds
            )
            for folder in (bundle, out)
        ]
        for expected, found in zip(*results, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=name)


def test_same_bundle_same_bytes(bundle: Path, tmp_path: Path, make_bundle: Callable[..., Path]):
    first = build_engines(bundle, tmp_path / "one" / "engines")
    # In another process, from another folder: hash seeds and paths differ.
    elsewhere = make_bundle("a b/c", source_path="/another/checkout")
    second = tmp_path / "two"
    subprocess.run(
        [sys.executable, "-m", "engines.cli", elsewhere, "--out", second, "--quiet"],
        cwd=ROOT,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    one, two = contents(first), contents(second)
    assert not any(b"/checkout" in data for data in one.values())
    del one[MANIFEST], two[MANIFEST]  # holds seconds and peak memory
    assert one == two
    a, b = read_manifest(first), read_manifest(second)
    assert a.graphs == b.graphs
    assert a.files == b.files


def test_damaged_bundle_is_refused(bundle: Path, tmp_path: Path):
    weights = bundle / "talker.weights"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(FolderError, match=r"talker\.weights has another size"):
        build_engines(bundle, tmp_path / "engines")
    assert loadable(tmp_path) == []


def test_engines_are_no_source(bundle: Path, tmp_path: Path):
    out = build_engines(bundle, tmp_path / "engines")
    with pytest.raises(UserError, match="not built from engines"):
        build_engines(out, tmp_path / "again")


def test_other_folders_are_no_source(tmp_path: Path):
    (tmp_path / "photos").mkdir()
    with pytest.raises(UserError, match="neither a checkpoint nor a bundle"):
        build_engines(tmp_path / "photos", tmp_path / "engines")
    with pytest.raises(UserError, match="No such folder"):
        build_engines(tmp_path / "missing", tmp_path / "engines")


def test_a_bundle_takes_no_export_options(bundle: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"no export options(?s:.*)cache_length"):
        build_engines(bundle, tmp_path / "engines", export_options={"cache_length": 64})


def test_names_that_would_collide_are_refused(bundle: Path, tmp_path: Path):
    text = (bundle / MANIFEST).read_text().replace('"component": "flow"', '"component": "../flow"')
    (bundle / MANIFEST).write_text(text)
    with pytest.raises(FolderError, match="cannot name a file"):
        build_engines(bundle, tmp_path / "engines")
    text = text.replace('"component": "../flow"', '"component": "flow"')
    (bundle / MANIFEST).write_text(
        text.replace('"file": "talker_4.onnx"', '"file": "talker_1.onnx"')
    )
    with pytest.raises(FolderError, match=r"several things(?s:.*)talker_1\.onnx"):
        build_engines(bundle, tmp_path / "engines")


def test_a_checkpoint_is_exported_first(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    calls = []

    def export_checkpoint(
        source: Path, target: Path, *, options: types.SimpleNamespace, progress: object
    ) -> None:
        calls.append((source, vars(options)))
        shutil.copytree(bundle, target)

    fake = types.ModuleType("export")
    fake.__spec__ = types.SimpleNamespace(  # type: ignore[assignment]
        submodule_search_locations=None, origin=None
    )
    fake.export_checkpoint = export_checkpoint  # type: ignore[attr-defined]
    fake.ExportOptions = types.SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "export", fake)
    out = tmp_path / "engines"
    build_engines(checkpoint, out, export_options={"prefill_chunks": (4,)})
    assert calls == [(checkpoint, {"prefill_chunks": (4,)})]
    assert leftovers(out) == []
    lines: list[str] = []
    build_engines(checkpoint, out, export_options={"prefill_chunks": (4,)}, progress=lines.append)
    assert len(calls) == 1
    assert "up to date" in lines[0]
    build_engines(checkpoint, out, export_options={"prefill_chunks": (2,)}, progress=lines.append)
    assert len(calls) == 2
    (checkpoint / "config.json").write_text("{ }")
    build_engines(checkpoint, out, export_options={"prefill_chunks": (2,)})
    assert len(calls) == 3
