"""A pass captured once as a CUDA graph and replayed."""

from __future__ import annotations

import torch

from trt_runtime.plugins.step import Step


class Replay:
    """Replays a step. On CPU tensors, which Triton's interpreter works on, it is launched anew.

    The step's count of rows must be 0 while this is made: its first pass, which compiles the
    kernels, then writes to no slot.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._graph: torch.cuda.CUDAGraph | None = None
        if step.caches.keys.device.type != "cuda":
            return
        step.enqueue()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step.enqueue()
        self._graph = graph

    def __call__(self) -> None:
        if self._graph is None:
            self._step.enqueue()
        else:
            self._graph.replay()
