"""Plugin operators that ONNX Runtime has a kernel for on CPU: their nodes become that kernel's.

What each operator means is in :mod:`trt_runtime.operators`; `tests/operators` holds the kernel and
the function to the same answers. An operator without a row, or a node that its kernel cannot do,
keeps its function, which ONNX Runtime inlines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from trt_runtime.operators import CACHED_ATTENTION, DOMAIN, MIXTURE_OF_EXPERTS

_CONTRIB = "com.microsoft"


class _Graph:
    """The graph whose nodes are replaced, and what several of its new nodes share."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.new: list[NodeProto] = []
        self._stored = {tensor.name: tensor for tensor in graph.initializer}
        values = (*graph.input, *graph.output, *graph.value_info)
        self._shapes = {
            value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim]
            for value in values
        }
        self._made: set[str] = set()

    def shape(self, name: str) -> list[int]:
        """The sizes of a value's axes, 0 for one that is not static."""
        return self._shapes.get(name, [])

    def constant(self, name: str) -> np.ndarray | None:
        """The value of a small constant of the graph; None where it is none."""
        tensor = self._stored.get(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor)

    def share(self, name: str, make: Callable[[], np.ndarray | list[NodeProto]]) -> str:
        """`name`, once made by `make`: an initialiser, or nodes the last of which gives it."""
        if name not in self._made:
            made = make()
            if isinstance(made, np.ndarray):
                self.graph.initializer.append(numpy_helper.from_array(made, name))
            else:
                self.new.extend(made)
            self._made.add(name)
        return name


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _mixture_of_experts(node: NodeProto, graph: _Graph) -> NodeProto:
    """ONNX Runtime's MoE: softmax and choice are inside; it computes the chosen experts only."""
    x, router_logits, gate_up, down = node.input
    attributes = _attributes(node)
    return helper.make_node(
        "MoE",
        [x, router_logits, gate_up, "", down],
        list(node.output),
        name=node.name,
        domain=_CONTRIB,
        k=attributes["chosen"],
        normalize_routing_weights=attributes["normalized"],
        activation_type="swiglu",
        # Gate and up in turns, silu(gate) * up: no clamp, no slope and no offset of gpt-oss's.
        swiglu_fusion=1,
        activation_alpha=1.0,
        activation_beta=0.0,
    )


def _cached_attention(node: NodeProto, graph: _Graph) -> NodeProto | None:
    """ONNX Runtime's GroupQueryAttention: it reads the entries that are there, not the whole cache.

    It turns heads of a multiple of 16 values, sees a window in another way, and takes several
    tokens at once for one slot only.
    """
    qkv, position, frequencies, key_cache, value_cache = node.input
    attributes = _attributes(node)
    (slots, _, length, head_dim), values = graph.shape(key_cache), graph.constant(frequencies)
    tokens = graph.shape(qkv)[1:2]
    if values is None or head_dim % 16 or attributes["window"] < length:
        return None
    if tokens != [1] and slots != 1:
        return None
    angles = np.arange(length, dtype=np.float32)[:, None] * values
    last, total = _lengths(graph, position, tokens[0])
    return helper.make_node(
        "GroupQueryAttention",
        [
            qkv, "", "", key_cache, value_cache, last, total,
            graph.share(f"{frequencies}.cos", lambda: np.cos(angles)),
            graph.share(f"{frequencies}.sin", lambda: np.sin(angles)),
        ],
        list(node.output),
        name=node.name,
        domain=_CONTRIB,
        num_heads=attributes["heads"],
        kv_num_heads=attributes["kv_heads"],
        do_rotary=1,
        rotary_interleaved=0,
    )  # fmt: skip


def _lengths(graph: _Graph, position: str, tokens: int) -> tuple[str, str]:
    """The last position of each slot, (slots,) int32, and the longest length, int32."""
    more = graph.share(f"{position}.more", lambda: np.array([tokens - 1], np.int64))
    one = graph.share(f"{position}.one", lambda: np.array([1], np.int32))
    whole = f"{position}.last.int64"
    last, most = f"{position}.last", f"{position}.most"
    graph.share(
        last,
        lambda: [
            helper.make_node("Add", [position, more], [whole], name=f"{whole}.add"),
            helper.make_node("Cast", [whole], [last], name=f"{last}.cast", to=TensorProto.INT32),
        ],
    )
    total = graph.share(
        f"{position}.total",
        lambda: [
            helper.make_node("ReduceMax", [last], [most], name=f"{most}.max", keepdims=1),
            helper.make_node("Add", [most, one], [f"{position}.total"], name=f"{most}.add"),
        ],
    )
    return last, total


#: By operator: the node of the kernel in its place, None where the kernel cannot do what it does.
KERNELS: Mapping[str, Callable[[NodeProto, _Graph], NodeProto | None]] = {
    MIXTURE_OF_EXPERTS: _mixture_of_experts,
    CACHED_ATTENTION: _cached_attention,
}


def use_kernels(model: onnx.ModelProto) -> None:
    """Replaces the nodes of :data:`KERNELS` in the model's graph, in place."""
    graph = _Graph(model.graph)
    left = set()
    for node in model.graph.node:
        if node.domain != DOMAIN:
            continue
        kernel = KERNELS[node.op_type](node, graph) if node.op_type in KERNELS else None
        if kernel is None:
            left.add(node.op_type)
        else:
            node.CopyFrom(kernel)
    _put_first(model.graph, graph.new)
    kept = [f for f in model.functions if f.domain != DOMAIN or f.name in left]
    copies = [onnx.FunctionProto.FromString(f.SerializeToString()) for f in kept]
    del model.functions[:]
    model.functions.extend(copies)
    if all(entry.domain != _CONTRIB for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_CONTRIB, 1))


def _put_first(graph: onnx.GraphProto, nodes: list[NodeProto]) -> None:
    """Nodes that need inputs and initialisers alone, before all others."""
    rest = [NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    del graph.node[:]
    graph.node.extend([*nodes, *rest])
