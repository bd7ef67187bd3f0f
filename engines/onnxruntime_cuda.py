"""Builds graphs for ONNX Runtime's CUDA provider, on any machine.

Optimised for a CPU, a graph may get nodes that only a CPU has kernels for. So only the rewriting
that keeps to ONNX's own operators is done here (casts of weights folded, functions inlined); what
fuses for a GPU is left to the session that loads the graph on one. And since no GPU need be here to
try it, every node is looked up in a table of what the provider can run.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnxruntime import GraphOptimizationLevel

from engines.graph_file import all_graphs
from engines.onnxruntime_graph import build_graphs, build_with, write_prepared
from engines.precision import find_precision
from engines.prepared_graph import prepare
from engines.targets import Built, ComponentJob, GraphJob
from trt_runtime.errors import UserError
from trt_runtime.manifest import GraphEntry

#: ONNX's operators that CUDA kernels compute in float32 and int64 (products, sums and what moves
#: values in bfloat16 and float16 too), by ONNX Runtime's own list
#: (docs/OperatorKernels.md, 1.31), of those that exporters use; and which inputs of each are read
#: on the host. A value computed on the GPU that is needed there would have to be fetched, and a
#: graph with such a copy in it cannot be captured.
KERNELS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            "Add", "And", "Cast", "Concat", "Conv", "ConvTranspose", "Cos", "Div", "Equal", "Erf",
            "Exp", "Flatten", "Gather", "GatherElements", "Gelu", "Gemm", "Greater",
            "GreaterOrEqual", "Identity", "LayerNormalization", "Less", "LessOrEqual", "Log",
            "MatMul", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu",
            "ScatterElements", "ScatterND", "Sigmoid", "SimplifiedLayerNormalization", "Sin",
            "Softmax", "Softplus", "Sqrt", "Sub", "Tanh", "Transpose", "Where",
        ),
        (),
    ),
    **dict.fromkeys(
        ("Expand", "ReduceMax", "ReduceMean", "ReduceSum", "Reshape", "Split", "Squeeze", "Tile",
         "Unsqueeze"),
        (1,),
    ),
    "Clip": (1, 2),
    "ConstantOfShape": (0,),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "Slice": (1, 2, 3, 4),
}  # fmt: skip


def build_component(job: ComponentJob) -> Built:
    """Every graph of the component, as :func:`build_graph` builds one."""
    return build_graphs(job, build_graph)


def build_graph(job: GraphJob) -> GraphEntry:
    """One graph; raises as :func:`engines.onnxruntime_graph.build_with`.

    In a mixed precision it is written as it is prepared: optimised for a CPU it would get the types
    that a CPU has kernels for. Casts of weights are then folded by the session that loads it.
    """
    low = find_precision(job.options.precision).low_type(job.entry.component)
    if low is None:
        return build_with(job, GraphOptimizationLevel.ORT_ENABLE_BASIC, check=check_kernels)
    prepared = prepare(job, low)
    check_kernels(prepared.model, job)
    return write_prepared(job, prepared.model)


def check_kernels(model: onnx.ModelProto, job: GraphJob) -> None:
    """Raises UserError naming a node that the CUDA provider would hand to the CPU."""
    for graph in all_graphs(model.graph):
        known = {tensor.name for tensor in graph.initializer} | {""}
        known |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
        for node in graph.node:
            kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            if node.op_type == "Constant" and not node.domain:
                continue
            if node.domain or node.op_type not in KERNELS:
                raise _refuse(job, f"{kind} ({node.name})", "it has no kernel on the GPU")
            for index in KERNELS[node.op_type]:
                if index < len(node.input) and node.input[index] not in known:
                    value = node.input[index]
                    raise _refuse(
                        job, f"{kind} ({node.name})", f"it reads {value}, computed, on the host"
                    )


def _refuse(job: GraphJob, node: str, why: str) -> UserError:
    return UserError(
        f"Graph {job.name} cannot run on a GPU as a whole: {node}",
        expected="nodes that ONNX Runtime's CUDA provider runs, without a copy in between",
        found=why,
        do="report it; build for another target meanwhile: --target cpu",
    )
