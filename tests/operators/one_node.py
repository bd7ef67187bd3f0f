"""A graph of one node of our domain, its function beside it, and how any such graph is run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from engines.onnxruntime_kernels import use_kernels
from engines.operator_forms import DECOMPOSABLE
from export.operator_bodies import body_of
from trt_runtime.contract import SLOTS
from trt_runtime.operators import DOMAIN, VERSION

#: By name, in the order of the operator's inputs.
Arrays = dict[str, np.ndarray]

_TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}


def model_of(
    operator: str,
    a: Arrays,
    outputs: Mapping[str, Sequence[int]],
    attributes: Mapping[str, int],
    *,
    constants: Collection[str] = (),
    by_slot: Collection[str] = (),
) -> onnx.ModelProto:
    """The graph for inputs like `a`; `outputs` are float32, by name with their shapes.

    `constants` are stored in it; the first axis of the tensors `by_slot` is free.
    """
    node = helper.make_node(operator, list(a), list(outputs), domain=DOMAIN, **attributes)

    def info(name: str, dtype: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
        axes = [SLOTS, *shape[1:]] if name in by_slot else list(shape)
        return helper.make_tensor_value_info(name, _TYPES[dtype], axes)

    graph = helper.make_graph(
        [node],
        "one",
        [info(n, str(v.dtype), v.shape) for n, v in a.items() if n not in constants],
        [info(name, "float32", shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(a[name], name) for name in constants],
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, VERSION)],
        functions=[body_of(operator, [value.shape for value in a.values()])],
        ir_version=10,
    )


def inputs_of(model: onnx.ModelProto, a: Arrays) -> Arrays:
    """Those of the arrays that the model wants to be given."""
    return {value.name: a[value.name] for value in model.graph.input}


def run_by_onnx(model: onnx.ModelProto, a: Arrays) -> list[np.ndarray]:
    return ReferenceEvaluator(model).run(None, inputs_of(model, a))


def session_of(model: onnx.ModelProto) -> ort.InferenceSession:
    onnx.checker.check_model(model)
    options = ort.SessionOptions()
    options.log_severity_level = (
        3  # A constant that only our node reads is left behind by a kernel.
    )
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run_by_onnxruntime(model: onnx.ModelProto, a: Arrays) -> list[np.ndarray]:
    return session_of(model).run(None, inputs_of(model, a))


def with_kernel(model: onnx.ModelProto, kernel: str) -> onnx.ModelProto:
    """The model with ONNX Runtime's operator `kernel` in the place of ours, in place."""
    use_kernels(model)
    assert [node.op_type for node in model.graph.node if node.domain] == [kernel]
    assert not model.functions
    return model


def without_our_attribute(model: onnx.ModelProto) -> None:
    """Takes TensorRT's attribute off ONNX's `Attention`, of which only its parser knows."""
    for node in model.graph.node:
        kept = [a for a in node.attribute if a.name != DECOMPOSABLE]
        del node.attribute[:]
        node.attribute.extend(kept)
