"""The flow through built engines against the reference: DiT rows, whole solves, heads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.goldens import assert_close, cases, load_json, load_npz
from trt_runtime.contract import FLOW_ADVANCE, FLOW_STEP, SPEAKER_PROJECTION, TensorSpec
from trt_runtime.folder import OpenFolder
from trt_runtime.tail import LoopedTail
from trt_runtime.time_grid import time_grid

DIT = load_npz("dense_dit")
CFM = load_npz("dense_cfm")
CFM_META = load_json("dense_cfm")["meta"]
HEADS = load_npz("dense_heads")


def test_time_grids_equal_the_references() -> None:
    grids = [name for name in DIT if name.startswith("sway_")]
    assert grids
    for name in grids:
        assert_close(time_grid(int(name.removeprefix("sway_"))), DIT[name], name)


@pytest.mark.parametrize(("row", "guidance"), [(0, 0.0), (1, -1.0)])
def test_both_guidance_rows(dense_engines: OpenFolder, row: int, guidance: float) -> None:
    """c + g (c - u) is the conditioned row at g = 0 and the unconditioned one at g = -1."""
    bound = dense_engines.backend.bind(FLOW_STEP, {})
    for name, values in (
        ("latents", DIT["x"][:1]),
        ("time", DIT["t"][:1]),
        ("hidden", DIT["c"][:1]),
        ("history", DIT["history"][:1]),
        ("guidance", np.float32(guidance)),
    ):
        bound.buffers[name].write(values)
    bound.run()
    velocity = bound.buffers["velocity"].read()[0]
    assert_close(velocity, DIT["cfgbatch_2.0"][row], f"guidance row {row}")


def test_velocity_without_guidance_is_the_networks_output(dense_engines: OpenFolder) -> None:
    """Each row with its own condition and time, at guidance 0, where the reference raises."""
    patch = DIT["x"].shape[1]
    bound = dense_engines.backend.bind(FLOW_STEP, {})
    for row in range(len(DIT["x"])):
        for name, key in (("latents", "x"), ("time", "t"), ("hidden", "c"), ("history", "history")):
            bound.buffers[name].write(DIT[key][row : row + 1])
        bound.run()
        velocity = bound.buffers["velocity"].read()[0]
        assert_close(velocity, DIT["out"][row, -patch:], f"DiT row {row}")


def _tail(opened: OpenFolder, case: str) -> LoopedTail:
    g, meta = opened.manifest.geometry, CFM_META[case]
    shape = (1, 1, g.talker_hidden)
    hidden = opened.backend.buffer(TensorSpec("hidden", "float32", shape))
    hidden.write(CFM[f"{case}/cond"])
    tail = LoopedTail(
        opened.backend,
        g,
        hidden,
        opened.backend.buffer(TensorSpec("embedding", "float32", shape)),
        steps=meta["steps"],
    )
    tail.start(
        0,
        guidance=meta["cfg"],
        noise_scale=meta["sigma"] * math.sqrt(meta["temperature"]),
        history=CFM[f"{case}/history"][0],
    )
    return tail


@pytest.mark.parametrize("case", [case for case in cases(CFM) if f"{case}/out" in CFM])
def test_solver_trajectory(dense_engines: OpenFolder, case: str) -> None:
    """Every step's input and velocity, the grid and the result, for every count and temperature."""
    tail = _tail(dense_engines, case)
    noise = CFM[f"{case}/sde_noise"][:, 0]
    states: list[np.ndarray] = []
    velocities: list[np.ndarray] = []

    def record(latents: np.ndarray, velocity: np.ndarray) -> None:
        states.append(latents[0].copy())
        velocities.append(velocity[0].copy())

    tail.solve(CFM[f"{case}/noise"][0].T[None], noise[None, :-1], on_step=record)
    assert_close(time_grid(CFM_META[case]["steps"]), CFM[f"{case}/times"], "times")
    assert_close(np.stack(velocities), CFM[f"{case}/vel"][:, 0], "velocities")
    assert_close(np.stack(states[:-1]), CFM[f"{case}/x_in"][1:, 0], "states")
    assert_close(tail.patch.read(), CFM[f"{case}/out"], "patch")


def test_guidance_1_is_the_limit_of_the_reference(dense_engines: OpenFolder) -> None:
    """The reference raises at guidance 1; its own value just above it is the limit."""
    case = "cfg1plus"
    tail = _tail(dense_engines, case)
    tail.start(0, guidance=1.0, noise_scale=0.0, history=CFM[f"{case}/history"][0])
    tail.solve(CFM[f"{case}/noise"][0].T[None], CFM[f"{case}/sde_noise"][None, :-1, 0])
    assert_close(tail.patch.read(), CFM[f"{case}/out"], "patch at guidance 1")


def test_aggregator(dense_engines: OpenFolder) -> None:
    bound = dense_engines.backend.bind(FLOW_ADVANCE, {})
    for patch, expected in zip(HEADS["agg_in"], HEADS["agg_out"], strict=True):
        bound.buffers["patch"].write(patch[None])
        bound.run()
        assert_close(bound.buffers["embedding"].read()[0], expected, "aggregator")


def test_stop_head(dense_engines: OpenFolder) -> None:
    bound = dense_engines.backend.bind(FLOW_ADVANCE, {})
    for hidden, expected in zip(HEADS["stop_in"], HEADS["stop_prob"], strict=True):
        bound.buffers["hidden"].write(hidden[None])
        bound.run()
        assert_close(bound.buffers["stop_probability"].read(), expected, "stop probability")


def test_speaker_projection(dense_engines: OpenFolder) -> None:
    bound = dense_engines.backend.bind(SPEAKER_PROJECTION, {})
    for embedding, expected in zip(HEADS["spk_in"], HEADS["spk_out"], strict=True):
        bound.buffers["speaker_embedding"].write(embedding[None])
        bound.run()
        assert_close(bound.buffers["projection"].read()[0], expected, "speaker projection")


def test_history_shifts_by_one_patch(dense_engines: OpenFolder) -> None:
    g = dense_engines.manifest.geometry
    bound = dense_engines.backend.bind(FLOW_ADVANCE, {})
    shape = (g.history, g.latent_dim)
    before = np.arange(g.history * g.latent_dim, dtype=np.float32).reshape(shape)
    patch = -np.ones((g.patch, g.latent_dim), np.float32)
    bound.buffers["history"].write(before[None])
    bound.buffers["patch"].write(patch[None])
    bound.run()
    expected = np.concatenate((before, patch))[-g.history :]
    np.testing.assert_array_equal(bound.buffers["history"].read()[0], expected)
