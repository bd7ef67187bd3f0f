"""Bundles: reproducible, whole or absent, no larger than they must be, and true to the contract."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import export.bundle
from export import ExportOptions, export_checkpoint
from export.geometry import geometry_of
from export.graphs import GraphSource, graph_sources
from export.sizes import read_sizes
from tests.conftest import Folders
from tests.engines.folders import contents
from trt_runtime.backends.onnxruntime_cpu import CpuBackend
from trt_runtime.contract import (
    AUDIO_DECODER,
    FLOW_ADVANCE,
    FLOW_STEP,
    SPEAKER_PROJECTION,
    TAIL,
    TensorSpec,
    graph_specs,
)
from trt_runtime.errors import MingError, UserError
from trt_runtime.folder import OpenFolder, open_folder
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import BUNDLE, read_manifest
from trt_runtime.operators import SOURCE_KEY
from trt_runtime.synthesizer import Synthesizer
from trt_runtime.tail import LoopedTail, UnrolledTail

ROOT = Path(__file__).resolve().parents[2]
SMALL = ExportOptions(cache_length=256, max_steps=8, prefill_chunks=(16,))


_EXPORT = """
import sys
from export import ExportOptions, export_checkpoint
export_checkpoint(sys.argv[1], sys.argv[2], options=ExportOptions(256, 8, (16,)))
"""


def test_same_bytes_from_another_folder(checkpoint: Path, tmp_path: Path) -> None:
    """Code, checkpoint and bundle all elsewhere, in another process with another hash seed."""
    here = export_checkpoint(checkpoint, tmp_path / "here", options=SMALL)
    elsewhere = tmp_path / "another" / "place"
    for package in ("export", "trt_runtime"):
        shutil.copytree(
            ROOT / package,
            elsewhere / package,
            ignore=shutil.ignore_patterns("__pycache__", "data"),
        )
    shutil.copytree(checkpoint, elsewhere / "weights")
    subprocess.run(
        [sys.executable, "-c", _EXPORT, "weights", "bundle"],
        check=True,
        cwd=elsewhere,
        env={"PYTHONHASHSEED": "7", "PATH": ""},
    )
    assert contents(here) == contents(elsewhere / "bundle")


def test_graphs_keep_the_contract_and_say_where_they_come_from(dense: Folders) -> None:
    manifest = read_manifest(dense.bundle)
    for name, spec in graph_specs(manifest.geometry).items():
        entry = manifest.graphs[name]
        assert (entry.inputs, entry.outputs) == (spec.inputs, spec.outputs)
        model = onnx.load(dense.bundle / entry.file, load_external_data=False)
        sources = [p.value for n in model.graph.node for p in n.metadata_props]
        assert sources
        assert all(source.startswith("export/") for source in sources)
        assert {p.key for n in model.graph.node for p in n.metadata_props} == {SOURCE_KEY}
        assert str(ROOT) not in str(model)


def test_weights_stay_as_stored_and_no_larger_than_the_checkpoint(dense: Folders) -> None:
    manifest = read_manifest(dense.bundle)
    dtypes = [t.dtype for graph in manifest.graphs.values() for t in graph.initializers.values()]
    assert dtypes.count("bfloat16") > 0.9 * len(dtypes)
    weights = sum(path.stat().st_size for path in dense.bundle.glob("*.weights"))
    assert weights <= (dense.checkpoint / "model.safetensors").stat().st_size


def test_graphs_of_one_component_share_its_weights(dense: Folders) -> None:
    graphs = read_manifest(dense.bundle).graphs
    talkers = [graph for name, graph in graphs.items() if name.startswith("talker_")]
    assert len(talkers) > 1
    assert all(graph.initializers == talkers[0].initializers for graph in talkers)
    parts = {**graphs[FLOW_STEP].initializers, **graphs[FLOW_ADVANCE].initializers}
    assert graphs[TAIL].initializers == parts


def _random(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("temperature", [0.0, 2.5])
@pytest.mark.parametrize("guidance", [0.0, 1.0, 2.0])
def test_the_unrolled_tail_equals_the_loop(
    dense: Folders, guidance: float, temperature: float
) -> None:
    manifest = read_manifest(dense.bundle)
    g = manifest.geometry
    results = []
    for kind, graphs in ((LoopedTail, (FLOW_STEP, FLOW_ADVANCE)), (UnrolledTail, (TAIL,))):
        part = dataclasses.replace(manifest, graphs={n: manifest.graphs[n] for n in graphs})
        backend = CpuBackend(dense.bundle, part)
        shape = (1, 1, g.talker_hidden)
        hidden, embedding = (backend.buffer(TensorSpec(n, "float32", shape)) for n in "he")
        hidden.write(_random(shape, 1))
        tail = kind(
            backend,
            g,
            hidden,
            embedding,
        )
        tail.start(
            0,
            guidance=guidance,
            noise_scale=0.3 * math.sqrt(temperature),
            history=_random((g.history, g.latent_dim), 2),
        )
        noise = _random((1, g.solver_steps, g.patch, g.latent_dim), 3)
        tail.run(noise[:, 0], noise[:, 1:])
        outputs = (tail.patch, embedding, tail.stop_probability, tail.history)
        results.append([buffer.read().copy() for buffer in outputs])
    for looped, unrolled in zip(*results, strict=True):
        # Two float32 evaluations of the same sums, fused differently by the runtime.
        np.testing.assert_allclose(unrolled, looped, rtol=1e-4, atol=1e-5)


def test_a_folder_with_the_unrolled_tail_alone_speaks(dense: Folders) -> None:
    """What a GPU target will hold: no loop, the same speech."""
    looped = Synthesizer(open_folder(dense.bundle)).synthesize("Hello.", max_steps=3)
    manifest = read_manifest(dense.bundle)
    kept = {n: e for n, e in manifest.graphs.items() if n not in (FLOW_STEP, FLOW_ADVANCE)}
    part = dataclasses.replace(manifest, graphs=kept)
    opened = OpenFolder(dense.bundle, part, CpuBackend(dense.bundle, part))
    unrolled = Synthesizer(opened).synthesize("Hello.", max_steps=3)
    np.testing.assert_allclose(unrolled.audio, looped.audio, rtol=0, atol=1e-4)


def _only(name: str) -> Callable[[Geometry], list[GraphSource]]:
    return lambda geometry: [s for s in graph_sources(geometry) if s.spec.name == name]


def _other_operator(model: onnx.ModelProto) -> None:
    """In the function that the graph's attention stands for."""
    nodes = (node for function in model.functions for node in function.node)
    next(node for node in nodes if node.op_type == "Sin").op_type = "Cos"


