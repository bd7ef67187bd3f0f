from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import engines.cache
import engines.onnxruntime_cpu
from engines import build_engines
from engines.cache import CONTRACT, BuildSettings, checkpoint_key, link_or_copy
from tests.test_architecture import MAY_IMPORT
from trt_runtime.manifest import MANIFEST, check_files, read_manifest


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the graphs that are built, as they are."""
    names: list[str] = []
    real = engines.onnxruntime_cpu.build_graph

    def build(job):
        names.append(job.name)
        return real(job)

    monkeypatch.setattr(engines.onnxruntime_cpu, "build_graph", build)
    return names


def test_second_build_does_nothing(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = build_engines(bundle, tmp_path / "engines")
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a session was made")

    monkeypatch.setattr("onnxruntime.InferenceSession", refuse)
    monkeypatch.setattr("engines.build.work_folder", refuse)
    lines: list[str] = []
    build_engines(bundle, out, progress=lines.append)
    assert len(lines) == 1
    assert "up to date" in lines[0]
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before


def test_force_builds_everything(bundle: Path, tmp_path: Path, built: list[str]):
    out = build_engines(bundle, tmp_path / "engines")
    first = list(built)
    build_engines(bundle, out, force=True)
    assert built == first * 2


def test_only_changed_components_are_built(
    bundle: Path, tmp_path: Path, built: list[str], make_bundle: Callable[..., Path]
):
    out = build_engines(bundle, tmp_path / "engines")
    before = read_manifest(out)
    same_file = (out / "flow.weights").stat().st_ino
    built.clear()
    other = make_bundle("other", talker_seed=1)
    build_engines(other, out)
    after = read_manifest(out)
    check_files(out, after)
    assert built == ["talker_1", "talker_4"]
    assert (out / "flow.weights").stat().st_ino == same_file  # linked, not copied
    assert after.graphs["flow_step"] == before.graphs["flow_step"]
    assert after.files["talker.weights"] != before.files["talker.weights"]
    assert set(after.build["graphs"]) == set(after.graphs)
    # And what was put together is what a build from nothing gives.
    fresh = read_manifest(build_engines(other, tmp_path / "fresh"))
    assert fresh.files == after.files
    assert fresh.build["key"] == after.build["key"]


def test_damaged_engines_are_built_again(bundle: Path, tmp_path: Path, built: list[str]):
    out = build_engines(bundle, tmp_path / "engines")
    built.clear()
    weights = bytearray((out / "flow.weights").read_bytes())
    weights[100] ^= 1
    (out / "flow.weights").write_bytes(weights)
    build_engines(bundle, out)
    assert built == ["flow_step"]
    check_files(out, read_manifest(out))


@pytest.mark.parametrize("change", ["builder", "onnxruntime"])
def test_other_builder_or_runtime_builds_everything(
    bundle: Path, tmp_path: Path, built: list[str], monkeypatch: pytest.MonkeyPatch, change: str
):
    out = build_engines(bundle, tmp_path / "engines")
    count = len(built)
    if change == "builder":
        monkeypatch.setattr(engines.cache.BuildSettings.__init__, "__defaults__", (2,))
    else:
        monkeypatch.setattr("trt_runtime.machine.onnxruntime_version", lambda: "9.9.9")
    build_engines(bundle, out)
    assert len(built) == 2 * count


def test_a_changed_asset_builds_no_graph(
    bundle: Path, tmp_path: Path, built: list[str], relist: Callable[[Path], None]
):
    out = build_engines(bundle, tmp_path / "engines")
    built.clear()
    (bundle / "tokenizer.json").unlink()  # the engines hold a link to it
    (bundle / "tokenizer.json").write_text('{"version": "2.0"}')
    relist(bundle)
    build_engines(bundle, out)
    assert built == []
    assert "2.0" in (out / "tokenizer.json").read_text()


def test_unreadable_old_manifest_fields_are_no_obstacle(
    bundle: Path, tmp_path: Path, built: list[str]
):
    out = build_engines(bundle, tmp_path / "engines")
    text = (out / MANIFEST).read_text().replace('"components": {', '"other": {')
    (out / MANIFEST).write_text(text.replace('"key": "', '"key": "0'))
    count = len(built)
    build_engines(bundle, out)
    assert len(built) == 2 * count


def test_files_are_copied_where_links_are_not_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(source: Path, target: Path) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").write_text("x")
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "x"


def test_every_module_that_the_exporter_may_import_is_part_of_the_key() -> None:
    assert set(CONTRACT) == MAY_IMPORT["export"][0] - {"export"}


@pytest.mark.parametrize("module", CONTRACT)
def test_a_change_of_the_contract_exports_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    settings = BuildSettings("cpu", {}, {"architecture": "x86_64", "needs": []})
    (tmp_path / "config.json").write_text("{}")

    def key() -> str:
        return checkpoint_key(tmp_path, tmp_path / "engines", {}, settings)

    before = key()
    assert key() == before
    real = engines.cache.sha256_of
    changed = Path(*module.split(".")).with_suffix(".py")
    monkeypatch.setattr(
        engines.cache,
        "sha256_of",
        lambda path: "other" if path.match(str(changed)) else real(path),
    )
    assert key() != before


def test_a_graphs_facts_are_its_contract_and_its_bytes(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    graph = manifest.graphs["talker_1"]
    facts = engines.cache._graph_facts(graph, manifest)
    assert json.loads(json.dumps(facts)) == facts
    for change in (
        {"file": "talker_4.onnx"},
        {"component": "flow"},
        {"inputs": graph.inputs[1:]},
        {"outputs": graph.outputs[1:]},
        {"state": ()},
        {"in_place": ()},
    ):
        assert engines.cache._graph_facts(replace(graph, **change), manifest) != facts
