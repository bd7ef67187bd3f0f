"""ONNX Runtime on CPU: caches written where they lie, and weights that are resident once."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from trt_runtime.backends.onnxruntime_cpu import CpuBackend, CpuBoundGraph
from trt_runtime.contract import NEXT, TensorSpec
from trt_runtime.manifest import BUNDLE, ENGINES, GraphEntry, Manifest, StoredTensor
from trt_runtime.synthesizer import load

ROOT = Path(__file__).resolve().parents[3]
#: Graphs with caches: the decode step, a prefill call, and the decoder of the waveform.
CACHED = ["talker_1", "talker_16", "audio_decoder"]


@pytest.fixture(scope="module")
def backend(demo_engines: Path) -> CpuBackend:
    opened = load(demo_engines)._opened
    assert opened is not None
    assert isinstance(opened.backend, CpuBackend)
    return opened.backend


@pytest.mark.parametrize("graph", CACHED)
def test_caches_are_one_buffer_for_input_and_output(backend: CpuBackend, graph: str) -> None:
    entry = backend._manifest.graphs[graph]
    assert entry.in_place
    bound = backend.bind(graph, {})
    bound.run()
    outputs = dict(
        zip((spec.name for spec in entry.outputs), bound._binding.get_outputs(), strict=True)
    )
    for name in entry.state:
        address = bound.buffers[name].read().ctypes.data
        assert bound.buffers[name].value.data_ptr() == address
        assert (outputs[name + NEXT].data_ptr() == address) is (name in entry.in_place), name


def test_no_session_spins_while_another_runs(backend: CpuBackend) -> None:
    for graph in backend._manifest.graphs:
        options = backend._session(graph).get_session_options()
        assert options.get_session_config_entry("session.force_spinning_stop") == "1", graph


@pytest.mark.parametrize("graph", CACHED)
def test_in_place_gives_what_separate_buffers_give(backend: CpuBackend, graph: str) -> None:
    """Several calls on the same state, bit for bit, the state itself too."""
    session, entry = backend._sessions[graph], backend._manifest.graphs[graph]
    apart = CpuBoundGraph(session, dataclasses.replace(entry, in_place=()), {})
    in_place = CpuBoundGraph(session, entry, {})
    assert len(apart._moves) == len(entry.state) > len(in_place._moves)
    rng = np.random.default_rng(0)
    for call in range(3):
        for spec in entry.inputs:
            if spec.name in entry.state:
                continue
            values = _input(spec, call, rng, backend._manifest.geometry.patch)
            for bound in (apart, in_place):
                bound.buffers[spec.name].write(values)
        for bound in (apart, in_place):
            bound.run()
        for name, buffer in in_place.buffers.items():
            np.testing.assert_array_equal(buffer.read(), apart.buffers[name].read(), name)
    written = [name for name in entry.in_place if np.any(in_place.buffers[name].read())]
    assert written == list(entry.in_place)


def _input(
    spec: TensorSpec, call: int, rng: np.random.Generator, patch: int
) -> np.ndarray | int | bool:
    """Something that the graph may be given at its `call`th call."""
    if spec.dtype == "float32":
        return rng.standard_normal(spec.shape, dtype=np.float32)
    if spec.dtype == "bool":
        return False
    # A position, or counts of the decoder: each call takes 16 tokens or a patch at most.
    return patch if spec.name == "valid" else 16 * call


#: Loads and runs every graph of a folder, and prints by how many bytes its own memory grew.
_GROWTH = """
import pickle, sys
from pathlib import Path
import onnxruntime
from trt_runtime.backends.onnxruntime_cpu import CpuBackend

def anonymous():
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.split("RssAnon:")[1].split()[0])

folder = Path(sys.argv[1])
manifest = pickle.loads((folder / "pickled").read_bytes())
before = anonymous()
backend = CpuBackend(folder, manifest, 1)
for name in manifest.graphs:
    bound = backend.bind(name, {})
    bound.buffers["x"].write(1.0)
    bound.run()
print(anonymous() - before)
"""

SIZE = 2048


def products(folder: Path, names: list[str]) -> Manifest:
    """An engine folder of graphs `y = x @ w`, x one row in `rows_1`, 16 in `rows_16`: one `w`."""
    rng = np.random.default_rng(1)
    folder.mkdir(exist_ok=True)
    weights = rng.standard_normal((SIZE, SIZE), dtype=np.float32)
    weights.tofile(folder / "talker.weights")
    place = StoredTensor("talker.weights", "float32", weights.shape, 0, weights.nbytes)
    graphs = {}
    for name in names:
        shape = (int(name.removeprefix("rows_")), SIZE)
        weight = TensorProto(
            name="w", data_type=TensorProto.FLOAT, dims=place.shape,
            data_location=TensorProto.EXTERNAL,
        )  # fmt: skip
        for key, value in (("location", place.file), ("offset", 0), ("length", place.bytes)):
            weight.external_data.add(key=key, value=str(value))
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
            [weight],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
        graphs[name] = GraphEntry(
            f"{name}.onnx", "talker", (TensorSpec("x", "float32", shape),),
            (TensorSpec("y", "float32", shape),), initializers={"w": place},
        )  # fmt: skip
    return Manifest(ENGINES, "", None, graphs, {}, {}, "cpu")  # type: ignore[arg-type]


def _growth(folder: Path, *names: str) -> int:
    """Bytes of its own memory that loading and running the graphs costs a process.

    One of its own: memory that was freed before would be used again, and no growth be seen.
    """
    manifest = products(folder, list(names))
    (folder / "pickled").write_bytes(pickle.dumps(manifest))
    command = [sys.executable, "-c", _GROWTH, str(folder)]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return int(result.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_graphs_of_a_component_share_one_mapping_of_its_weights(tmp_path: Path) -> None:
    """Two sessions together copy nothing; one alone packs a copy, which shows what is measured."""
    weights = 4 * SIZE * SIZE
    assert _growth(tmp_path / "one", "rows_1") > 0.9 * weights
    assert _growth(tmp_path / "two", "rows_1", "rows_16") < 0.5 * weights


def test_shared_weights_give_the_same_product(tmp_path: Path) -> None:
    both, alone = (
        CpuBackend(folder, products(folder, names), 1)
        for folder, names in ((tmp_path / "a", ["rows_1", "rows_16"]), (tmp_path / "b", ["rows_1"]))
    )
    x = np.random.default_rng(2).standard_normal((1, SIZE), dtype=np.float32)
    found = []
    for backend in (both, alone):
        bound = backend.bind("rows_1", {})
        bound.buffers["x"].write(x)
        bound.run()
        found.append(bound.buffers["y"].read().copy())
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-4 * np.abs(found[1]).max())


def test_a_buffer_of_another_shape_is_refused(backend: CpuBackend) -> None:
    wrong = backend.buffer(TensorSpec("embeddings", "float32", (1, 2)))
    with pytest.raises(ValueError, match="does not fit"):
        backend.bind("talker_1", {"embeddings": wrong})


def test_the_unrolled_tail_is_loaded_only_without_the_loop(demo_engines: Path) -> None:
    with load() as synthesizer:
        opened = synthesizer._opened
        assert opened is not None
        assert opened.manifest.kind == BUNDLE
        assert "tail" in opened.manifest.graphs
        assert not opened.backend.has("tail")
        assert opened.backend.has("flow_step")
