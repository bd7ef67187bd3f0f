"""Plugin operators in the graphs that TensorRT gets: native layers where it has them, else bodies.

What each operator means is in :mod:`trt_runtime.operators`. TensorRT's parser makes native layers
of ONNX's own operators: `TensorScatter` becomes its KV-cache update, which writes in place,
`Attention` and `RotaryEmbedding` its layers of those names. Two of the parser's ways decide the
form (TensorRT-RTX 1.7): it drops `nonpad_kv_seqlen`, silently, so that what is seen is a mask here;
and it multiplies queries and keys, the whole cache of them, by the root of a scale, so that the
queries are scaled before and the scale is 1. Its mixture of experts exists for compute capability
10.0 to 11.0 alone, so that everywhere else that operator is its body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from trt_runtime.errors import MingError
from trt_runtime.operators import CACHED_ATTENTION, DOMAIN

NATIVE, BODY = "native", "body"
#: The version of ONNX's operators that has `TensorScatter`.
_OPSET = 24
#: TensorRT's own attribute: attention may be made of other layers where no fused kernel fits.
DECOMPOSABLE = "TRT_decomposable"

_NATIVE_ATTENTION = f"""
<opset_import: ["" : {_OPSET}], domain: "{DOMAIN}">
{CACHED_ATTENTION} <heads, kv_heads, window>
    (qkv, position, inverse_frequencies, key_cache, value_cache)
    => (attended, key_cache_next, value_cache_next)
{{
    none = Constant <value_int = 0> ()
    single = Constant <value_int = 1> ()
    one = Constant <value_ints = [1]> ()
    by_head_shape = Constant <value_ints = [0, 0, EVERY, HEAD_DIM]> ()
    by_head = Reshape (qkv, by_head_shape)
    by_position = Transpose <perm = [0, 2, 1, 3]> (by_head)
    parts = Constant <value_ints = [TURNING, KEYS]> ()
    unturned, value = Split <axis = 1> (by_position, parts)
    tokens = Shape <start = 1, end = 2> (qkv)
    token_count = Squeeze (tokens)
    steps = Range (none, token_count, single)
    starts = Unsqueeze (position, one)
    positions = Add (starts, steps)
    turned = RotaryEmbedding <interleaved = 0> (unturned, cos, sin, positions)
    both = Constant <value_ints = [QUERIES, KEYS]> ()
    query, key = Split <axis = 1> (turned, both)
    key_cache_next = TensorScatter <axis = -2, mode = "linear"> (key_cache, key, position)
    value_cache_next = TensorScatter <axis = -2, mode = "linear"> (value_cache, value, position)
    one_three = Constant <value_ints = [1, 3]> ()
    upto = Unsqueeze (positions, one_three)
    reach = Constant <value_int : int = @window> ()
    from = Sub (upto, reach)
    not_after = LessOrEqual (entries, upto)
    not_before = GreaterOrEqual (entries, from)
    seen = And (not_after, not_before)
    scaled = Mul (query, scale)
    heads_apart = Attention <scale = 1.0, {DECOMPOSABLE} = 1>
        (scaled, key_cache_next, value_cache_next, seen)
    by_token = Transpose <perm = [0, 2, 1, 3]> (heads_apart)
    flat = Constant <value_ints = [0, 0, -1]> ()
    attended = Reshape (by_token, flat)
}}
"""
_TABLES = ("cos", "sin", "entries", "scale")


def expand_operators(model: onnx.ModelProto, native: bool) -> dict[str, str]:
    """Puts plain operators in the place of the plugin operators, in place.

    Returns by operator which form it has, :data:`NATIVE` or :data:`BODY`. Every node has a name of
    its own afterwards, under that of the operator's node that it comes from.
    """
    forms: dict[str, str] = {}
    graph = model.graph
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    functions = {f.name: f for f in model.functions if f.domain == DOMAIN}
    del graph.node[:]
    for node in nodes:
        if node.domain != DOMAIN:
            graph.node.append(node)
            continue
        make = _NATIVE.get(node.op_type) if native else None
        forms[node.op_type] = BODY if make is None else NATIVE
        if make is not None:
            function = make(node, graph)
        elif node.op_type in functions:
            function = functions[node.op_type]
        else:
            raise MingError(f"The graph has no function for its operator {node.op_type}")
        graph.node.extend(_inlined(node, function))
    del model.functions[:]
    imports = [(entry.domain, entry.version) for entry in model.opset_import]
    versions = dict(imports) | ({"": _OPSET} if NATIVE in forms.values() else {})
    versions.pop(DOMAIN, None)
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(*entry) for entry in versions.items())
    return forms


def _native_attention(node: NodeProto, graph: onnx.GraphProto) -> onnx.FunctionProto:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    heads, kv_heads = attributes["heads"], attributes["kv_heads"]
    shapes = {
        value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in graph.input
    }
    stored = {tensor.name: tensor for tensor in graph.initializer}
    _, _, length, head_dim = shapes[node.input[3]]
    frequencies = numpy_helper.to_array(stored[node.input[2]])
    angles = np.arange(length, dtype=np.float32)[:, None] * frequencies
    prefix = f"{CACHED_ATTENTION}.{node.input[2]}"
    for name, values in zip(
        _TABLES,
        (np.cos(angles), np.sin(angles), np.arange(length)[None, None, None],
         np.array(head_dim**-0.5, np.float32)),
        strict=True,
    ):  # fmt: skip
        if f"{prefix}.{name}" not in stored:
            graph.initializer.append(numpy_helper.from_array(values, f"{prefix}.{name}"))
    node.input.extend(f"{prefix}.{name}" for name in _TABLES)
    text = _NATIVE_ATTENTION
    for name, size in {
        "EVERY": heads + 2 * kv_heads, "TURNING": heads + kv_heads, "QUERIES": heads,
        "KEYS": kv_heads, "HEAD_DIM": head_dim,
    }.items():  # fmt: skip
        text = text.replace(name, str(size))
    function = onnx.parser.parse_function(text)
    function.input.extend(_TABLES)
    return function


#: By operator: the function of the operators that the parser makes native layers of.
_NATIVE: Mapping[str, Callable[[NodeProto, onnx.GraphProto], onnx.FunctionProto]] = {
    CACHED_ATTENTION: _native_attention
}


def _inlined(node: NodeProto, function: onnx.FunctionProto) -> list[NodeProto]:
    """The function's nodes in the place of `node`: its values, attributes and names for theirs."""
    given = {a.name: a for a in node.attribute}
    names = dict(zip(function.input, node.input, strict=True))
    names |= dict(zip(function.output, node.output, strict=True)) | {"": ""}
    source = list(node.metadata_props)
    result = []
    for index, inner in enumerate(function.node):
        copy = NodeProto.FromString(inner.SerializeToString())
        for place in (copy.input, copy.output):
            place[:] = [names.get(name) or f"{node.name}.{name}" for name in place]
        copy.name = f"{node.name}.{index}.{inner.op_type}"
        for attribute in copy.attribute:
            if attribute.ref_attr_name:
                bound = onnx.AttributeProto.FromString(
                    given[attribute.ref_attr_name].SerializeToString()
                )
                bound.name = attribute.name
                attribute.CopyFrom(bound)
        copy.metadata_props.extend(source)
        result.append(copy)
    return result


