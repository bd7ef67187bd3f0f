"""Builds graphs for ONNX Runtime on CPU: its kernels for our operators, patterns fused."""

from __future__ import annotations

from onnxruntime import GraphOptimizationLevel

from engines.onnxruntime_graph import build_graphs, build_with
from engines.onnxruntime_kernels import use_kernels
from engines.targets import Built, ComponentJob, GraphJob
from trt_runtime.manifest import GraphEntry


def build_component(job: ComponentJob) -> Built:
    """Every graph of the component, as :func:`build_graph` builds one."""
    return build_graphs(job, build_graph)


def build_graph(job: GraphJob) -> GraphEntry:
    """One graph; raises as :func:`engines.onnxruntime_graph.build_with`."""
    # EXTENDED, not ALL: ALL adds memory layouts chosen for the processor that builds (NCHWc), and
    # the engines would be right only on that one. A session may still add them when it loads.
    return build_with(job, GraphOptimizationLevel.ORT_ENABLE_EXTENDED, change=use_kernels)
