"""A small random speaker encoder with the interface of CAM++, for tests and the demo."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trt_runtime.contract import SPEAKER_DIM, SPEAKER_FEATURES

_WIDTH = 64

#: CAM++ as it is released says opset 13 and IR version 8 or below.
_OPSET, _IR_VERSION = 13, 8


def random_speaker_encoder(draw: Callable[[str, int], np.ndarray]) -> bytes:
    """The bytes of a campplus.onnx: float32 (batch, frames, 80) to (batch, 192).

    `draw(name, count)` gives a weight's values, of mean 0 and deviation 1. Frames go through a
    layer each; their mean over time goes through another.
    """

    def weight(name: str, rows: int, columns: int) -> TensorProto:
        values = draw(name, rows * columns) / math.sqrt(rows)
        return numpy_helper.from_array(values.astype(np.float32).reshape(rows, columns), name)

    nodes = [
        helper.make_node("MatMul", ["input", "frame"], ["frames"]),
        helper.make_node("Relu", ["frames"], ["heard"]),
        helper.make_node("ReduceMean", ["heard"], ["pooled"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["pooled", "speaker"], ["output"]),
    ]
    graph = helper.make_graph(
        nodes,
        "speaker_encoder",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["B", "T", SPEAKER_FEATURES])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["B", SPEAKER_DIM])],
        [weight("frame", SPEAKER_FEATURES, _WIDTH), weight("speaker", _WIDTH, SPEAKER_DIM)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
    model.ir_version = _IR_VERSION
    model.producer_name = "ming-trt"
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))
