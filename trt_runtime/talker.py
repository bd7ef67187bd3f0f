"""The talker as graphs: caches of a batch's slots, prefill in chunks, the decode step of all."""

from __future__ import annotations

import numpy as np

from trt_runtime.backends.interface import Backend, BoundGraph, Buffer
from trt_runtime.contract import talker_graph_name, talker_spec
from trt_runtime.geometry import Geometry

#: What a prefill call costs beside its rows, in rows: reading and arranging the weights. Measured:
#: 29 rows for the 0.5B talker with ONNX Runtime on two cores (benchmarks/shared_weights.py).
CALL_COST = 28


def plan_prefill(tokens: int, chunks: tuple[int, ...]) -> list[int]:
    """Sizes of the prefill calls for a prompt, larger ones first, at the least estimated cost.

    chunks: increasing sizes, each dividing the next. Every call then starts at a multiple of its
    own size, and the padding of the last never reaches past the cache, which all of them divide.
    """
    *smaller, largest = chunks
    full, rest = divmod(tokens, largest)
    padded = [largest] * (full + bool(rest))
    if not rest or not smaller:
        return padded
    split = [largest] * full + plan_prefill(rest, tuple(smaller))
    return min(split, padded, key=lambda sizes: sum(size + CALL_COST for size in sizes))


class Talker:
    """Caches and positions of a batch's slots, as `trt_runtime.backends.interface.Talker`."""

    def __init__(self, backend: Backend, geometry: Geometry, slots: int = 1) -> None:
        self._backend = backend
        self._geometry = geometry
        spec = talker_spec(geometry, 1)
        tensors = {t.name: t for t in (*spec.inputs, *spec.outputs)}
        self._caches: dict[str, Buffer] = {
            name: backend.buffer(tensors[name], slots) for name in spec.state
        }
        self.embedding: Buffer = backend.buffer(tensors["embeddings"], slots)
        self.hidden: Buffer = backend.buffer(tensors["hidden"], slots)
        #: Of each slot, the position that its next decode step has.
        self.positions = np.zeros(slots, np.int64)
        self._prefill: dict[tuple[int, int], BoundGraph] = {}
        self._decode: dict[int, BoundGraph] = {}

    def prefill(self, embeddings: np.ndarray, slot: int = 0) -> np.ndarray:
        """Reads the prompt, (tokens, talker_hidden); returns every hidden state, the same shape."""
        rows = []
        start = 0
        for size in plan_prefill(len(embeddings), self._geometry.prefill_chunks):
            graph = self._prefill_graph(size, slot)
            part = embeddings[start : start + size]
            graph.buffers["embeddings"].write(np.pad(part, ((0, size - len(part)), (0, 0)))[None])
            graph.buffers["position"].write(start)
            graph.run()
            rows.append(graph.buffers["hidden"].read()[0, : len(part)].copy())
            start += len(part)
        self.positions[slot] = start
        hidden = np.concatenate(rows)
        self.hidden.write_slot(slot, hidden[-1:])
        return hidden

    def decode(self, count: int = 1) -> None:
        """One step of the first `count` slots: `hidden` becomes the state after `embedding`."""
        if count not in self._decode:
            buffers = {"embeddings": self.embedding, "hidden": self.hidden, **self._caches}
            name = talker_graph_name(1)
            self._decode[count] = self._backend.bind(name, buffers, slots=count)
        graph = self._decode[count]
        graph.buffers["position"].write(self.positions[:count])
        graph.run()
        self.positions[:count] += 1

    def move(self, source: int, to: int) -> None:
        """Puts a slot in the place of another, which is lost."""
        self.positions[to] = self.positions[source]
        for buffer in (self.embedding, self.hidden, *self._caches.values()):
            buffer.copy_slot(source, to)

    def clear(self, slot: int) -> None:
        """Forgets what a slot holds: numbers that are not finite would reach the next in it."""
        for buffer in (self.embedding, self.hidden, *self._caches.values()):
            buffer.write_slot(slot, 0.0)

    def _prefill_graph(self, size: int, slot: int) -> BoundGraph:
        if (size, slot) not in self._prefill:
            self._prefill[size, slot] = self._backend.bind(
                talker_graph_name(size), self._caches, first=slot
            )
        return self._prefill[size, slot]
