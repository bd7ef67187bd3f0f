"""A small bundle with the layout of a real one: weights shared by graphs, stored bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from trt_runtime.contract import TensorSpec
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import BUNDLE, MANIFEST, GraphEntry, Manifest, StoredTensor, sha256_of

WIDTH, VOCABULARY, CACHE = 32, 50, 8

GEOMETRY = Geometry(
    sample_rate=44100,
    hop_length=4,
    n_fft=16,
    frames_per_latent=2,
    latent_dim=4,
    patch=2,
    history=3,
    solver_steps=2,
    talker_hidden=WIDTH,
    talker_layers=1,
    talker_kv_heads=1,
    talker_head_dim=WIDTH,
    vocab_size=VOCABULARY,
    speaker_dim=4,
    cache_length=CACHE,
    prefill_chunks=(4,),
    max_steps=4,
    decoder_hidden=4,
    decoder_kv_heads=1,
    decoder_head_dim=4,
    decoder_cache_lengths=(4,),
    encoder_hop=4,
    encoder_latents=2,
    encoder_kv_heads=1,
    encoder_head_dim=4,
    encoder_frame_cache_lengths=(8,),
    encoder_latent_cache_lengths=(12,),
    max_reference_latents=4,
)
_TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}


class _Weights:
    """One raw file of bfloat16 parameters, made by the source file `path`."""

    def __init__(self, file: str, path: str, parameters: dict[str, np.ndarray]) -> None:
        self.file, self.path, self.data, self.places = file, path, b"", {}
        for name, values in parameters.items():
            raw = values.astype(ml_dtypes.bfloat16).tobytes()
            place = StoredTensor(file, "bfloat16", values.shape, len(self.data), len(raw))
            self.places[name] = place
            self.data += raw

    def tensor(self, name: str) -> onnx.TensorProto:
        place = self.places[name]
        tensor = TensorProto(name=name, data_type=TensorProto.BFLOAT16, dims=place.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key in ("file", "offset", "bytes"):
            entry = {"file": "location", "offset": "offset", "bytes": "length"}[key]
            tensor.external_data.add(key=entry, value=str(getattr(place, key)))
        return tensor


def _specs(**tensors: tuple[str, tuple[int, ...]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, dtype, shape) for name, (dtype, shape) in tensors.items())


def _save(
    folder: Path,
    name: str,
    component: str,
    nodes: list[onnx.NodeProto],
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    weights: _Weights,
    used: list[str],
    constants: dict[str, np.ndarray] | None = None,
    state: tuple[str, ...] = (),
) -> GraphEntry:
    for node in nodes:
        # What the current exporter leaves in its graphs.
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=f"File {weights.path}")

    def declared(specs: tuple[TensorSpec, ...]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(s.name, _TYPES[s.dtype], s.shape) for s in specs]

    graph = helper.make_graph(
        nodes,
        name,
        declared(inputs),
        declared(outputs),
        [weights.tensor(parameter) for parameter in used]
        + [numpy_helper.from_array(values, key) for key, values in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    places = {parameter: weights.places[parameter] for parameter in used}
    return GraphEntry(f"{name}.onnx", component, inputs, outputs, state, state, places)


def _projection(source: str, parameter: str, result: str) -> list[onnx.NodeProto]:
    """A linear layer as exported: bfloat16 (out, in), cast and transposed in the graph."""
    return [
        helper.make_node("Cast", [parameter], [parameter + "_f"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", [parameter + "_f"], [parameter + "_t"], perm=[1, 0]),
        helper.make_node("MatMul", [source, parameter + "_t"], [result]),
    ]


def _embedding(folder: Path, weights: _Weights) -> GraphEntry:
    return _save(
        folder,
        "prompt_embedding",
        "prompt_embedding",
        [
            helper.make_node("Gather", ["table", "token_ids"], ["rows"]),
            helper.make_node("Cast", ["rows"], ["embeddings"], to=TensorProto.FLOAT),
        ],
        _specs(token_ids=("int64", (1, 4))),
        _specs(embeddings=("float32", (1, 4, WIDTH))),
        weights,
        ["table"],
    )


def _talker(folder: Path, weights: _Weights, tokens: int) -> GraphEntry:
    cache = ("float32", (1, CACHE, WIDTH))
    nodes = [
        *_projection("embeddings", "up", "a"),
        *_projection("a", "down", "b"),
        helper.make_node("Cast", ["scale"], ["scale_f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["b", "scale_f"], ["c"]),
        helper.make_node("Add", ["position", "steps"], ["rows"]),
        helper.make_node("Reshape", ["rows", "rows_shape"], ["columns"]),
        helper.make_node("Concat", ["zeros", "columns"], ["where"], axis=2),
        helper.make_node("ScatterND", ["key_cache_0", "where", "c"], ["key_cache_0_next"]),
        helper.make_node("ReduceMean", ["key_cache_0_next", "axis"], ["mean"], keepdims=1),
        helper.make_node("Add", ["c", "mean"], ["hidden"]),
    ]
    return _save(
        folder,
        f"talker_{tokens}",
        "talker",
        nodes,
        _specs(
            embeddings=("float32", (1, tokens, WIDTH)), position=("int64", (1,)), key_cache_0=cache
        ),
        _specs(hidden=("float32", (1, tokens, WIDTH)), key_cache_0_next=cache),
        weights,
        ["up", "down", "scale"],
        {
            "steps": np.arange(tokens, dtype=np.int64),
            "rows_shape": np.array([1, tokens, 1]),
            "zeros": np.zeros((1, tokens, 1), np.int64),
            "axis": np.array([1]),
        },
        state=("key_cache_0",),
    )


def _flow(folder: Path, weights: _Weights, name: str, component: str) -> GraphEntry:
    tensors = ("float32", (1, 2, WIDTH))
    return _save(
        folder,
        name,
        component,
        [
            *_projection("latents", "velocity", "a"),
            helper.make_node("Tanh", ["a"], ["latents_next"]),
        ],
        _specs(latents=tensors),
        _specs(latents_next=tensors),
        weights,
        ["velocity"],
    )


def write_bundle(
    folder: Path, *, talker_seed: int = 0, source_path: str = "/home/me/checkout"
) -> Path:
    """Writes the bundle; another `talker_seed` changes the talker's weights and nothing else."""
    folder.mkdir(parents=True)
    talker, other = np.random.default_rng(talker_seed), np.random.default_rng(99)
    square = (WIDTH, WIDTH)
    parameters = {
        "prompt_embedding": {"table": other.standard_normal((VOCABULARY, WIDTH))},
        "talker": {
            "up": talker.standard_normal(square) / 6,
            "down": talker.standard_normal(square) / 6,
            "scale": np.ones(WIDTH),
        },
        "flow": {"velocity": other.standard_normal(square)},
    }
    files = {
        component: _Weights(f"{component}.weights", source_path, values)
        for component, values in parameters.items()
    }
    graphs = {
        "prompt_embedding": _embedding(folder, files["prompt_embedding"]),
        "talker_1": _talker(folder, files["talker"], 1),
        "talker_4": _talker(folder, files["talker"], 4),
        "flow_step": _flow(folder, files["flow"], "flow_step", "flow"),
        "tail": _flow(folder, files["flow"], "tail", "tail"),
    }
    for weights in files.values():
        (folder / weights.file).write_bytes(weights.data)
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    write_manifest(folder, graphs)
    return folder


def write_manifest(folder: Path, graphs: dict[str, GraphEntry]) -> None:
    """Lists the folder's files as they are now."""
    listed = {
        path.name: (path.stat().st_size, sha256_of(path))
        for path in folder.iterdir()
        if path.name != MANIFEST and path.is_file()
    }
    manifest = Manifest(BUNDLE, "dense", GEOMETRY, graphs, listed, {"tensors": "abc"})
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")


@pytest.fixture
def make_bundle(tmp_path: Path) -> Callable[..., Path]:
    """Writes a bundle into a folder of this name."""

    def make(name: str = "bundle", **options: Any) -> Path:
        return write_bundle(tmp_path / name, **options)

    return make


@pytest.fixture
def bundle(make_bundle: Callable[..., Path]) -> Path:
    return make_bundle()


@pytest.fixture
def relist() -> Callable[[Path], None]:
    """Makes a bundle's manifest agree again with files that a test changed."""
    from trt_runtime.manifest import read_manifest

    return lambda folder: write_manifest(folder, dict(read_manifest(folder).graphs))
