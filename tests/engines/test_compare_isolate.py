"""Bisection to a node: in graphs made for it, in engines, and where there is no graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engines import build_engines, compare
from engines.comparison.graph_pairs import Graphs, isolated
from engines.comparison.isolate import Finding, isolate
from engines.comparison.marked_graph import MarkedGraph
from engines.graph_inputs import graph_inputs
from tests.conftest import Folders
from tests.engines.plants import copied, parameters, plant
from tests.trt_runtime.backends.engine_folders import write_folder
from trt_runtime.contract import TensorSpec
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import BUNDLE, GraphEntry, Manifest, read_manifest

WIDTH, LENGTH = 8, 100
IN, OUT = TensorSpec("x", "float32", (1, WIDTH)), TensorSpec("y", "float32", (1, WIDTH))
ENTRY = GraphEntry("chain.onnx", "chain", (IN,), (OUT,))


def chain(
    folder: Path, geometry: Geometry, wrong: int | None = None, size: float = 1.01
) -> MarkedGraph:
    """LENGTH residual products, each with a weight of its own, beside a branch that stays good."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    nodes, weights, name = [], [], "x"
    for index in range(LENGTH):
        weight = (rng.standard_normal((WIDTH, WIDTH)) / 30).astype(np.float32)
        weights.append(
            numpy_helper.from_array(weight * np.float32(size if index == wrong else 1), f"w{index}")
        )
        nodes.append(
            helper.make_node("MatMul", [name, f"w{index}"], [f"p{index}"], f"product{index}")
        )
        nodes.append(helper.make_node("Add", [name, f"p{index}"], [f"s{index}"], f"sum{index}"))
        name = f"s{index}"
    nodes.append(helper.make_node("Tanh", ["x"], ["beside"], "beside"))
    nodes.append(helper.make_node("Add", [name, "beside"], ["y"], "last"))
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, WIDTH)) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "chain", infos[:1], infos[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, folder / ENTRY.file)
    manifest = Manifest(BUNDLE, "dense", geometry, {"chain": ENTRY}, {ENTRY.file: (0, "")}, {})
    return MarkedGraph(folder, ENTRY, manifest)


@pytest.fixture
def geometry(dense: Folders) -> Geometry:
    return read_manifest(dense.bundle).geometry


def found(a: MarkedGraph, b: MarkedGraph, *, alike: bool = True) -> Finding:
    return isolate("chain", "chain", a, b, [graph_inputs([IN])], 2e-5, alike=alike)


@pytest.mark.parametrize("wrong", [0, 1, 37, LENGTH - 1])
def test_the_first_wrong_node_is_found_in_few_runs(
    wrong: int, geometry: Geometry, tmp_path: Path
) -> None:
    finding = found(chain(tmp_path / "a", geometry), chain(tmp_path / "b", geometry, wrong))
    assert [node.name for node in finding.b] == [f"product{wrong}"]
    assert finding.b[0].initializers == (f"w{wrong}",)
    assert finding.error_before == 0.0
    assert finding.error == pytest.approx(0.01, rel=1e-3)
    assert finding.error_alone == pytest.approx(0.01, rel=1e-3)
    # The ends, log2 of 202 nodes, the node itself.
    assert finding.runs <= 10


def test_a_difference_below_the_budget_is_found_between_graphs_that_run_alike(
    geometry: Geometry, tmp_path: Path
) -> None:
    a, b = chain(tmp_path / "a", geometry), chain(tmp_path / "b", geometry, 20, 1 + 1e-6)
    assert [node.name for node in found(a, b).b] == ["product20"]
    assert not found(a, b, alike=False).tensor


def test_equal_graphs_have_no_such_node(geometry: Geometry, tmp_path: Path) -> None:
    graphs = chain(tmp_path / "a", geometry), chain(tmp_path / "b", geometry)
    finding = found(*graphs)
    assert not finding.tensor
    assert "same" in finding.why


def test_a_run_computes_only_what_is_asked_for(geometry: Geometry, tmp_path: Path) -> None:
    graph = chain(tmp_path / "a", geometry)
    feed = graph_inputs([IN])
    pruned = graph._pruned(feed, ["s1"], exact=True).graph
    assert [node.name for node in pruned.node[:-1]] == ["product0", "sum0", "product1", "sum1"]
    assert [tensor.name for tensor in pruned.initializer] == ["w0", "w1"]
    # From the middle: what lies before it is not needed.
    middle = graph.run(feed, ["s1"], exact=True)
    after = graph.run(middle, ["s2"])["s2"]
    np.testing.assert_array_equal(after, graph.run(feed, ["s2"])["s2"])


