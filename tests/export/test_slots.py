"""The free axis of what runs once a step: a slot is what it is alone, and nothing else is free."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engines.graph_file import all_graphs
from export.verification import relative_error
from tests.conftest import Folders
from trt_runtime.backends.onnxruntime_cpu import CpuBackend
from trt_runtime.contract import NEXT, SLOTS, TAIL, GraphSpec, graph_specs
from trt_runtime.errors import FolderError
from trt_runtime.folder import open_folder
from trt_runtime.manifest import MANIFEST, read_manifest

COUNT = 3
#: Two float32 evaluations whose sums a runtime makes in another order for another number of rows.
TOLERANCE = 1e-6

Arrays = dict[str, np.ndarray]


def backend_of(folders: Folders, graph: str) -> CpuBackend:
    """The engines built for a CPU; from the bundle what a CPU leaves out of them."""
    for folder in (folders.engines, folders.bundle):
        manifest = read_manifest(folder)
        if graph in manifest.graphs:
            only = replace(manifest, graphs={graph: manifest.graphs[graph]})
            return CpuBackend(folder, only)
    raise KeyError(graph)


def inputs_of(spec: GraphSpec) -> Arrays:
    rng = np.random.default_rng(len(spec.name))
    arrays = {
        tensor.name: rng.standard_normal(tensor.sized(COUNT).shape).astype(np.float32)
        for tensor in spec.inputs
    }
    if "position" in arrays:
        arrays["position"] = np.array([17, 0, 5])
    return arrays


def outputs_of(backend: CpuBackend, spec: GraphSpec, inputs: Arrays, count: int) -> Arrays:
    bound = backend.bind(spec.name, {}, slots=count)
    for name, values in inputs.items():
        bound.buffers[name].write(values)
    bound.run()
    return {
        tensor.name: bound.buffers[
            tensor.name if tensor.name in bound.buffers else tensor.name.removesuffix(NEXT)
        ].read()
        for tensor in spec.outputs
    }


def slots_of(spec: GraphSpec, inputs: Arrays, slots: list[int]) -> Arrays:
    free = {tensor.name for tensor in spec.inputs if tensor.by_slot}
    return {n: values[slots] if n in free else values for n, values in inputs.items()}


def by_slot(spec: GraphSpec) -> bool:
    return any(tensor.by_slot for tensor in spec.inputs)


STEPPED = ("talker_1", "flow_step", "flow_advance", TAIL)


def test_what_runs_once_a_step_has_slots(folders: Folders) -> None:
    specs = graph_specs(read_manifest(folders.bundle).geometry).values()
    assert {spec.name for spec in specs if by_slot(spec)} == set(STEPPED)


@pytest.mark.parametrize("graph", STEPPED)
def test_a_slot_among_others_is_what_it_is_alone(folders: Folders, graph: str) -> None:
    backend = backend_of(folders, graph)
    spec = graph_specs(read_manifest(folders.bundle).geometry)[graph]
    inputs = inputs_of(spec)
    together = outputs_of(backend, spec, inputs, COUNT)
    for slot in range(COUNT):
        alone = outputs_of(backend, spec, slots_of(spec, inputs, [slot]), 1)
        for name, made in together.items():
            assert relative_error(made[slot], alone[name][0]) < TOLERANCE, name


@pytest.mark.parametrize("graph", STEPPED)
def test_identical_slots_are_identical(folders: Folders, graph: str) -> None:
    spec = graph_specs(read_manifest(folders.bundle).geometry)[graph]
    inputs = slots_of(spec, inputs_of(spec), [0] * COUNT)
    for made in outputs_of(backend_of(folders, graph), spec, inputs, COUNT).values():
        for slot in range(1, COUNT):
            np.testing.assert_array_equal(made[slot], made[0])


def _shape_of(info: onnx.ValueInfoProto) -> list[int | str]:
    return [axis.dim_param or axis.dim_value for axis in info.type.tensor_type.shape.dim]


def test_no_other_axis_is_free(folders: Folders) -> None:
    for folder in (folders.bundle, folders.engines):
        manifest = read_manifest(folder)
        specs = graph_specs(manifest.geometry)
        for name, entry in manifest.graphs.items():
            graph = onnx.load(folder / entry.file, load_external_data=False).graph
            spec = specs[name]
            assert [_shape_of(info) for info in graph.input] == [t.axes for t in spec.inputs]
            assert [_shape_of(info) for info in graph.output] == [t.axes for t in spec.outputs]
            if not by_slot(spec):
                for info in graph.value_info:
                    assert not any(isinstance(size, str) for size in _shape_of(info)), info.name


@pytest.mark.parametrize("graph", STEPPED)
def test_no_shape_is_computed_outside_our_functions(folders: Folders, graph: str) -> None:
    """A shape is computed on the host, which a captured CUDA graph would not come back to."""
    model = onnx.load(folders.bundle / f"{graph}.onnx", load_external_data=False)
    found = {node.op_type for inner in all_graphs(model.graph) for node in inner.node}
    assert not found & {"Shape", "Size", "NonZero", "If", "Loop", "Scan"}


def _axes_of(manifest: dict[str, Any], graph: str, name: str) -> list[int | str]:
    return next(axes for found, _, axes in manifest["graphs"][graph]["inputs"] if found == name)


def _another_name(manifest: dict[str, Any]) -> None:
    _axes_of(manifest, "flow_step", "latents")[0] = "batch"


def _another_axis(manifest: dict[str, Any]) -> None:
    _axes_of(manifest, "flow_step", "latents")[1] = SLOTS


def _a_free_axis_where_none_is(manifest: dict[str, Any]) -> None:
    _axes_of(manifest, "speaker_projection", "speaker_embedding")[0] = SLOTS


def _none_where_one_is(manifest: dict[str, Any]) -> None:
    _axes_of(manifest, "flow_step", "latents")[0] = 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_another_name, "latents has an axis that is neither a size nor 'slots'"),
        (_another_axis, "latents has an axis that is neither a size nor 'slots'"),
        (_a_free_axis_where_none_is, "does not fit the folder's geometry"),
        (_none_where_one_is, "does not fit the folder's geometry"),
    ],
)
def test_a_manifest_of_other_axes_is_refused(
    demo_engines: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    for file in demo_engines.iterdir():
        (tmp_path / file.name).symlink_to(file)
    manifest = json.loads((demo_engines / MANIFEST).read_text(encoding="utf-8"))
    change(manifest)
    (tmp_path / MANIFEST).unlink()
    (tmp_path / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(FolderError, match=message):
        open_folder(tmp_path)
