from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
from onnx import TensorProto

from engines import build_engines
from engines.weights import WeightStore
from trt_runtime.errors import FolderError, UserError
from trt_runtime.manifest import read_manifest
from trt_runtime.raw_tensors import ALIGNMENT, read_chunks

SQUARE = 32 * 32


@pytest.fixture
def built(bundle: Path, tmp_path: Path) -> Path:
    return build_engines(bundle, tmp_path / "engines")


def test_weights_are_float32_and_stored_once(built: Path):
    manifest = read_manifest(built)
    one, four = (manifest.graphs[name].initializers for name in ("talker_1", "talker_4"))
    assert set(one.values()) == set(four.values())
    assert {tensor.dtype for tensor in one.values()} == {"float32"}
    # Two matrices, however many graphs use them; the scale of 32 values stays inside.
    assert len(one) == 2
    assert (built / "talker.weights").stat().st_size == 2 * SQUARE * 4
    assert all(tensor.offset % ALIGNMENT == 0 for tensor in one.values())


def test_the_embedding_table_stays_bfloat16(built: Path):
    (table,) = read_manifest(built).graphs["prompt_embedding"].initializers.values()
    assert table.dtype == "bfloat16"
    assert (built / "prompt_embedding.weights").stat().st_size == 50 * 32 * 2


def test_casts_and_transposes_of_weights_are_gone(built: Path):
    graph = onnx.load(built / "talker_1.onnx", load_external_data=False).graph
    kinds = {node.op_type for node in graph.node}
    assert not kinds & {"Cast", "Transpose"}


def test_graphs_name_only_what_they_use(built: Path):
    model = onnx.load(built / "talker_1.onnx", load_external_data=False)
    used = {"", *(node.domain for node in model.graph.node)}
    assert {entry.domain for entry in model.opset_import} == used
    assert {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    } == {"talker.weights"}


def _change(bundle: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    path = bundle / "flow_step.onnx"
    model = onnx.load(path, load_external_data=False)
    change(model)
    path.unlink()
    path.write_bytes(model.SerializeToString())


def _external(key: str, value: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        for entry in model.graph.initializer[0].external_data:
            if entry.key == key:
                entry.value = value

    return change


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("location", "../flow.weights", r"'\.\./flow\.weights'"),
        ("location", "/etc/passwd", "'/etc/passwd'"),
        ("location", "talker.weights", "'talker.weights'"),
        ("location", "", "''"),
        ("offset", "64", "offset 64, end"),
        ("offset", "-64", "offset -64"),
        ("offset", "many", "many"),
        ("length", "10", "length 10"),
    ],
)
def test_external_data_that_leaves_its_file_is_refused(
    bundle: Path,
    tmp_path: Path,
    relist: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    value: str,
    said: str,
):
    _change(bundle, _external(key, value))
    relist(bundle)

    # flow_step is the first graph to be built, so that none has a reason to get there.
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("the graph reached ONNX Runtime")

    monkeypatch.setattr("onnxruntime.InferenceSession", refuse)
    with pytest.raises(FolderError, match=rf"flow_step\.onnx(?s:.*)velocity(?s:.*){said}"):
        build_engines(bundle, tmp_path / "engines")
    assert not (tmp_path / "engines").exists()


def test_external_data_hidden_in_a_node_is_refused_too(
    bundle: Path, tmp_path: Path, relist: Callable[[Path], None]
):
    def change(model: onnx.ModelProto) -> None:
        tensor = TensorProto(name="hidden", data_type=TensorProto.FLOAT, dims=[4])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../../secret")
        node = onnx.helper.make_node("Constant", [], ["unused"], value=tensor)
        model.graph.node.insert(0, node)

    _change(bundle, change)
    relist(bundle)
    with pytest.raises(FolderError, match=r"hidden(?s:.*)\.\./\.\./secret"):
        build_engines(bundle, tmp_path / "engines")


def test_linked_weights_are_refused(bundle: Path, tmp_path: Path):
    weights = bundle / "flow.weights"
    os.rename(weights, tmp_path / "elsewhere")  # noqa: PTH104
    weights.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FolderError, match=r"flow\.weights is missing or not a plain file"):
        build_engines(bundle, tmp_path / "engines")


@pytest.mark.parametrize("data", [b"", b"not onnx at all", b"\x0a\xff\xff\xff\xff\x0f"])
def test_a_file_that_is_not_onnx_is_named(
    bundle: Path, tmp_path: Path, relist: Callable[[Path], None], data: bytes
):
    (bundle / "flow_step.onnx").write_bytes(data)
    relist(bundle)
    with pytest.raises(FolderError, match=r"flow_step\.onnx is damaged"):
        build_engines(bundle, tmp_path / "engines")


def test_a_graph_that_onnxruntime_refuses_is_named(
    bundle: Path, tmp_path: Path, relist: Callable[[Path], None]
):
    def change(model: onnx.ModelProto) -> None:
        model.graph.node[-1].op_type = "NoSuchOperator"

    _change(bundle, change)
    relist(bundle)
    with pytest.raises(FolderError, match=r"refuses .*flow_step\.onnx(?s:.*)NoSuchOperator"):
        build_engines(bundle, tmp_path / "engines")


def test_a_graph_that_contradicts_the_manifest_is_refused(
    bundle: Path, tmp_path: Path, relist: Callable[[Path], None]
):
    def change(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3

    _change(bundle, change)
    relist(bundle)
    with pytest.raises(FolderError, match=r"other inputs(?s:.*)\[1, 2, 32\](?s:.*)\[1, 3, 32\]"):
        build_engines(bundle, tmp_path / "engines")


def test_a_disk_that_fills_while_onnxruntime_writes_is_recognised(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("Failed to write external initializers")

    monkeypatch.setattr("onnxruntime.InferenceSession", fail)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=4096))
    with pytest.raises(UserError, match="is full"):
        build_engines(bundle, tmp_path / "engines")


def test_store_keeps_one_copy_of_equal_tensors(tmp_path: Path):
    raw = tmp_path / "raw"
    raw.write_bytes(bytes(range(100)) * 2)
    with WeightStore(tmp_path, "w.weights") as store:
        first = store.add("uint8", (100,), lambda: read_chunks(raw, 0, 100))
        assert store.add("uint8", (100,), lambda: read_chunks(raw, 100, 100)) == first
        # Another shape is another tensor: readers find dtype and shape beside the place.
        other = store.add("uint8", (10, 10), lambda: read_chunks(raw, 0, 100))
    assert (first.offset, other.offset) == (0, 128)
    assert (tmp_path / "w.weights").read_bytes()[128:] == bytes(range(100))


def test_store_without_tensors_makes_no_file(tmp_path: Path):
    with WeightStore(tmp_path, "w.weights"):
        pass
    assert list(tmp_path.iterdir()) == []
