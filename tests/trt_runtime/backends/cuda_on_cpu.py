"""The CUDA backend with a CPU for its device: everything of it but capture and the kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from trt_runtime.backends.onnxruntime_cpu import CpuBackend
from trt_runtime.backends.onnxruntime_cuda import CudaBackend
from trt_runtime.folder import OpenFolder
from trt_runtime.manifest import read_manifest
from trt_runtime.talker import Talker


class GraphLoop:
    """The plugin loop's interface over the talker's graphs of an engine folder of target `cpu`."""

    def __init__(self, folder: Path, slots: int) -> None:
        manifest = read_manifest(folder)
        self._talker = Talker(CpuBackend(folder, manifest, 1), manifest.geometry, slots)
        shape = (slots, 1, manifest.geometry.talker_hidden)
        self.embedding, self.hidden = torch.zeros(shape), torch.zeros(shape)
        #: (what was called, with which number) in order.
        self.calls: list[tuple[str, int]] = []

    def prefill(self, slot: int, embeddings: torch.Tensor) -> None:
        self.calls.append(("prefill", slot))
        self._talker.prefill(embeddings.numpy(), slot)
        self.hidden[slot] = torch.from_numpy(self._talker.hidden.read()[slot].copy())

    def decode(self, count: int) -> None:
        self.calls.append(("decode", count))
        self._talker.embedding.write(self.embedding.numpy())
        self._talker.decode(count)
        self.hidden[:count] = torch.from_numpy(self._talker.hidden.read()[:count].copy())

    def move(self, source: int, to: int) -> None:
        self.calls.append(("move", source))
        self._talker.move(source, to)
        self.embedding[to], self.hidden[to] = self.embedding[source], self.hidden[source]


def open_on_cpu(cuda: Path, cpu: Path, made: list[GraphLoop] | None = None) -> OpenFolder:
    """The folder `cuda` with the talker's graphs of `cpu`; the loops that it makes go to `made`."""

    def make(weights: dict[str, Any], slots: int) -> GraphLoop:
        loop = GraphLoop(cpu, slots)
        if made is not None:
            made.append(loop)
        return loop

    manifest = read_manifest(cuda)
    return OpenFolder(cuda, manifest, CudaBackend(cuda, manifest, device="cpu", make_loop=make), 1)


def arrays(tensors: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}
