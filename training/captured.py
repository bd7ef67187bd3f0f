"""A training step as a CUDA graph: hundreds of small kernels launched as one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_WARM_UP = 3


class CapturedStep:
    """Calls `step` on the CPU; on a GPU runs it a few times, captures it, and replays it.

    `step()` takes nothing, draws what it needs from `generator`, and returns a tensor; every
    replay gives the same tensor object with new values. The warm-up runs are real steps.
    """

    def __init__(self, step: Callable[[], Tensor], generator: torch.Generator) -> None:
        self._step = step
        self._graph: torch.cuda.CUDAGraph | None = None
        if generator.device.type != "cuda":
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            self._result = step()
        self._graph = graph

    def __call__(self) -> Tensor:
        if self._graph is None:
            return self._step()
        self._graph.replay()
        return self._result
