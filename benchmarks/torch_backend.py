"""PyTorch eager as a backend of the same loop: the peer of the full-size benchmark.

Runs the very modules that were exported, with the bundle's weights, in float32 or bfloat16. The
solver state, the noise and what crosses graph boundaries stay float32, as in the engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from export.checkpoint import Checkpoint
from export.graphs import GraphSource, graph_sources
from export.verification import load_weights
from trt_runtime.contract import FLOW_STEP, NEXT, ON_DEMAND, TAIL, TensorSpec
from trt_runtime.manifest import GraphEntry, Manifest
from trt_runtime.talker import Talker


class TorchBuffer:
    def __init__(self, spec: TensorSpec, dtype: torch.dtype | None = None) -> None:
        self.spec = spec
        self.tensor = torch.zeros(spec.shape, dtype=dtype or getattr(torch, spec.dtype))

    def read(self) -> np.ndarray:
        return (
            self.tensor.float().numpy() if self.tensor.is_floating_point() else self.tensor.numpy()
        )

    def write(self, values: np.ndarray | float | int | bool) -> None:
        self.tensor.copy_(torch.as_tensor(values).expand(self.spec.shape))

    def write_slot(self, slot: int, values: np.ndarray | float | int | bool) -> None:
        self.tensor[slot].copy_(torch.as_tensor(values).expand(self.spec.shape[1:]))

    def copy_slot(self, source: int, to: int) -> None:
        self.tensor[to].copy_(self.tensor[source])


class TorchBoundGraph:
    def __init__(
        self,
        module: torch.nn.Module,
        entry: GraphEntry,
        buffers: Mapping[str, TorchBuffer],
        dtype: torch.dtype,
    ) -> None:
        self._module, self._entry, self._dtype = module, entry, dtype
        self.buffers = {
            spec.name: buffers.get(spec.name)
            or TorchBuffer(spec, dtype if spec.name in entry.in_place else None)
            for spec in (*entry.inputs, *entry.outputs)
        }

    @torch.inference_mode()
    def run(self) -> None:
        inputs = [self.buffers[spec.name].tensor for spec in self._entry.inputs]
        with torch.autocast("cpu", torch.bfloat16, enabled=self._dtype == torch.bfloat16):
            outputs = self._module(*inputs)
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        state = set(self._entry.state)
        for spec, output in zip(self._entry.outputs, outputs, strict=True):
            name = spec.name.removesuffix(NEXT)
            target = name if name in state else spec.name
            if output.data_ptr() != self.buffers[target].tensor.data_ptr():
                self.buffers[target].tensor.copy_(output)


class TorchBackend:
    """A bundle's graphs as torch modules; weights of a component exist once.

    As in the engines' backend, what a request may not need is loaded when it is first bound.
    """

    def __init__(
        self, bundle: Path, manifest: Manifest, checkpoint: Path, dtype: torch.dtype, threads: int
    ) -> None:
        torch.set_num_threads(threads)
        self._manifest, self._dtype = manifest, dtype
        self._bundle, self._sizes = bundle, Checkpoint.open(checkpoint).sizes
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._sources = {
            source.spec.name: source
            for source in graph_sources(manifest.geometry)
            if source.spec.name != TAIL or FLOW_STEP not in manifest.graphs
        }
        self._modules = {
            name: self._load(source)
            for name, source in self._sources.items()
            if name not in ON_DEMAND
        }

    def _load(self, source: GraphSource) -> torch.nn.Module:
        loaded = self._parameters
        module = source.make(self._sizes, self._manifest.geometry).eval()
        names = dict(module.named_parameters())
        if not set(names) <= set(loaded):
            initializers = self._manifest.graphs[source.spec.name].initializers
            load_weights(module, initializers, self._bundle)
            for name, parameter in names.items():
                # As the reference in bfloat16: weights low, what it computes with them by autocast.
                parameter.data = parameter.data.to(self._dtype)
                loaded[name] = parameter
        else:
            for name in names:
                owner, _, leaf = name.rpartition(".")
                setattr(module.get_submodule(owner), leaf, loaded[name])
        return module

    def has(self, graph: str) -> bool:
        return graph in self._sources

    def buffer(self, spec: TensorSpec, slots: int = 1) -> TorchBuffer:
        # Caches in the peer's own precision: casting them at every step would slow it for nothing.
        dtype = self._dtype if "_cache_" in spec.name else None
        return TorchBuffer(spec.sized(slots), dtype)

    def talker(self, slots: int = 1) -> Talker:
        return Talker(self, self._manifest.geometry, slots)

    def bind(
        self, graph: str, buffers: Mapping[str, TorchBuffer], *, first: int = 0, slots: int = 1
    ) -> TorchBoundGraph:
        if (first, slots) != (0, 1):
            raise ValueError("this peer speaks one request at a time")
        entry = self._manifest.graphs[graph]
        if graph not in self._modules:
            self._modules[graph] = self._load(self._sources[graph])
        return TorchBoundGraph(self._modules[graph], entry, buffers, self._dtype)

    def close(self) -> None:
        self._modules.clear()