def _other_weights(model: onnx.ModelProto) -> None:
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    one, two = (stored[f"talker.layers.{layer}.mlp_norm"] for layer in (0, 1))
    kept = type(one).FromString(one.SerializeToString())
    del one.external_data[:]
    one.external_data.extend(two.external_data)
    del two.external_data[:]
    two.external_data.extend(kept.external_data)


def _instead_of_input(name: str, value: np.ndarray) -> Callable[[onnx.ModelProto], None]:
    """A graph that is right at this value of an input only."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, "constant"))
        for node in model.graph.node:
            for index, used in enumerate(node.input):
                if used == name:
                    node.input[index] = "constant"

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("talker_1", _other_operator),
        ("talker_1", _other_weights),
        ("talker_1", _instead_of_input("position", np.array([16]))),
        (AUDIO_DECODER, _instead_of_input("is_last", np.array([False]))),
        (AUDIO_DECODER, _instead_of_input("latents_before", np.array([4]))),
        (AUDIO_DECODER, _instead_of_input("valid", np.array([4]))),
    ],
)
def test_a_wrong_graph_is_refused(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    change: Callable[[onnx.ModelProto], None],
) -> None:
    """A graph that computes something else than its module does not become a bundle."""
    save = export.bundle.ir.save

    def save_changed(model: ir.Model, path: Path) -> None:
        save(model, path)
        written = onnx.load(path, load_external_data=False)
        change(written)
        path.write_bytes(written.SerializeToString())

    monkeypatch.setattr("export.export_plan.graph_sources", _only(name))
    monkeypatch.setattr(export.bundle.ir, "save", save_changed)
    with pytest.raises(MingError, match=f"{name} differs from its torch module"):
        export_checkpoint(checkpoint, tmp_path / "bundle", options=SMALL)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


def test_values_that_memory_does_not_allow_to_compare_are_named(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("export.export_plan.graph_sources", _only(FLOW_STEP))
    lines: list[str] = []

    def manifest_of_export(name: str, **choice: int) -> bytes:
        place = tmp_path / name
        export_checkpoint(checkpoint, place, options=SMALL, progress=lines.append, **choice)
        return (place / "manifest.json").read_bytes()

    compared = manifest_of_export("a")
    assert "relative error" in lines[-1]
    unasked = manifest_of_export("b", check_values=False)
    assert "values NOT compared: not asked for (--no-values); 100 % done" in lines[-1]
    assert "NOT compared" not in caplog.text
    monkeypatch.setattr("export.verification.free_memory", lambda: 1000)
    impossible = manifest_of_export("c")
    assert re.search(r"flow_step: .*values NOT compared: needs \d+\.\d GB, 0\.0 GB free", lines[-1])
    monkeypatch.undo()
    monkeypatch.setattr("export.export_plan.graph_sources", _only(FLOW_STEP))
    bounded = manifest_of_export("d", memory=700_000_000)
    assert "values NOT compared: needs 0.8 GB, --memory allows 0.7 GB" in lines[-1]
    assert "--memory allows" in caplog.text
    assert "graph flow_step: values NOT compared" in caplog.text
    # A bundle is the same wherever it is made.
    assert compared == unasked == impossible == bounded


def test_a_failed_export_leaves_the_old_bundle(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "bundle"
    place.mkdir()
    old = json.dumps({"format": BUNDLE, "format_version": 0, "files": {}})
    (place / "manifest.json").write_text(old)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(export.bundle, "make_graph", interrupt)
        with pytest.raises(KeyboardInterrupt):
            export_checkpoint(checkpoint, place, options=SMALL, resumable=False)
    assert (place / "manifest.json").read_text() == old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle", "checkpoint"]
    monkeypatch.setattr("export.export_plan.graph_sources", _only(SPEAKER_PROJECTION))
    export_checkpoint(checkpoint, place, options=SMALL)
    assert read_manifest(place).kind == BUNDLE
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle", "checkpoint"]


@pytest.mark.parametrize("manifest", ["old", '{"name": "a web extension"}'])
def test_a_folder_of_something_else_is_not_replaced(
    checkpoint: Path, tmp_path: Path, manifest: str
) -> None:
    place = tmp_path / "thesis"
    place.mkdir()
    (place / "chapter1.txt").write_text("irreplaceable")
    (place / "manifest.json").write_text(manifest)
    with pytest.raises(UserError, match="is not a bundle, and is not replaced"):
        export_checkpoint(checkpoint, place, options=SMALL)
    assert (place / "chapter1.txt").read_text() == "irreplaceable"


def test_a_place_without_a_name_is_refused(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(UserError, match="the folder that this command runs in"):
        export_checkpoint(checkpoint, ".", options=SMALL)
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"cache_length": 0},
        {"max_steps": -1},
        {"max_steps": True},
        {"prefill_chunks": ()},
        {"prefill_chunks": (1, 16)},
        {"prefill_chunks": (16, 24)},
        {"cache_length": 100, "prefill_chunks": (16,)},
    ],
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        ExportOptions(**options)


def test_sizes_that_no_graph_can_have_are_a_users_error(config: dict[str, Any]) -> None:
    options = ExportOptions(cache_length=256, max_steps=1 << 20, prefill_chunks=(16,))
    with pytest.raises(UserError, match=r"do not go together(?s:.*)decoder_cache_lengths"):
        geometry_of(read_sizes(config), options)


def test_manifest_names_the_checkpoint(dense: Folders) -> None:
    source = json.loads((dense.bundle / "manifest.json").read_text())["source"]
    assert len(source["tensors_sha256"]) == 64
    assert source["parameters"]["talker"] > 0
