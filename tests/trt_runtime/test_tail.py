"""The two forms of the tail: one meaning, and noise of another number of steps refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trt_runtime.backends.interface import Backend
from trt_runtime.backends.onnxruntime_cpu import CpuBackend
from trt_runtime.contract import (
    FLOW_ADVANCE,
    FLOW_STEP,
    TensorSpec,
)
from trt_runtime.errors import UserError
from trt_runtime.folder import EMBEDDED
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import Manifest, read_manifest
from trt_runtime.tail import LoopedTail, Tail, UnrolledTail, make_tail


def _only(manifest: Manifest, *graphs: str) -> Manifest:
    return replace(manifest, graphs={name: manifest.graphs[name] for name in graphs})


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return read_manifest(EMBEDDED)


@pytest.fixture(scope="module")
def backends(manifest: Manifest) -> dict[type, Backend]:
    """The embedded bundle with the loop's graphs alone, and with the unrolled graph alone."""
    return {
        LoopedTail: CpuBackend(EMBEDDED, _only(manifest, FLOW_STEP, FLOW_ADVANCE)),
        UnrolledTail: CpuBackend(EMBEDDED, _only(manifest, "tail")),
    }


class Request:
    """A tail with its neighbours' buffers, filled by a generator of its own."""

    def __init__(self, backend: Backend, g: Geometry, *, noise_scale: float = 0.25) -> None:
        shape = (1, 1, g.talker_hidden)
        self.hidden = backend.buffer(TensorSpec("hidden", "float32", shape))
        self.embedding = backend.buffer(TensorSpec("embedding", "float32", shape))
        self.tail: Tail = make_tail(backend, g, self.hidden, self.embedding)
        self.tail.start(0, guidance=2.0, noise_scale=noise_scale)
        self._rng = np.random.default_rng(3)
        self._g = g

    def step(self) -> list[np.ndarray]:
        """Patch, embedding, stop probability and history after one more step."""
        g = self._g
        self.hidden.write(self._draw(1, 1, g.talker_hidden))
        initial, diffusion = (
            self._draw(1, g.patch, g.latent_dim),
            self._draw(1, g.solver_steps - 1, g.patch, g.latent_dim),
        )
        self.tail.run(initial, diffusion)
        tail = self.tail
        buffers = (tail.patch, self.embedding, tail.stop_probability, tail.history)
        return [buffer.read().copy() for buffer in buffers]

    def _draw(self, *shape: int) -> np.ndarray:
        return self._rng.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("kind", [LoopedTail, UnrolledTail])
def test_the_folder_decides_the_form(
    backends: dict[type, Backend], manifest: Manifest, kind: type
) -> None:
    assert type(Request(backends[kind], manifest.geometry).tail) is kind


@pytest.mark.parametrize("noise_scale", [0.0, 0.25])
def test_both_forms_mean_the_same(
    backends: dict[type, Backend], manifest: Manifest, noise_scale: float
) -> None:
    """Three steps in a row, so that the shifted history is read again."""
    looped, unrolled = (
        Request(backends[kind], manifest.geometry, noise_scale=noise_scale)
        for kind in (LoopedTail, UnrolledTail)
    )
    for _ in range(3):
        for ours, theirs in zip(looped.step(), unrolled.step(), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())


@pytest.mark.parametrize("difference", [-1, 1])
def test_another_number_of_draws_is_refused(
    backends: dict[type, Backend], manifest: Manifest, difference: int
) -> None:
    g = manifest.geometry
    tail = Request(backends[LoopedTail], g).tail
    draws = g.solver_steps - 1 + difference
    before = tail.patch.read().copy()
    with pytest.raises(UserError, match=rf"{g.solver_steps - 1} draws[\s\S]*Found: {draws}\."):
        tail.run(
            np.ones((1, g.patch, g.latent_dim), np.float32),
            np.zeros((1, draws, g.patch, g.latent_dim), np.float32),
        )
    np.testing.assert_array_equal(tail.patch.read(), before, "it had begun")


def test_a_loop_of_other_steps_wants_other_draws(
    backends: dict[type, Backend], manifest: Manifest
) -> None:
    g, backend = manifest.geometry, backends[LoopedTail]
    request = Request(backend, g)
    tail = LoopedTail(backend, g, request.hidden, request.embedding, steps=4)
    tail.start(0, guidance=2.0, noise_scale=0.0)
    initial = np.ones((1, g.patch, g.latent_dim), np.float32)
    tail.run(initial, np.zeros((1, 3, g.patch, g.latent_dim), np.float32))
    assert np.isfinite(tail.patch.read()).all()
    with pytest.raises(UserError, match="3 draws"):
        tail.run(initial, np.zeros((1, g.solver_steps - 1, g.patch, g.latent_dim), np.float32))