def test_the_reference_evaluator_agrees(geometry: Geometry, tmp_path: Path) -> None:
    graph = chain(tmp_path / "a", geometry)
    feed = graph_inputs([IN])
    slow, fast = (graph.run(feed, ["y"], narrow=narrow)["y"] for narrow in (True, False))
    np.testing.assert_allclose(slow, fast, rtol=1e-5)


def test_in_engines_by_the_names_that_building_left(folders: Folders, tmp_path: Path) -> None:
    """Fused nodes and kernels too; what lies in caches past the positions is nobody's."""
    stored = read_manifest(folders.engines).graphs
    for graph, component, parameter in (
        ("talker_1", "talker", "talker.layers.1.qkv_weight"),
        ("audio_decoder", "audio_decoder", "audio_decoder.layers.1.qkv_weight"),
    ):
        wrong = copied(folders.engines, tmp_path / graph)
        tensor = stored[graph].initializers[f"{parameter}.float32"]
        assert plant(wrong, tensor, lambda values: values * 1.01)
        report = compare(folders.bundle, wrong, steps=1, threads=1, isolate=True)
        assert report.components == [component]
        first = next(finding for finding in report.findings if finding.graph == graph)
        assert parameter in {name for node in first.a for name in node.initializers}
        assert f"{parameter}.float32" in {name for node in first.b for name in node.initializers}
        assert any(node.source.startswith("export/modules/") for node in first.a)
        assert first.error_before < 2e-5 < first.error
        told = "\n".join(report.lines())
        assert first.a[0].name in told
        assert parameter in told


def test_without_a_graph_it_says_what_to_do(dense: Folders, tmp_path: Path) -> None:
    cuda = build_engines(dense.bundle, tmp_path / "cuda", target="cuda")
    pair = tuple(Graphs(path, read_manifest(path)) for path in (dense.bundle, cuda))
    findings = isolated((pair[0], pair[1]), {"talker", "tail"}, (), 2e-5, 0)
    assert sorted(finding.component for finding in findings) == ["tail", "talker"]
    told = {finding.component: finding.why for finding in findings}
    assert "plugin-loop" in told["talker"]
    assert "compare the bundle" in told["talker"]


@pytest.mark.parametrize(
    ("of_a", "of_b", "runs"),
    [("bundle", "engines", "B runs"), ("engines", "bundle", "A runs"),
     ("engines", "engines", "A and B run")],
)  # fmt: skip
def test_an_engine_has_no_graph_to_look_into(
    dense: Folders, of_a: str, of_b: str, runs: str, tmp_path: Path
) -> None:
    made = {"bundle": dense.bundle, "engines": write_folder(dense.bundle, tmp_path / "engines")}
    a, b = (Graphs(made[of], read_manifest(made[of])) for of in (of_a, of_b))
    findings = isolated((a, b), {"talker", "tail"}, (), 2e-5, 0)
    assert {finding.component: finding.why for finding in findings} == {
        component: f"{runs} {component} as an engine, which has no graph to look into: compare the "
        "bundle that it was built from"
        for component in ("talker", "tail")
    }
    assert len(findings) == 2


def test_a_checkpoint_is_exported_for_it(
    dense: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reuse(checkpoint: Path, place: Path, **_: object) -> Path:
        assert checkpoint == dense.checkpoint
        return copied(dense.bundle, place)

    monkeypatch.setattr("export.bundle.export_checkpoint", reuse)
    wrong = copied(dense.bundle, tmp_path / "wrong")
    stored = parameters(wrong)["stop_head.weight"]
    assert plant(wrong, stored, lambda values: values * 1.01)
    report = compare(dense.checkpoint, wrong, steps=1, threads=1, isolate=True)
    assert [difference.name for difference in report.weights] == ["stop_head.weight"]
    assert report.readers["stop_head.weight"]
    (node,) = next(f for f in report.findings if f.graph == "flow_advance").b
    assert node.initializers == ("stop_head.weight",)
