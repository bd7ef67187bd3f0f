"""The tail of a step: hidden state → patch, next embedding, stop probability, shifted history.

One contract met in two ways: one call of the unrolled graph where the folder has it (GPU targets),
or a loop over one evaluation (CPU, where every node of an unrolled graph packs its own weights).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from trt_runtime.backends.interface import Backend, BoundGraph, Buffer
from trt_runtime.contract import (
    FLOW_ADVANCE,
    FLOW_STEP,
    TAIL,
    GraphSpec,
    flow_advance_spec,
    tail_spec,
)
from trt_runtime.errors import UserError
from trt_runtime.geometry import Geometry
from trt_runtime.time_grid import time_grid


class Tail(Protocol):
    """The tail of a batch's slots. Buffers stay on the device; the numbers are each slot's."""

    patch: Buffer
    stop_probability: Buffer
    history: Buffer

    def start(
        self, slot: int, *, guidance: float, noise_scale: float, history: np.ndarray | None = None
    ) -> None:
        """Gives a slot the numbers of its request; history: (history, latent_dim), None: zeros."""
        ...

    def run(self, initial_noise: np.ndarray, diffusion_noise: np.ndarray) -> None:
        """A step of as many slots, from the first, as the noise has rows.

        initial_noise: (count, patch, latent_dim); diffusion_noise: (count, steps - 1, patch,
        latent_dim). Raises UserError before anything runs where the number of draws is another.
        """
        ...

    def move(self, source: int, to: int) -> None:
        """Puts a slot in the place of another, which is lost."""
        ...


def make_tail(
    backend: Backend, geometry: Geometry, hidden: Buffer, embedding: Buffer, slots: int = 1
) -> Tail:
    """The tail for what the folder holds; it reads `hidden` and writes the next `embedding`."""
    kind = LoopedTail if backend.has(FLOW_STEP) else UnrolledTail
    return kind(backend, geometry, hidden, embedding, slots)


def check_draws(diffusion_noise: np.ndarray, steps: int) -> None:
    """Raises UserError unless there is one draw between each two of `steps` solver steps."""
    draws = diffusion_noise.shape[1]
    if draws != steps - 1:
        raise UserError(
            "The diffusion noise has another number of solver steps",
            expected=f"{steps - 1} draws a patch",
            found=str(draws),
            do="record noise with the checkpoint's number of solver steps",
        )


class _SlotNumbers:
    """What both forms keep of each slot: its results, history, guidance, size of added noise."""

    def __init__(self, backend: Backend, spec: GraphSpec, slots: int) -> None:
        tensors = {t.name: t for t in (*spec.inputs, *spec.outputs)}
        self.history = backend.buffer(tensors["history"], slots)
        self.patch = backend.buffer(tensors["patch"], slots)
        self.stop_probability = backend.buffer(tensors["stop_probability"], slots)
        self._guidance = np.zeros(slots, np.float32)
        self._noise_scale = np.zeros(slots, np.float32)

    def start(
        self, slot: int, *, guidance: float, noise_scale: float, history: np.ndarray | None = None
    ) -> None:
        self._guidance[slot], self._noise_scale[slot] = guidance, noise_scale
        self.history.write_slot(slot, 0.0 if history is None else history)

    def move(self, source: int, to: int) -> None:
        self._guidance[to] = self._guidance[source]
        self._noise_scale[to] = self._noise_scale[source]
        # The results too: others may leave before a slot's have been read.
        for buffer in (self.history, self.patch, self.stop_probability):
            buffer.copy_slot(source, to)


class UnrolledTail(_SlotNumbers):
    """One call does the whole tail, with the solver steps that the graph was exported with."""

    def __init__(
        self,
        backend: Backend,
        geometry: Geometry,
        hidden: Buffer,
        embedding: Buffer,
        slots: int = 1,
    ) -> None:
        super().__init__(backend, tail_spec(geometry), slots)
        self._backend = backend
        self._steps = geometry.solver_steps
        self._shared = {
            "hidden": hidden,
            "embedding": embedding,
            "history": self.history,
            "patch": self.patch,
            "stop_probability": self.stop_probability,
        }
        self._bound: dict[int, BoundGraph] = {}

    def run(self, initial_noise: np.ndarray, diffusion_noise: np.ndarray) -> None:
        check_draws(diffusion_noise, self._steps)
        count = len(initial_noise)
        if count not in self._bound:
            self._bound[count] = self._backend.bind(TAIL, self._shared, slots=count)
        buffers = self._bound[count].buffers
        buffers["guidance"].write(self._guidance[:count])
        buffers["noise_scale"].write(self._noise_scale[:count])
        buffers["initial_noise"].write(initial_noise)
        buffers["diffusion_noise"].write(diffusion_noise)
        self._bound[count].run()


class LoopedTail(_SlotNumbers):
    """A loop over one Euler step, then aggregator, stop head and history in a second graph.

    `steps` may differ from the exported number: one evaluation knows nothing of the grid.
    """

    def __init__(
        self,
        backend: Backend,
        geometry: Geometry,
        hidden: Buffer,
        embedding: Buffer,
        slots: int = 1,
        *,
        steps: int | None = None,
    ) -> None:
        super().__init__(backend, flow_advance_spec(geometry), slots)
        self._backend = backend
        self._grid = time_grid(steps or geometry.solver_steps)
        self._of_step = {"hidden": hidden, "history": self.history, "latents": self.patch}
        self._of_advance = {
            "patch": self.patch,
            "hidden": hidden,
            "history": self.history,
            "embedding": embedding,
            "stop_probability": self.stop_probability,
        }
        self._bound: dict[int, tuple[BoundGraph, BoundGraph]] = {}

    def _graphs(self, count: int) -> tuple[BoundGraph, BoundGraph]:
        if count not in self._bound:
            bind = self._backend.bind
            self._bound[count] = (
                bind(FLOW_STEP, self._of_step, slots=count),
                bind(FLOW_ADVANCE, self._of_advance, slots=count),
            )
        return self._bound[count]

    def solve(
        self,
        initial_noise: np.ndarray,
        diffusion_noise: np.ndarray,
        on_step: Callable[[np.ndarray, np.ndarray], None] | None = None,
    ) -> None:
        """Leaves the solution of the flow in `patch`; does not advance history or talker.

        `on_step` sees, after each step, the state and the guided velocity that led to it, both
        (count, patch, latent_dim): views that the next step overwrites.
        """
        steps = len(self._grid) - 1
        check_draws(diffusion_noise, steps)
        count = len(initial_noise)
        graph, _ = self._graphs(count)
        buffers = graph.buffers
        buffers["latents"].write(initial_noise)
        buffers["guidance"].write(self._guidance[:count])
        for index in range(steps):
            last = index == steps - 1
            buffers["time"].write(self._grid[index])
            buffers["time_step"].write(self._grid[index + 1] - self._grid[index])
            buffers["diffusion_noise"].write(0.0 if last else diffusion_noise[:, index])
            # The reference reads its result before the last step's noise.
            buffers["noise_scale"].write(0.0 if last else self._noise_scale[:count])
            graph.run()
            if on_step is not None:
                on_step(buffers["latents"].read(), buffers["velocity"].read())

    def run(self, initial_noise: np.ndarray, diffusion_noise: np.ndarray) -> None:
        self.solve(initial_noise, diffusion_noise)
        _, advance = self._graphs(len(initial_noise))
        advance.run()
