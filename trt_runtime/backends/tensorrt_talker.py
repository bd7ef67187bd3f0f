"""The talker's engine over a batch's slots: caches that stay where they are, captured decode steps.

A step of a number of slots runs in the smallest profile that holds them, from row 0 on, since a
batch's rows are dense. The rows beyond those that count run too, and what they do must harm nobody:

- They write keys and values at their own next position, no further than the cache's last. Of a slot
  that has just read its prompt that is where its own next step writes before any query of it looks;
  of an empty row it is a place that nobody reads before a later request has written it.
- What they write is finite where it may be seen: of a slot that has just read its prompt the row
  of `embedding` is zero, since a prefill clears the slot first, and the tail writes only rows that
  count. An entry behind the mask has the weight zero, but zero times NaN would be NaN. An empty row
  may hold anything: who gets it clears it.
- Their `hidden` is left in the run's own tensor; only the rows that count are copied out of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from trt_runtime.backends.device_array import Copy, DeviceArray, device_arrays, row_bytes
from trt_runtime.backends.tensorrt_engine import Engine, Execution, pieces
from trt_runtime.contract import NEXT
from trt_runtime.errors import MingError
from trt_runtime.geometry import Geometry
from trt_runtime.talker import plan_prefill

_Arrays = Mapping[str, DeviceArray]


class _Run:
    """The engine at one profile: small tensors of its own, the caches of whoever runs it.

    State that the engine does not update in place is written to `beside` and copied back at once.
    """

    def __init__(
        self, engine: Engine, slots: int, tokens: int, beside: _Arrays, *, embeddings: bool
    ) -> None:
        """`embeddings`: it has a tensor of its own for them, else `address` says where they lie."""
        entry, self._stream = engine.entry(tokens), engine.place.stream
        self.execution: Execution = engine.execution(slots, tokens)
        names = {"position", "hidden"} | ({"embeddings"} if embeddings else set())
        own = [t.sized(slots) for t in (*entry.inputs, *entry.outputs) if t.name in names]
        self.own = device_arrays(self._stream, own)
        for name, array in self.own.items():
            self.execution.address(name, array.pointer)
        self._states, self._beside, self._slots = entry.state, beside, slots
        self._back: list[Copy] = []

    def put_caches(self, caches: _Arrays, row: int) -> None:
        """Lets it read and write the caches from a row on."""
        self._back = []
        for name in self._states:
            pointer, beside = caches[name].row_pointer(row), self._beside.get(name)
            self.execution.address(name, pointer)
            self.execution.address(name + NEXT, beside.pointer if beside else pointer)
            if beside:
                size = self._slots * row_bytes(beside.spec)
                self._back.append((pointer, beside.pointer, size))

    def enqueue(self) -> None:
        self.execution.enqueue()
        self._stream.copy(*self._back)


class _DecodeStep:
    """The captured step of `size` slots from row `first` on, one token each."""

    def __init__(self, talker: TalkerEngine, arrays: _Arrays, first: int, size: int) -> None:
        self._run = _Run(talker.engine, size, 1, talker.beside(size), embeddings=False)
        self._run.execution.address("embeddings", arrays["embeddings"].row_pointer(first))
        self._run.put_caches(arrays, first)
        self._positions, self.hidden = self._run.own["position"], self._run.own["hidden"]
        self._capture = self._run.execution.capture(self._run.enqueue)

    def run(self, positions: NDArray[np.int64]) -> None:
        """positions: (size,) int64, of each row the entry of its cache that it writes."""
        self._positions.write(positions)
        self._capture.launch()


class TalkerEngine:
    """What all talkers of a folder share: the engine, and contexts that read a prompt.

    These are not captured, since each call of one may have another slot's caches.
    """

    def __init__(self, engine: Engine, geometry: Geometry) -> None:
        self.engine, self.geometry = engine, geometry
        entry = engine.entry(1)
        self._written_beside = [
            t for t in entry.inputs if t.name in entry.state and t.name not in entry.in_place
        ]
        self._beside: dict[str, DeviceArray] = {}
        self._rows = 0
        self._prefills: dict[int, _Run] = {}

    def beside(self, rows: int) -> _Arrays:
        """Where state that is not updated in place is written, by name; nobody keeps it there.

        One for all, since the stream does one thing at a time. Who has a smaller one keeps that.
        """
        if self._written_beside and rows > self._rows:
            specs = [tensor.sized(rows) for tensor in self._written_beside]
            self._rows, self._beside = rows, device_arrays(self.engine.place.stream, specs)
        return self._beside

    def prefill(self, tokens: int) -> _Run:
        """The run that reads so many tokens into one slot."""
        if tokens not in self._prefills:
            self._prefills[tokens] = _Run(self.engine, 1, tokens, self.beside(1), embeddings=True)
        return self._prefills[tokens]


class TalkerSlots:
    """What a talker for so many slots is made of, kept for the next when its batch has ended.

    `embedding` and `hidden`: (slots, 1, talker_hidden) float32.
    """

    def __init__(self, talker: TalkerEngine, slots: int) -> None:
        engine = talker.engine
        self._talker, self._stream, self._geometry = talker, engine.place.stream, talker.geometry
        entry, sizes = engine.entry(1), engine.sizes(1)
        tensors = {t.name: t for t in (*entry.inputs, *entry.outputs)}
        self._sizes, self._caches = sizes, entry.state
        # Rows beyond the slots are those of a last profile that is larger than what it runs.
        rows = sum(size for _, size, _ in pieces(slots, sizes))
        kept = [tensors[name].sized(rows) for name in ("embeddings", *entry.state)]
        self._arrays = device_arrays(self._stream, [*kept, tensors["hidden"].sized(slots)])
        embedding = tensors["embeddings"].sized(slots)
        self.embedding = self._arrays["embeddings"].rows(embedding, 0)
        self.hidden = self._arrays["hidden"]
        #: Of each row, the position that its next decode step has.
        self._positions = np.zeros(rows, np.int64)
        wanted = {run[:2] for count in range(1, slots + 1) for run in pieces(count, sizes)}
        # The largest first: what it needs of memory the smaller ones then find.
        self._steps = {
            (first, size): _DecodeStep(talker, self._arrays, first, size)
            for first, size in sorted(wanted, key=lambda run: (-run[1], run[0]))
        }

    def start(self) -> None:
        """Forgets what an earlier batch has left."""
        self._positions[:] = 0
        self.embedding.write(0.0)
        self.hidden.write(0.0)

    def prefill(self, slot: int, embeddings: NDArray[np.float32]) -> None:
        """Reads a prompt, (tokens, talker_hidden), into a slot: `hidden` of it is the last's."""
        length = self._geometry.cache_length
        if not 1 <= len(embeddings) <= length:
            raise MingError(f"a prompt of {len(embeddings)} tokens for a cache of {length}")
        with self._stream.ordered():
            self.clear(slot)
            start = 0
            for size in plan_prefill(len(embeddings), self._geometry.prefill_chunks):
                part, run = embeddings[start : start + size], self._talker.prefill(size)
                run.own["embeddings"].write(np.pad(part, ((0, size - len(part)), (0, 0)))[None])
                run.own["position"].write(start)
                run.put_caches(self._arrays, slot)
                run.enqueue()
                start += len(part)
            row = row_bytes(self.hidden.spec)
            newest = run.own["hidden"].pointer + (len(part) - 1) * row
            self._stream.copy((self.hidden.row_pointer(slot), newest, row))
            self._positions[slot] = start
        self.hidden.changed()

    def decode(self, count: int) -> None:
        """One step of the first `count` slots."""
        last = self._geometry.cache_length - 1
        with self._stream.ordered():
            for first, size, rows in pieces(count, self._sizes):
                step = self._steps[first, size]
                step.run(np.minimum(self._positions[first : first + size], last))
                # Of a slot that has just read its prompt, `hidden` is what the tail reads next.
                taken = rows * row_bytes(self.hidden.spec)
                self._stream.copy((self.hidden.row_pointer(first), step.hidden.pointer, taken))
            self._positions[:count] += 1
        self.hidden.changed()

    def move(self, source: int, to: int) -> None:
        """Puts a slot in the place of another, which is lost."""
        with self._stream.ordered():
            self._positions[to] = self._positions[source]
            for array in self._of_a_slot():
                array.copy_slot(source, to)

    def clear(self, slot: int) -> None:
        """Sets all that a slot holds to zero."""
        with self._stream.ordered():
            self._positions[slot] = 0
            for array in self._of_a_slot():
                array.write_slot(slot, 0.0)

    def _of_a_slot(self) -> list[DeviceArray]:
        return [self.embedding, self.hidden, *(self._arrays[name] for name in self._caches)]


class TensorrtTalker:
    """See :class:`trt_runtime.backends.interface.Talker`. Calls only enqueue work."""

    def __init__(self, slots: TalkerSlots) -> None:
        self._slots = slots
        self.embedding, self.hidden = slots.embedding, slots.hidden
        slots.start()

    def prefill(self, embeddings: np.ndarray, slot: int = 0) -> None:
        self._slots.prefill(slot, np.asarray(embeddings, np.float32))

    def decode(self, count: int = 1) -> None:
        self._slots.decode(count)

    def move(self, source: int, to: int) -> None:
        self._slots.move(source, to)

    def clear(self, slot: int) -> None:
        self._slots.clear(slot)