def free_tokens(model: onnx.ModelProto) -> None:
    """Makes of the talker's decode step the same for any number of tokens at once, in place.

    The first axis of its tensors stays the slots', the second becomes `tokens`: one engine with a
    profile for decoding and for each prefill call, and the weights once. Nothing in the graph but
    CachedAttention's function knows that a step is one token.
    """
    for value in (*model.graph.input, *model.graph.output):
        if value.name in ("embeddings", "hidden"):
            value.type.tensor_type.shape.dim[1].ClearField("dim_value")
            value.type.tensor_type.shape.dim[1].dim_param = "tokens"
    del model.graph.value_info[:]
    for function in model.functions:
        if function.name == CACHED_ATTENTION and function.domain == DOMAIN:
            _free_tokens_of(function)


def _free_tokens_of(function: onnx.FunctionProto) -> None:
    """Its constants of the number of tokens become the second axis of its first input."""
    replaced = {
        "tokens": [helper.make_node("Shape", [function.input[0]], ["tokens"], start=1, end=2)],
        "token_count": [
            helper.make_node("Shape", [function.input[0]], ["token_axis"], start=1, end=2),
            helper.make_node("Squeeze", ["token_axis"], ["token_count"]),
        ],
    }
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in function.node]
    del function.node[:]
    for node in nodes:
        function.node.extend(replaced.pop(node.output[0], [node]))
    if replaced:
        raise MingError(f"The function {function.name} has no constants {sorted(replaced)}")
