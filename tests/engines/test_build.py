from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import engines.build
import engines.onnxruntime_cpu
import export
from engines import build_engines
from export import ExportOptions
from tests.engines.folders import contents, leftovers, loadable
from trt_runtime.errors import FolderError, UserError
from trt_runtime.machine import check_machine, describe_machine
from trt_runtime.manifest import (
    ENGINES,
    MANIFEST,
    check_files,
    read_manifest,
    rebuild_command,
)

ROOT = Path(engines.__file__).parents[1]


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


@pytest.fixture
def exports(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, ExportOptions]]:
    """What is exported, and how; the bundle of every checkpoint is `bundle`."""
    calls: list[tuple[Path, ExportOptions]] = []

    def export_checkpoint(
        source: Path, target: Path, *, options: ExportOptions, resumable: bool, progress: object
    ) -> None:
        assert not resumable  # into a folder that goes with the build
        calls.append((source, options))
        shutil.copytree(bundle, target)

    monkeypatch.setattr(export, "export_checkpoint", export_checkpoint, raising=False)
    return calls


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "my checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_a_checkpoint_is_exported_first(
    checkpoint: Path, tmp_path: Path, exports: list[tuple[Path, ExportOptions]]
):
    out = tmp_path / "engines"
    build_engines(checkpoint, out, export_options={"prefill_chunks": (4,)})
    assert exports == [(checkpoint, ExportOptions(prefill_chunks=(4,)))]
    assert leftovers(out) == []
    lines: list[str] = []
    build_engines(checkpoint, out, export_options={"prefill_chunks": (4,)}, progress=lines.append)
    assert len(exports) == 1
    assert "up to date" in lines[0]
    build_engines(checkpoint, out, export_options={"prefill_chunks": (2,)}, progress=lines.append)
    assert len(exports) == 2
    (checkpoint / "config.json").write_text("{ }")
    build_engines(checkpoint, out, export_options={"prefill_chunks": (2,)})
    assert len(exports) == 3


def test_engines_say_how_to_make_them_again(
    bundle: Path,
    checkpoint: Path,
    tmp_path: Path,
    exports: list[tuple[Path, ExportOptions]],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    chosen = {"prefill_chunks": (16, 64), "max_steps": 90}
    of_checkpoint = build_engines("my checkpoint", "a", export_options=chosen)
    assert rebuild_command(read_manifest(of_checkpoint), Path("a")) == (
        "build-engines 'my checkpoint' --target cpu --max-steps 90 --prefill-chunks 16,64 --out a"
    )
    of_bundle = build_engines("bundle", "b")
    assert rebuild_command(read_manifest(of_bundle), Path("b")) == (
        "build-engines bundle --target cpu --out b"
    )
    (of_bundle / "talker.weights").write_bytes(b"x")
    with pytest.raises(FolderError, match="build-engines bundle --target cpu --out"):
        check_files(of_bundle, read_manifest(of_bundle))


@pytest.mark.parametrize("package", ["torch", "onnxscript", "ml_dtypes"])
def test_a_checkpoint_without_the_exporters_packages(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"no {package}(?s:.*)pip install 'ming-trt\[export\]'"):
        build_engines(checkpoint, tmp_path / "engines")
