"""The tail of a step as one graph, joined from the two graphs of the loop.

Tracing the whole solve would trace one Euler step ten times. Here the step's graph is copied once a
step of the solver, with the times of the grid as constants, and the advance's follows. What does
not depend on the step (casts of weights, rotary angles, the condition's embedding) is there once.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants

from trt_runtime.contract import FLOW_ADVANCE, FLOW_STEP, NEXT, GraphSpec, TensorSpec
from trt_runtime.geometry import Geometry
from trt_runtime.time_grid import time_grid

#: Left to the runtimes: the last bit of their values depends on the processor that computes them.
_NOT_FOLDED = frozenset({"Sin", "Cos"})


def compose_tail(spec: GraphSpec, geometry: Geometry, folder: Path) -> ir.Model:
    """The graph of `spec`, the contract's `tail`, made of the loop's graphs in a bundle's folder.

    It refers to the same stored weights. What it computes is `export.graphs.TailGraph`.
    """
    step, advance = (ir.load(folder / f"{name}.onnx") for name in (FLOW_STEP, FLOW_ADVANCE))
    tail = _Joined(spec, step)
    given = {value.name or "": value for value in tail.graph.inputs}
    latents = given["initial_noise"]
    grid = time_grid(geometry.solver_steps)
    for index, (time, after) in enumerate(pairwise(grid)):
        last = index == geometry.solver_steps - 1
        time_step = tail.array(f"time_step.{index}", np.array([after - time]))
        inputs = given | {
            "latents": latents,
            "time": tail.array(f"time.{index}", np.array([time])),
            "time_step": time_step,
            # The last step's noise is never read.
            "diffusion_noise": latents if last else _draw(tail, given, index),
        }
        made = tail.append(step.graph, inputs, f"step_{index}")
        if last:
            # The reference reads its result before the last step's noise.
            change = tail.node("Mul", time_step, made["velocity"], like=latents)
            latents = tail.node("Add", latents, change, like=latents)
        else:
            latents = made["latents" + NEXT]
    made = {"patch": latents} | tail.append(advance.graph, given | {"patch": latents}, "advance")
    return tail.finished([made[tensor.name] for tensor in spec.outputs])


def _draw(tail: _Joined, given: Mapping[str, ir.Value], index: int) -> ir.Value:
    """Every slot's noise of step `index`, (slots, patch, latent_dim)."""
    row = tail.array(f"draw.{index}", np.array(index, np.int64))
    return tail.node("Gather", given["diffusion_noise"], row, like=given["initial_noise"], axis=1)


class _Joined:
    """A graph in the making: copies of other graphs, one after the other."""

    def __init__(self, spec: GraphSpec, first: ir.Model) -> None:
        self._spec = spec
        self._ir_version = first.ir_version
        self.graph = ir.Graph(
            [_value_of(tensor) for tensor in spec.inputs],
            [],
            nodes=[],
            opset_imports=dict(first.opset_imports),
        )
        self._names = {tensor.name for tensor in (*spec.inputs, *spec.outputs)}
        self._stored: dict[object, ir.Value] = {}

    def array(self, name: str, values: np.ndarray) -> ir.Value:
        """A constant of the graph."""
        return self._constant(name, ir.tensor(values))

    def node(self, operator: str, *inputs: ir.Value, like: ir.Value, **attributes: int) -> ir.Value:
        """The output, of the type and shape of `like`, of a node that is appended."""
        output = ir.Value(name=self._named(operator.lower()), type=like.type, shape=like.shape)
        self.graph.append(ir.node(operator, inputs, attributes, outputs=[output]))
        return output

    def append(
        self, part: ir.Graph, inputs: Mapping[str, ir.Value], suffix: str
    ) -> dict[str, ir.Value]:
        """Puts a copy of `part` at the end, reading `inputs`; returns its outputs by name.

        Names that are taken get the suffix.
        """
        copy = part.clone()
        for value in copy.inputs:
            value.replace_all_uses_with(inputs[value.name or ""])
        for value in copy.initializers.values():
            assert value.const_value is not None
            value.replace_all_uses_with(self._constant(value.name or "", value.const_value))
        outputs = {value.name or "": value for value in copy.outputs}
        copy.outputs.clear()
        nodes = list(copy)
        copy.remove(nodes)
        for node in nodes:
            for value in node.outputs:
                value.name = self._named(value.name or "", suffix)
        self.graph.extend(nodes)
        return outputs

    def finished(self, outputs: list[ir.Value]) -> ir.Model:
        """The model, with these for the contract's outputs, and nothing in it twice."""
        for tensor, value in zip(self._spec.outputs, outputs, strict=True):
            value.name = tensor.name
        self.graph.outputs.extend(outputs)
        model = ir.Model(self.graph, ir_version=self._ir_version)
        common.RemoveUnusedNodesPass()(model)
        common.CommonSubexpressionEliminationPass()(model)
        fold_constants(model, should_fold=_folds)
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        common.RemoveUnusedNodesPass()(model)
        return model

    def _constant(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """The initialiser of a tensor: one a weight, and one for all constants that are equal."""
        weight = isinstance(tensor, ir.ExternalTensor)
        key = name if weight else (tensor.dtype, tuple(tensor.shape), tensor.tobytes())
        if key not in self._stored:
            value = ir.Value(
                name=self._named(name),
                type=ir.TensorType(tensor.dtype),
                shape=ir.Shape(tensor.shape.numpy()),
                const_value=tensor,
            )
            self.graph.register_initializer(value)
            self._stored[key] = value
        return self._stored[key]

    def _named(self, name: str, suffix: str = "") -> str:
        """`name` where it is free, else with the suffix or a number."""
        tried, number = name, 1
        while tried in self._names:
            tried = f"{name}.{suffix or number}"
            suffix, number = "", number + 1
        self._names.add(tried)
        return tried


def _value_of(tensor: TensorSpec) -> ir.Value:
    return ir.Value(
        name=tensor.name,
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=ir.Shape(tensor.axes),
    )


def _folds(node: ir.Node) -> bool:
    """Whether a node of constants is computed here: weights stay as they are stored."""
    stored = (value.const_value for value in node.inputs if value is not None)
    return node.op_type not in _NOT_FOLDED and not any(
        isinstance(tensor, ir.ExternalTensor) for tensor in stored
    )
