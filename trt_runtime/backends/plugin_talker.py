"""The plugin loop as the talker of a batch: torch's tensors behind the loop's buffers."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from trt_runtime.backends.device_buffer import DeviceBuffer, Memory, Place
from trt_runtime.contract import TensorSpec


class Loop(Protocol):
    """What is used of :class:`trt_runtime.plugins.loop.PluginLoop`."""

    embedding: Any
    hidden: Any

    def prefill(self, slot: int, embeddings: Any) -> None: ...

    def decode(self, count: int) -> None: ...

    def move(self, source: int, to: int) -> None: ...


class PluginTalker:
    """See :class:`trt_runtime.backends.interface.Talker`. Calls only enqueue work."""

    def __init__(self, place: Place, loop: Loop) -> None:
        self._place, self._loop = place, loop
        self.embedding = _buffer(place, "embedding", loop.embedding)
        self.hidden = _buffer(place, "hidden", loop.hidden)
        # The loop may have served others before.
        self.embedding.write(0.0)
        self.hidden.write(0.0)

    def prefill(self, embeddings: np.ndarray, slot: int = 0) -> None:
        rows = self._place.uploaded(np.asarray(embeddings, np.float32))
        with self._place.ordered():
            self._loop.prefill(slot, rows)
        self.hidden.changed()

    def decode(self, count: int = 1) -> None:
        with self._place.ordered():
            self._loop.decode(count)
        self.hidden.changed()

    def move(self, source: int, to: int) -> None:
        with self._place.ordered():
            self._loop.move(source, to)
        self.hidden.changed()
        self.embedding.changed()

    def clear(self, slot: int) -> None:
        """The caches need none of it: a kernel reads no entry that its slot has not written."""
        self.embedding.write_slot(slot, 0.0)
        self.hidden.write_slot(slot, 0.0)


def _buffer(place: Place, name: str, tensor: Any) -> DeviceBuffer:
    return DeviceBuffer(
        place, TensorSpec(name, "float32", tuple(tensor.shape)), Memory(place, tensor)
    )
