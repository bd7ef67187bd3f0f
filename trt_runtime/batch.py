"""A batch: the requests that step together, each in a slot of its own.

Slots lie densely from row 0, so that a step runs exactly those that are there: first the ones that
have a step to decode, then the ones that have just read their prompt, whose hidden state is there.
A slot that leaves is filled from the end.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trt_runtime.backends.interface import Backend
from trt_runtime.geometry import Geometry
from trt_runtime.tail import make_tail


@dataclass(eq=False)
class Slot:
    """One request's place. `row` is where it lies, and changes when others leave.

    `draw` sets the noise of the next step; after it the other attributes are that step's, until the
    step after: copies, of the shapes without the batch's axis.
    """

    batch: Batch
    row: int
    initial_noise: NDArray[np.float32] = field(init=False, repr=False)
    diffusion_noise: NDArray[np.float32] = field(init=False, repr=False)

    def prefill(self, embeddings: NDArray[np.float32]) -> None:
        """Reads the prompt, (tokens, talker_hidden) float32."""
        self.batch.talker.prefill(embeddings, self.row)

    def draw(self, initial: NDArray[np.float32], diffusion: NDArray[np.float32]) -> None:
        """initial: (patch, latent_dim); diffusion: (solver_steps - 1, patch, latent_dim)."""
        self.initial_noise, self.diffusion_noise = initial, diffusion

    @property
    def hidden(self) -> NDArray[np.float32]:
        """(talker_hidden,) float32, after the talker's final norm."""
        return self.batch.talker.hidden.read()[self.row, 0]

    @property
    def embedding(self) -> NDArray[np.float32]:
        """(talker_hidden,) float32, what the talker reads next."""
        return self.batch.talker.embedding.read()[self.row, 0]

    @property
    def patch(self) -> NDArray[np.float32]:
        """(patch, latent_dim) float32."""
        return self.batch.tail.patch.read()[self.row]

    @property
    def stop_probability(self) -> float:
        return float(self.batch.tail.stop_probability.read()[self.row])

    def leave(self, *, damaged: bool = False) -> None:
        """Makes room; `damaged` where numbers that are not finite may lie in the slot."""
        if damaged:
            self.batch.talker.clear(self.row)
        self.batch.remove(self)


class Batch:
    """Up to `slots` requests over one backend. Used by one thread.

    `seconds` is what the newest step took, by component.
    """

    def __init__(self, backend: Backend, geometry: Geometry, slots: int = 1) -> None:
        self.slots = slots
        self.talker = backend.talker(slots)
        self.tail = make_tail(backend, geometry, self.talker.hidden, self.talker.embedding, slots)
        self.seconds: dict[str, float] = {}
        self._taken: list[Slot] = []
        # Of those, the first so many have an embedding to decode.
        self._decoding = 0

    def __len__(self) -> int:
        return len(self._taken)

    def join(self, *, guidance: float, noise_scale: float, history: NDArray[np.float32]) -> Slot:
        """A slot for a request, which must be prefilled and given noise before the next step.

        history: (history, latent_dim) float32.
        """
        if len(self._taken) == self.slots:
            raise IndexError(f"all {self.slots} slots are taken")
        slot = Slot(self, len(self._taken))
        self._taken.append(slot)
        self.tail.start(slot.row, guidance=guidance, noise_scale=noise_scale, history=history)
        return slot

    def step(self) -> None:
        """One step of every slot: decode where there is something to decode, then the tail."""
        started = time.perf_counter()
        if self._decoding:
            self.talker.decode(self._decoding)
        decoded = time.perf_counter()
        self.tail.run(
            np.stack([slot.initial_noise for slot in self._taken]),
            np.stack([slot.diffusion_noise for slot in self._taken]),
        )
        self._decoding = len(self._taken)
        self.seconds = {"talker": decoded - started, "flow": time.perf_counter() - decoded}

    def remove(self, slot: Slot) -> None:
        """Takes a slot out; the rows after it close up, decoding ones first."""
        if slot.row < self._decoding:
            self._decoding -= 1
            self._fill(slot.row, self._decoding)
            self._fill(self._decoding, len(self._taken) - 1)
        else:
            self._fill(slot.row, len(self._taken) - 1)
        self._taken.pop()

    def _fill(self, hole: int, source: int) -> None:
        if hole == source:
            return
        self.talker.move(source, hole)
        self.tail.move(source, hole)
        moved, left = self._taken[source], self._taken[hole]
        self._taken[hole], moved.row = moved, hole
        self._taken[source], left.row = left, source
