"""The plugin operators as ONNX functions of plain operators: what a backend without a kernel runs.

What they mean is in :mod:`trt_runtime.operators`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import FunctionProto

from trt_runtime.operators import DOMAIN, MIXTURE_OF_EXPERTS, VERSION

# Every expert computes every row, and rows weigh those that they did not choose with zero: right
# everywhere and quick nowhere, as a body is for.
_MIXTURE_OF_EXPERTS = """
<opset_import: ["" : 20], domain: "DOMAIN">
MixtureOfExperts <chosen, normalized> (x, router_logits, gate_up, down) => (y)
{
    last = Constant <value_ints = [-1]> ()
    first = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    end = Constant <value_ints = [9223372036854775807]> ()
    probabilities = Softmax <axis = -1> (router_logits)
    count = Constant <value_int : int = @chosen> ()
    counts = Reshape (count, one)
    values, experts = TopK <axis = -1> (probabilities, counts)
    total = ReduceSum <keepdims = 1> (values, last)
    divides = Constant <value_int : int = @normalized> ()
    divide = Cast <to = 9> (divides)
    whole = Constant <value_float = 1.0> ()
    divisor = Where (divide, total, whole)
    weights = Div (values, divisor)
    nothing = Sub (probabilities, probabilities)
    spread = ScatterElements <axis = 1> (nothing, experts, weights)
    by_expert = Transpose <perm = [1, 0]> (spread)
    share = Unsqueeze (by_expert, last)
    shape = Shape (x)
    width = Gather (shape, last)
    rows_shape = Concat <axis = 0> (last, width)
    rows = Reshape (x, rows_shape)
    same = Unsqueeze (rows, first)
    in_weight = Transpose <perm = [0, 2, 1]> (gate_up)
    both = MatMul (same, in_weight)
    gate = Slice (both, first, end, last, two)
    up = Slice (both, one, end, last, two)
    opened = Sigmoid (gate)
    silu = Mul (gate, opened)
    inner = Mul (silu, up)
    out_weight = Transpose <perm = [0, 2, 1]> (down)
    each = MatMul (inner, out_weight)
    weighed = Mul (each, share)
    summed = ReduceSum <keepdims = 0> (weighed, first)
    y = Reshape (summed, shape)
}
""".replace("DOMAIN", DOMAIN)

#: By operator: the text of its function.
BODIES: Mapping[str, str] = {MIXTURE_OF_EXPERTS: _MIXTURE_OF_EXPERTS}


def body_of(operator: str) -> FunctionProto:
    """The function that stands for an operator of ours."""
    return onnx.parser.parse_function(BODIES[operator])


def schema_of(function: FunctionProto) -> onnx.defs.OpSchema:
    """The schema of an operator: float32 tensors in and out, whole numbers as attributes."""
    schema = onnx.defs.OpSchema

    def parameters(names: Sequence[str]) -> list[onnx.defs.OpSchema.FormalParameter]:
        return [schema.FormalParameter(name, "T") for name in names]

    return schema(
        function.name,
        function.domain,
        VERSION,
        inputs=parameters(function.input),
        outputs=parameters(function.output),
        type_constraints=[("T", ["tensor(float)"], "")],
        attributes=[
            schema.Attribute(name, schema.AttrType.INT, required=True)
            for name in function.attribute
        ],
    )
