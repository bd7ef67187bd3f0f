"""Plugin operators that ONNX Runtime has a kernel for on CPU: their nodes become that kernel's.

What each operator means is in :mod:`trt_runtime.operators`; `tests/operators` holds the kernel and
the function to the same answers. An operator without a row keeps its function, which ONNX Runtime
inlines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
from onnx import NodeProto, helper

from trt_runtime.operators import DOMAIN, MIXTURE_OF_EXPERTS

_CONTRIB = "com.microsoft"


def _mixture_of_experts(node: NodeProto) -> NodeProto:
    """ONNX Runtime's MoE: softmax and choice are inside; it computes the chosen experts only."""
    x, router_logits, gate_up, down = node.input
    attributes = {
        attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute
    }
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


#: By operator: the node of the kernel in its place.
KERNELS: Mapping[str, Callable[[NodeProto], NodeProto]] = {MIXTURE_OF_EXPERTS: _mixture_of_experts}


def use_kernels(model: onnx.ModelProto) -> None:
    """Replaces the nodes of :data:`KERNELS` in the model's graph, in place."""
    replaced = False
    for node in model.graph.node:
        if node.domain == DOMAIN and node.op_type in KERNELS:
            node.CopyFrom(KERNELS[node.op_type](node))
            replaced = True
    if not replaced:
        return
    kept = [
        function
        for function in model.functions
        if not (function.domain == DOMAIN and function.name in KERNELS)
    ]
    copies = [onnx.FunctionProto.FromString(function.SerializeToString()) for function in kept]
    del model.functions[:]
    model.functions.extend(copies)
    if all(entry.domain != _CONTRIB for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_CONTRIB, 1))
