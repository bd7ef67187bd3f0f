"""The tail of a step: hidden state → patch, next embedding, stop probability, shifted history.

One contract met in two ways: one call of the unrolled graph where the folder has it (GPU targets),
or a loop over one evaluation (CPU, where every node of an unrolled graph packs its own weights).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from trt_runtime.backends.interface import Backend, Buffer
from trt_runtime.contract import (
    FLOW_ADVANCE,
    FLOW_STEP,
    TAIL,
    TensorSpec,
)
from trt_runtime.errors import UserError
from trt_runtime.geometry import Geometry
from trt_runtime.time_grid import time_grid


class Tail(Protocol):
    """The tail of one request. Buffers stay on the device; the numbers are the request's."""

    patch: Buffer
    stop_probability: Buffer
    history: Buffer

    def run(self, initial_noise: np.ndarray, diffusion_noise: np.ndarray) -> None:
        """initial_noise: (patch, latent_dim); diffusion_noise: (steps - 1, patch, latent_dim)."""
        ...


def make_tail(
    backend: Backend,
    geometry: Geometry,
    hidden: Buffer,
    embedding: Buffer,
    *,
    guidance: float,
    noise_scale: float,
) -> Tail:
    """The tail for what the folder holds; it reads `hidden` and writes the next `embedding`."""
    kind = LoopedTail if backend.has(FLOW_STEP) else UnrolledTail
    return kind(backend, geometry, hidden, embedding, guidance=guidance, noise_scale=noise_scale)


def check_draws(diffusion_noise: np.ndarray, steps: int) -> None:
    """Raises UserError unless there is one draw between each two of `steps` solver steps."""
    if len(diffusion_noise) != steps - 1:
        raise UserError(
            "The diffusion noise has another number of solver steps",
            expected=f"{steps - 1} draws a patch",
            found=str(len(diffusion_noise)),
            do="record noise with the checkpoint's number of solver steps",
        )


class UnrolledTail:
    """One call does the whole tail, with the solver steps that the graph was exported with."""

    def __init__(
        self,
        backend: Backend,
        geometry: Geometry,
        hidden: Buffer,
        embedding: Buffer,
        *,
        guidance: float,
        noise_scale: float,
    ) -> None:
        self._steps = geometry.solver_steps
        self._bound = backend.bind(TAIL, {"hidden": hidden, "embedding": embedding})
        buffers = self._bound.buffers
        buffers["guidance"].write(guidance)
        buffers["noise_scale"].write(noise_scale)
        self.patch = buffers["patch"]
        self.stop_probability = buffers["stop_probability"]
        self.history = buffers["history"]

    def run(self, initial_noise: np.ndarray, diffusion_noise: np.ndarray) -> None:
        check_draws(diffusion_noise, self._steps)
        self._bound.buffers["initial_noise"].write(initial_noise[None])
        self._bound.buffers["diffusion_noise"].write(diffusion_noise[None])
        self._bound.run()


class LoopedTail:
    """A loop over one Euler step, then aggregator, stop head and history in a second graph.

    `steps` may differ from the exported number: one evaluation knows nothing of the grid.
    """

    def __init__(
        self,
        backend: Backend,
        geometry: Geometry,
        hidden: Buffer,
        embedding: Buffer,
        *,
        guidance: float,
        noise_scale: float,
        steps: int | None = None,
    ) -> None:
        self.history = backend.buffer(
            TensorSpec("history", "float32", (1, geometry.history, geometry.latent_dim))
        )
        self._step = backend.bind(FLOW_STEP, {"hidden": hidden, "history": self.history})
        self.patch = self._step.buffers["latents"]
        self._advance = backend.bind(
            FLOW_ADVANCE,
            {
                "patch": self.patch,
                "hidden": hidden,
                "history": self.history,
                "embedding": embedding,
            },
        )
        self.stop_probability = self._advance.buffers["stop_probability"]
        self._step.buffers["guidance"].write(guidance)
        self._noise_scale = noise_scale
        self._grid = time_grid(steps or geometry.solver_steps)

    def solve(
        self,
        initial_noise: np.ndarray,
        diffusion_noise: np.ndarray,
        on_step: Callable[[np.ndarray, np.ndarray], None] | None = None,
    ) -> None:
        """Leaves the solution of the flow in `patch`; does not advance history or talker.

        `on_step` sees, after each step, the state and the guided velocity that led to it, both
        (patch, latent_dim): views that the next step overwrites.
        """
        buffers = self._step.buffers
        steps = len(self._grid) - 1
        check_draws(diffusion_noise, steps)
        self.patch.write(initial_noise[None])
        for index in range(steps):
            last = index == steps - 1
            buffers["time"].write(self._grid[index])
            buffers["time_step"].write(self._grid[index + 1] - self._grid[index])
            buffers["diffusion_noise"].write(0.0 if last else diffusion_noise[index][None])
            # The reference reads its result before the last step's noise.
            buffers["noise_scale"].write(0.0 if last else self._noise_scale)
            self._step.run()
            if on_step is not None:
                on_step(self.patch.read()[0], buffers["velocity"].read()[0])

    def run(self, initial_noise: np.ndarray, diffusion_noise: np.ndarray) -> None:
        self.solve(initial_noise, diffusion_noise)
        self._advance.run()
