"""PyTorch as a backend of the loop: a checkpoint's own modules, the float32 reference.

Runs the very modules that are exported, with the checkpoint's weights, on the CPU, in float32 or,
as a peer of benchmarks, in bfloat16. The solver state, the noise and what crosses graph boundaries
stay float32, as in the engines. The only file of this room that needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trt_runtime.contract import NEXT, ON_DEMAND, TAIL, GraphSpec, TensorSpec
from trt_runtime.geometry import Geometry
from trt_runtime.talker import Talker

if TYPE_CHECKING:
    from export.checkpoint import Checkpoint
    from export.graphs import GraphSource


class TorchBuffer:
    """See :class:`trt_runtime.backends.interface.Buffer`."""

    def __init__(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        self.spec, self.tensor = spec, tensor

    def rows(self, spec: TensorSpec, first: int) -> TorchBuffer:
        """The same memory as a tensor of `spec`, from row `first` on; ValueError for other rows."""
        self.spec.check_rows(spec, first)
        return TorchBuffer(spec, self.tensor[first : first + spec.shape[0]])

    def read(self) -> np.ndarray:
        floating = self.tensor.is_floating_point()
        values: np.ndarray = (self.tensor.float() if floating else self.tensor).numpy()
        return values

    def write(self, values: np.ndarray | float | int | bool) -> None:
        self.tensor.copy_(torch.as_tensor(np.asarray(values)).expand(self.spec.shape))

    def write_slot(self, slot: int, values: np.ndarray | float | int | bool) -> None:
        self.tensor[slot].copy_(torch.as_tensor(np.asarray(values)).expand(self.spec.shape[1:]))

    def copy_slot(self, source: int, to: int) -> None:
        self.tensor[to].copy_(self.tensor[source])


class TorchBoundGraph:
    """A module with every tensor bound; see :class:`trt_runtime.backends.interface.BoundGraph`."""

    def __init__(
        self,
        module: torch.nn.Module,
        spec: GraphSpec,
        buffers: Mapping[str, TorchBuffer],
        dtype: torch.dtype,
    ) -> None:
        self._module, self._spec, self._dtype = module, spec, dtype
        self.buffers = buffers

    @torch.inference_mode()
    def run(self) -> None:
        inputs = [self.buffers[tensor.name].tensor for tensor in self._spec.inputs]
        with torch.autocast("cpu", torch.bfloat16, enabled=self._dtype == torch.bfloat16):
            outputs = self._module(*inputs)
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        state = set(self._spec.state)
        for tensor, output in zip(self._spec.outputs, outputs, strict=True):
            name = tensor.name.removesuffix(NEXT)
            target = self.buffers[name if name in state else tensor.name].tensor
            if output.data_ptr() != target.data_ptr():
                target.copy_(output)


class TorchBackend:
    """A checkpoint's graphs as torch modules; see :class:`trt_runtime.backends.interface.Backend`.

    Weights exist once however many graphs use them. What a request may not need is loaded when it
    is first bound. `threads` of None leaves torch's number as it is.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        geometry: Geometry,
        *,
        dtype: torch.dtype = torch.float32,
        threads: int | None = None,
    ) -> None:
        from export.graphs import graph_sources

        if threads is not None:
            torch.set_num_threads(threads)
        self._checkpoint, self._geometry, self._dtype = checkpoint, geometry, dtype
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._rows = {row.name: row for row in checkpoint.parameters}
        # The loop in place of the unrolled tail: the same meaning, and a step to look into.
        self._sources: dict[str, GraphSource] = {
            source.spec.name: source
            for source in graph_sources(geometry)
            if source.spec.name != TAIL
        }
        self._modules = {
            name: self._load(source)
            for name, source in self._sources.items()
            if name not in ON_DEMAND
        }

    def _load(self, source: GraphSource) -> torch.nn.Module:
        module = source.make(self._checkpoint.sizes, self._geometry).eval()
        for name, parameter in dict(module.named_parameters()).items():
            if name not in self._parameters:
                self._fill(name, parameter)
            owner, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(owner), leaf, self._parameters[name])
        return module

    def _fill(self, name: str, parameter: torch.nn.Parameter) -> None:
        """Reads a parameter a block at a time, so that nothing is held twice."""
        from export.weights import parameter_blocks

        # As the reference in bfloat16: weights low, what it computes with them by autocast.
        parameter.data = parameter.data.to(self._dtype)
        flat, start = parameter.data.reshape(-1), 0
        for block in parameter_blocks(self._checkpoint, self._rows[name]):
            values = torch.from_numpy(block.astype(np.float32))
            flat[start : start + len(values)].copy_(values)
            start += len(values)
        self._parameters[name] = parameter

    def has(self, graph: str) -> bool:
        return graph in self._sources

    def buffer(self, spec: TensorSpec, slots: int = 1) -> TorchBuffer:
        sized = spec.sized(slots)
        # Caches in the peer's own precision: casting them at every step would slow it for nothing.
        dtype: Any = self._dtype if "_cache_" in spec.name else getattr(torch, spec.dtype)
        return TorchBuffer(sized, torch.zeros(sized.shape, dtype=dtype))

    def talker(self, slots: int = 1) -> Talker:
        return Talker(self, self._geometry, slots)

    def bind(
        self, graph: str, buffers: Mapping[str, TorchBuffer], *, first: int = 0, slots: int = 1
    ) -> TorchBoundGraph:
        spec = self._sources[graph].spec
        if graph not in self._modules:
            self._modules[graph] = self._load(self._sources[graph])
        bound: dict[str, TorchBuffer] = {}
        replaced = {name + NEXT for name in spec.state}
        for tensor in (*spec.inputs, *spec.outputs):
            if tensor.name in replaced:
                continue
            given = buffers.get(tensor.name)
            bound[tensor.name] = (
                self.buffer(tensor, slots)
                if given is None
                else given.rows(tensor.sized(slots), first)
            )
        return TorchBoundGraph(self._modules[graph], spec, bound, self._dtype)
