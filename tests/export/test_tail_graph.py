"""The unrolled tail, joined from the loop's graphs: the loop's values, and nothing in it twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from export.tail_graph import compose_tail
from trt_runtime.contract import FLOW_ADVANCE, FLOW_STEP, TAIL, tail_spec
from trt_runtime.folder import EMBEDDED
from trt_runtime.manifest import read_manifest
from trt_runtime.time_grid import time_grid

MANIFEST = read_manifest(EMBEDDED)
SLOTS = 2


@pytest.fixture(scope="module")
def loop() -> dict[str, ReferenceEvaluator]:
    return {
        name: ReferenceEvaluator(str(EMBEDDED / f"{name}.onnx"))
        for name in (FLOW_STEP, FLOW_ADVANCE)
    }


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_it_is_the_loop_for_any_number_of_steps(
    loop: dict[str, ReferenceEvaluator], steps: int
) -> None:
    g = replace(MANIFEST.geometry, solver_steps=steps)
    spec = tail_spec(g)
    rng = np.random.default_rng(steps)
    given = {
        tensor.name: rng.standard_normal(tensor.sized(SLOTS).shape).astype(np.float32)
        for tensor in spec.inputs
    }
    latents = given["initial_noise"]
    kept = {name: given[name] for name in ("hidden", "history", "guidance")}
    for step, (time, after) in enumerate(pairwise(time_grid(steps))):
        last = step == steps - 1
        inputs = kept | {
            "latents": latents,
            "time": np.array([time]),
            "time_step": np.array([after - time]),
            "diffusion_noise": latents if last else given["diffusion_noise"][:, step],
            "noise_scale": given["noise_scale"] * (not last),
        }
        latents = loop[FLOW_STEP].run(["latents_next"], inputs)[0]
    advance = {"patch": latents, "hidden": given["hidden"], "history": given["history"]}
    wanted = [latents, *loop[FLOW_ADVANCE].run(None, advance)]

    model = ir.to_proto(compose_tail(spec, g, EMBEDDED))
    onnx.external_data_helper.load_external_data_for_model(model, str(EMBEDDED))
    found = ReferenceEvaluator(model).run(None, given)
    assert [value.name for value in model.graph.output] == [t.name for t in spec.outputs]
    for actual, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.fixture(scope="module")
def shipped() -> onnx.ModelProto:
    return onnx.load(EMBEDDED / f"{TAIL}.onnx", load_external_data=False)


def test_every_weight_is_there_once_and_cast_once(shipped: onnx.ModelProto) -> None:
    parts = (MANIFEST.graphs[name].initializers for name in (FLOW_STEP, FLOW_ADVANCE))
    weights = {name: stored for part in parts for name, stored in part.items()}
    assert MANIFEST.graphs[TAIL].initializers == weights
    casts = [node.input[0] for node in shipped.graph.node if node.op_type == "Cast"]
    assert len(casts) == len(set(casts)) > 0


def test_nothing_is_left_of_how_it_was_made(shipped: onnx.ModelProto) -> None:
    assert not shipped.functions
    nodes = shipped.graph.node
    assert not {"Identity", "Constant"} & {node.op_type for node in nodes}
    names = Counter(node.name for node in nodes)
    assert names[""] == 0
    assert max(names.values()) == 1
    values = Counter(name for node in nodes for name in node.output)
    assert max(values.values()) == 1
    used = {name for node in nodes for name in node.input}
    assert {tensor.name for tensor in shipped.graph.initializer} <= used


def test_what_no_step_changes_is_computed_once(shipped: onnx.ModelProto) -> None:
    """Of a step only what latents and time reach is there again, and no noise in the last."""
    step, advance = (
        Counter(node.op_type for node in onnx.load(EMBEDDED / f"{name}.onnx").graph.node)
        for name in (FLOW_STEP, FLOW_ADVANCE)
    )
    found = Counter(node.op_type for node in shipped.graph.node)
    steps = MANIFEST.geometry.solver_steps
    assert found["Softmax"] == steps * step["Softmax"] + advance["Softmax"]
    # Sines and cosines of the times, and once those of the positions.
    for name in ("Sin", "Cos"):
        assert found[name] == steps * (step[name] - 1) + 1 + advance[name]
    # The condition is embedded once.
    assert found["MatMul"] == steps * (step["MatMul"] - 1) + 1 + advance["MatMul"]
    # Square roots of the steps' lengths are constants.
    assert found["Sqrt"] == steps * (step["Sqrt"] - 1) + advance["Sqrt"]
