"""The speaker encoder that a checkpoint brings: a stranger's graph, taken as nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from export.speaker_encoder import CAMPPLUS, read_speaker_encoder, write_speaker_encoder
from export.synthetic_speaker_encoder import random_speaker_encoder
from trt_runtime.errors import UserError


def draw(name: str, count: int) -> np.ndarray:
    return np.random.Generator(np.random.Philox(len(name))).standard_normal(count)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / CAMPPLUS).write_bytes(random_speaker_encoder(draw))
    return tmp_path


def change(folder: Path, edit: Callable[[onnx.ModelProto], object]) -> None:
    model = onnx.load(folder / CAMPPLUS)
    edit(model)
    (folder / CAMPPLUS).write_bytes(model.SerializeToString())


def test_it_is_copied_byte_for_byte(folder: Path) -> None:
    assert write_speaker_encoder(folder, folder / "out.onnx")
    assert (folder / "out.onnx").read_bytes() == (folder / CAMPPLUS).read_bytes()


def test_none_is_no_error(tmp_path: Path) -> None:
    assert not write_speaker_encoder(tmp_path, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_the_random_one_depends_on_its_input(folder: Path) -> None:
    evaluator = ReferenceEvaluator(str(folder / CAMPPLUS))
    noise = np.random.Generator(np.random.Philox(1)).standard_normal((2, 9, 80), np.float32)
    (output,) = evaluator.run(None, {"input": noise})
    assert output.shape == (2, 192)
    assert np.abs(output[0] - output[1]).max() > 0.01


def _add_domain(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("com.stranger", 1))
    model.graph.node[0].domain = "com.stranger"


def _external(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def _other_features(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 40


def _other_embedding(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 512


def _double(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (_add_domain, "operators of com.stranger"),
        (_external, "weights in other files"),
        (_other_features, "40"),
        (_double, "None"),
        (lambda m: m.graph.input.append(m.graph.output[0]), "inputs and outputs"),
        (lambda m: m.graph.node.pop(0), "frames"),
    ],
)
def test_what_is_refused(
    folder: Path, edit: Callable[[onnx.ModelProto], object], found: str
) -> None:
    change(folder, edit)
    with pytest.raises(UserError, match=rf"is no speaker encoder(?s:.*){found}"):
        read_speaker_encoder(folder)


def test_a_declared_width_that_is_stale_is_taken(folder: Path) -> None:
    """As in released files, whose output is (batch, 192) whatever they declare."""
    change(folder, _other_embedding)
    assert read_speaker_encoder(folder) == (folder / CAMPPLUS).read_bytes()


def test_a_link_that_leads_nowhere_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / CAMPPLUS).symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match="no plain file"):
        read_speaker_encoder(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"not a graph", b"\x08\xff" * 50])
def test_a_file_that_is_no_graph(folder: Path, content: bytes) -> None:
    (folder / CAMPPLUS).write_bytes(content)
    with pytest.raises(UserError, match="is no speaker encoder"):
        write_speaker_encoder(folder, folder / "out.onnx")
    assert not (folder / "out.onnx").exists()


def test_a_truncated_file(folder: Path) -> None:
    whole = (folder / CAMPPLUS).read_bytes()
    (folder / CAMPPLUS).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="is no speaker encoder"):
        read_speaker_encoder(folder)


def test_a_huge_file_is_refused_before_it_is_read(folder: Path) -> None:
    with (folder / CAMPPLUS).open("r+b") as file:
        file.truncate(1 << 30)
    with pytest.raises(UserError, match="1073741824 bytes"):
        read_speaker_encoder(folder)


def _loop_without_end(model: onnx.ModelProto) -> None:
    """The graph's input goes round and round before it is used."""
    value = helper.make_tensor_value_info("kept", TensorProto.FLOAT, None)
    flag = helper.make_tensor_value_info("go", TensorProto.BOOL, [])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Identity", ["kept"], ["again"]),
        ],
        "body",
        [helper.make_tensor_value_info("turn", TensorProto.INT64, []), flag, value],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("again", TensorProto.FLOAT, None),
        ],
    )
    model.graph.node.insert(
        0, helper.make_node("Loop", ["", "yes", "input"], ["turned"], body=body)
    )
    model.graph.node.insert(
        0,
        helper.make_node(
            "Constant", [], ["yes"], value=helper.make_tensor("", TensorProto.BOOL, [], [True])
        ),
    )
    model.graph.node[2].input[0] = "turned"


def _random(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("RandomNormalLike", ["pooled"], ["noise"]))


def _loop_inside_a_branch(model: onnx.ModelProto) -> None:
    _loop_without_end(model)
    branch = helper.make_graph([model.graph.node[1]], "branch", [], [])
    del model.graph.node[1]
    model.graph.node.append(
        helper.make_node("If", ["yes"], ["never"], then_branch=branch, else_branch=branch)
    )


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (_loop_without_end, "operators Loop"),
        (_loop_inside_a_branch, "operators Loop"),
        (_random, "operators RandomNormalLike"),
    ],
)
def test_operators_that_run_without_end_or_draw(
    folder: Path, edit: Callable[[onnx.ModelProto], object], found: str
) -> None:
    change(folder, edit)
    with pytest.raises(UserError, match=rf"is no speaker encoder(?s:.*){found}"):
        read_speaker_encoder(folder)
