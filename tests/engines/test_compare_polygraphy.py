"""Polygraphy's plain commands on the exported graphs, with the inputs that we ship for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from engines import polygraphy_data
from engines.graph_inputs import graph_inputs
from tests.conftest import Folders
from trt_runtime.errors import UserError
from trt_runtime.manifest import read_manifest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = f"{ROOT / 'engines' / 'polygraphy_data.py'}:load_data"
RUN = [sys.executable, "-c", "from polygraphy.tools import main; main()"]


def polygraphy(*words: str | Path, cwd: Path) -> str:
    """What `polygraphy` with these words prints; it must end well."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [*RUN, *map(str, words)], cwd=cwd, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_run_takes_our_inputs(moe: Folders, tmp_path: Path) -> None:
    """A graph with functions of our own domain, weights outside its file and a free axis."""
    graph = moe.bundle / "talker_1.onnx"
    told = polygraphy("run", graph, "--onnxrt", "--data-loader-script", SCRIPT, cwd=tmp_path)
    assert "PASSED" in told
    assert "position [dtype=int64, shape=(2,)]" in told


def test_inspect_reads_a_graph(moe: Folders, tmp_path: Path) -> None:
    told = polygraphy("inspect", "model", moe.bundle / "talker_1.onnx", cwd=tmp_path)
    assert "'slots'" in told


def test_reduce_finds_a_node(dense: Folders, tmp_path: Path) -> None:
    """Down to the one node that a check of the user's does not like."""
    pytest.importorskip("onnx_graphsurgeon", reason="`polygraphy debug reduce` needs it")
    check = tmp_path / "check.py"
    check.write_text(
        "import onnx, sys\n"
        "graph = onnx.load('polygraphy_debug.onnx', load_external_data=False).graph\n"
        "sys.exit(any(node.name == 'MatMul_5' for node in graph.node))\n"
    )
    polygraphy(
        "debug", "reduce", dense.bundle / "flow_advance.onnx", "--load-external-data", dense.bundle,
        "-o", "reduced.onnx", "--mode=bisect", "--check", sys.executable, check, cwd=tmp_path,
    )  # fmt: skip
    (tensor, *_) = polygraphy_data.tensors_of(tmp_path / "reduced.onnx", 2)
    assert tensor.shape[0] == 2


def test_every_graph_takes_our_inputs(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    for entry in read_manifest(folders.bundle).graphs.values():
        path = folders.bundle / entry.file
        monkeypatch.setenv(polygraphy_data.GRAPH, str(path))
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        feeds = list(polygraphy_data.load_data())
        assert len(feeds) == 2
        for feed in feeds:
            assert set(feed) == {node.name for node in session.get_inputs()}
            assert all(np.isfinite(values).all() for values in session.run(None, feed))


def test_the_graph_is_named_by_the_command_line(
    dense: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = dense.bundle / "talker_1.onnx"
    monkeypatch.delenv(polygraphy_data.GRAPH, raising=False)
    monkeypatch.setattr(sys, "argv", ["polygraphy", "run", str(graph), "--onnxrt"])
    monkeypatch.setenv(polygraphy_data.SLOTS_VARIABLE, "5")
    assert polygraphy_data.graph_path() == graph
    feeds = list(polygraphy_data.load_data())
    assert [len(feed["position"]) for feed in feeds] == [5, 5]
    monkeypatch.setenv(polygraphy_data.SEED, "1")
    other = next(polygraphy_data.load_data())
    assert (other["embeddings"] != feeds[0]["embeddings"]).any()


@pytest.mark.parametrize(("variable", "value"), [("MING_TRT_SLOTS", "0"), ("MING_TRT_SEED", "x")])
def test_variables_are_checked(
    variable: str, value: str, dense: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(polygraphy_data.GRAPH, str(dense.bundle / "talker_1.onnx"))
    monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=variable):
        list(polygraphy_data.load_data())


def test_no_graph_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["polygraphy"])
    monkeypatch.delenv(polygraphy_data.GRAPH, raising=False)
    with pytest.raises(UserError, match="no graph"):
        polygraphy_data.graph_path()
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read"):
        polygraphy_data.tensors_of(damaged, 2)


def test_a_graph_alone_takes_the_least(dense: Folders, tmp_path: Path) -> None:
    """Without a manifest nothing says how much a whole call holds."""
    entry = read_manifest(dense.bundle).graphs["audio_encoder"]
    assert polygraphy_data.geometry_beside(tmp_path / "x.onnx") is None
    assert graph_inputs(entry.inputs)["valid_frames"] == 1
    geometry = read_manifest(dense.bundle).geometry
    whole = geometry.encoder_latents * geometry.frames_per_latent
    assert graph_inputs(entry.inputs, geometry)["valid_frames"] == whole


def test_the_script_prints_its_place() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engines.polygraphy_data"], check=True, capture_output=True,
        text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout.strip() == SCRIPT.partition(":load_data")[0]
