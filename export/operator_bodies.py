"""The plugin operators as ONNX functions of plain operators: what a backend without a kernel runs.

What they mean is in :mod:`trt_runtime.operators`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import FunctionProto

from trt_runtime.operators import CACHED_ATTENTION, DOMAIN, MIXTURE_OF_EXPERTS, VERSION

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

# TOKENS, LENGTH and HEAD_DIM are the graph's: shapes are then constants, copied (0) or inferred
# (-1), and runtimes compute none but the number of slots. The score of a key that must not be seen
# is replaced, not lowered: whatever finite number a cache holds there, the sum of the rest stays.
_CACHED_ATTENTION = """
<opset_import: ["" : 20], domain: "DOMAIN">
CachedAttention <heads, kv_heads, window>
    (qkv, position, inverse_frequencies, key_cache, value_cache)
    => (attended, key_cache_next, value_cache_next)
{
    none = Constant <value_int = 0> ()
    single = Constant <value_int = 1> ()
    same = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    rest = Constant <value_ints = [-1]> ()
    heads_of_queries = Constant <value_int : int = @heads> ()
    heads_of_keys = Constant <value_int : int = @kv_heads> ()
    queries = Reshape (heads_of_queries, one)
    keys = Reshape (heads_of_keys, one)
    turning = Add (queries, keys)
    every = Add (turning, keys)
    group = Div (queries, keys)
    head_dim = Constant <value_ints = [HEAD_DIM]> ()
    tokens = Constant <value_ints = [TOKENS]> ()
    length = Constant <value_ints = [LENGTH]> ()

    by_head_shape = Concat <axis = 0> (same, same, every, head_dim)
    by_head = Reshape (qkv, by_head_shape)
    halves = Concat <axis = 0> (turning, keys)
    turned_heads, value_heads = Split <axis = 2> (by_head, halves)
    token_count = Constant <value_int = TOKENS> ()
    steps = Range (none, token_count, single)
    starts = Unsqueeze (position, one)
    positions = Add (starts, steps)
    two_three = Constant <value_ints = [2, 3]> ()
    places = Unsqueeze (positions, two_three)
    places_as_numbers = Cast <to = 1> (places)
    angles = Mul (places_as_numbers, inverse_frequencies)
    cos = Cos (angles)
    sin = Sin (angles)
    first, second = Split <axis = 3, num_outputs = 2> (turned_heads)
    first_cos = Mul (first, cos)
    second_sin = Mul (second, sin)
    second_cos = Mul (second, cos)
    first_sin = Mul (first, sin)
    new_first = Sub (first_cos, second_sin)
    new_second = Add (second_cos, first_sin)
    turned = Concat <axis = 3> (new_first, new_second)
    both = Concat <axis = 0> (queries, keys)
    query_heads, key_heads = Split <axis = 2> (turned, both)
    query = Transpose <perm = [0, 2, 1, 3]> (query_heads)
    key = Transpose <perm = [0, 2, 1, 3]> (key_heads)
    value = Transpose <perm = [0, 2, 1, 3]> (value_heads)

    slot_count = Shape (position)
    grid = Concat <axis = 0> (slot_count, keys, tokens, one)
    slot_size = Squeeze (slot_count)
    slot_numbers = Range (none, slot_size, single)
    one_two_three = Constant <value_ints = [1, 2, 3]> ()
    slot_column = Unsqueeze (slot_numbers, one_two_three)
    slot_index = Expand (slot_column, grid)
    head_numbers = Range (none, heads_of_keys, single)
    zero_two_three = Constant <value_ints = [0, 2, 3]> ()
    head_column = Unsqueeze (head_numbers, zero_two_three)
    head_index = Expand (head_column, grid)
    one_three = Constant <value_ints = [1, 3]> ()
    place_column = Unsqueeze (positions, one_three)
    place_index = Expand (place_column, grid)
    indices = Concat <axis = 3> (slot_index, head_index, place_index)
    key_cache_next = ScatterND (key_cache, indices, key)
    value_cache_next = ScatterND (value_cache, indices, value)

    head_dim_as_number = Cast <to = 1> (head_dim)
    root = Sqrt (head_dim_as_number)
    scaled = Div (query, root)
    grouped_shape = Concat <axis = 0> (same, keys, rest, head_dim)
    grouped = Reshape (scaled, grouped_shape)
    key_columns = Transpose <perm = [0, 1, 3, 2]> (key_cache_next)
    products = MatMul (grouped, key_columns)
    scores_shape = Concat <axis = 0> (same, keys, group, tokens, length)
    scores = Reshape (products, scores_shape)
    cache_length = Constant <value_int = LENGTH> ()
    entries = Range (none, cache_length, single)
    one_two_four = Constant <value_ints = [1, 2, 4]> ()
    upto = Unsqueeze (positions, one_two_four)
    reach = Constant <value_int : int = @window> ()
    from = Sub (upto, reach)
    not_after = LessOrEqual (entries, upto)
    not_before = GreaterOrEqual (entries, from)
    seen = And (not_after, not_before)
    hidden = Constant <value_float = -1000000000.0> ()
    masked = Where (seen, scores, hidden)
    probabilities = Softmax <axis = -1> (masked)
    rows_shape = Concat <axis = 0> (same, keys, rest, length)
    rows = Reshape (probabilities, rows_shape)
    mixed = MatMul (rows, value_cache_next)
    heads_shape = Concat <axis = 0> (same, queries, rest, head_dim)
    by_query_head = Reshape (mixed, heads_shape)
    by_token = Transpose <perm = [0, 2, 1, 3]> (by_query_head)
    flat = Concat <axis = 0> (same, same, rest)
    attended = Reshape (by_token, flat)
}
""".replace("DOMAIN", DOMAIN)

#: By operator: the text of its function, and the sizes in it, each with its input and axis.
BODIES: Mapping[str, tuple[str, Mapping[str, tuple[int, int]]]] = {
    MIXTURE_OF_EXPERTS: (_MIXTURE_OF_EXPERTS, {}),
    CACHED_ATTENTION: (
        _CACHED_ATTENTION,
        {"TOKENS": (0, 1), "LENGTH": (3, 2), "HEAD_DIM": (3, 3)},
    ),
}
#: Inputs of an operator that are int64; the others are float32.
_WHOLE_NUMBERS = frozenset({"position"})


def body_of(operator: str, shapes: Sequence[Sequence[Any] | None]) -> FunctionProto:
    """The function that stands for an operator of ours whose inputs have these `shapes`.

    The sizes that it needs are constants in it: one graph has one function of each operator.
    """
    text, sizes = BODIES[operator]
    for name, (index, axis) in sizes.items():
        shape = shapes[index]
        assert shape is not None
        text = text.replace(name, str(int(shape[axis])))
    return onnx.parser.parse_function(text)


def schema_of(operator: str) -> onnx.defs.OpSchema:
    """The schema of an operator: float32 tensors but for positions; whole-number attributes."""
    schema = onnx.defs.OpSchema
    function = body_of(operator, [(1, 1, 1, 1)] * 5)

    def parameters(names: Sequence[str]) -> list[onnx.defs.OpSchema.FormalParameter]:
        return [
            schema.FormalParameter(name, "tensor(int64)" if name in _WHOLE_NUMBERS else "T")
            for name in names
        ]

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
