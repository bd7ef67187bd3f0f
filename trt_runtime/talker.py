"""The talker of one request: its caches, prefill in chunks, and the decode step."""

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
    """Caches and position of one request. `hidden` is the buffer of the newest hidden state.

    `embedding` (1, 1, talker_hidden) is the decode step's input: the tail writes to it directly.
    """

    def __init__(self, backend: Backend, geometry: Geometry) -> None:
        self._backend = backend
        self._geometry = geometry
        spec = talker_spec(geometry, 1)
        self._caches: dict[str, Buffer] = {
            t.name: backend.buffer(t) for t in spec.inputs if t.name in spec.state
        }
        self._decode = backend.bind(spec.name, self._caches)
        self.embedding: Buffer = self._decode.buffers["embeddings"]
        self.hidden: Buffer = self._decode.buffers["hidden"]
        self.position = 0

    def prefill(self, embeddings: np.ndarray) -> np.ndarray:
        """Reads the prompt, (tokens, talker_hidden); returns every hidden state, the same shape."""
        bound: dict[int, BoundGraph] = {}
        rows = []
        start = 0
        for size in plan_prefill(len(embeddings), self._geometry.prefill_chunks):
            if size not in bound:
                bound[size] = self._backend.bind(talker_graph_name(size), self._caches)
            graph = bound[size]
            part = embeddings[start : start + size]
            graph.buffers["embeddings"].write(np.pad(part, ((0, size - len(part)), (0, 0)))[None])
            graph.buffers["position"].write(start)
            graph.run()
            rows.append(graph.buffers["hidden"].read()[0, : len(part)].copy())
            start += len(part)
        self.position = start
        hidden = np.concatenate(rows)
        self.hidden.write(hidden[None, -1:])
        return hidden

    def decode(self) -> None:
        """One step from `embedding`: `hidden` becomes the state after it."""
        self._decode.buffers["position"].write(self.position)
        self._decode.run()
        self.position += 1
