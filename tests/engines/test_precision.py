"""Precision plans: what is low, what never is, and that a graph has the types that it was given."""

from __future__ import annotations

import shutil
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from engines.float16_range import check_float16
from engines.graph_file import ELEMENT_TYPES
from engines.precision import (
    KEPT_FLOAT32,
    LOW_TYPES,
    MIXED,
    MIXED_BF16,
    MIXED_FP16,
    PRECISIONS,
    find_precision,
)
from engines.precision_casts import apply_types, plan_types
from engines.prepared_graph import Prepared
from tests.conftest import Folders
from tests.engines.prepared import prepared
from trt_runtime.contract import AUDIO_DECODER, AUDIO_ENCODER, LANGUAGE_HEAD, TAIL
from trt_runtime.errors import MingError, UserError
from trt_runtime.manifest import StoredTensor, read_manifest

GRAPHS = (TAIL, AUDIO_DECODER, AUDIO_ENCODER, LANGUAGE_HEAD, "talker_1")
LOW = tuple(LOW_TYPES.values())
#: What no mixed precision ever computes in less than float32.
NEVER_LOW = {
    "Cos", "Div", "Exp", "Pow", "ReduceMean", "Reciprocal", "Sigmoid", "Sin", "Softmax", "Softplus",
    "Sqrt", "TopK", "Where",
}  # fmt: skip


def types_found(graph: Prepared) -> dict[str, str]:
    """By node, the type that ONNX's own inference gives its first result."""
    inferred = onnx.shape_inference.infer_shapes(graph.model).graph
    values = (*inferred.input, *inferred.output, *inferred.value_info)
    types = {v.name: v.type.tensor_type.elem_type for v in values}
    return {n.name: ELEMENT_TYPES.get(types[n.output[0]], "") for n in graph.model.graph.node}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("low", [None, *LOW])
def test_a_graph_has_the_types_of_its_plan(folders: Folders, graph: str, low: str | None) -> None:
    made = prepared(folders.bundle, graph, low, native=graph == "talker_1")
    found = types_found(made)
    assert {name: found[name] for name in made.types} == dict(made.types)
    assert set(made.types.values()) <= {"float32", low}


@pytest.mark.parametrize("graph", GRAPHS)
def test_products_are_low_and_nonlinearities_never(folders: Folders, graph: str) -> None:
    made = prepared(folders.bundle, graph, "bfloat16")
    operators = {node.name: node.op_type for node in made.model.graph.node}
    low = Counter(operators[name] for name, kind in made.types.items() if kind == "bfloat16")
    assert low["MatMul"] > 0
    assert not NEVER_LOW & set(low)


def _readers(model: onnx.ModelProto, parameter: str) -> list[onnx.NodeProto]:
    """The products that read a parameter, through casts and what arranges it."""
    names, products = {parameter}, []
    for node in model.graph.node:
        if not names & set(node.input):
            continue
        if node.op_type == "MatMul":
            products.append(node)
        elif node.op_type in ("Cast", "Transpose", "Reshape"):
            names.update(node.output)
    return products


@pytest.mark.parametrize("low", LOW)
def test_first_and_last_layers_router_time_and_stop_stay_float32(
    folders: Folders, low: str
) -> None:
    seen = set()
    for graph in GRAPHS:
        made = prepared(folders.bundle, graph, low)
        for parameter in read_manifest(folders.bundle).graphs[graph].initializers:
            for product in _readers(made.model, parameter):
                patterns = [p for p in KEPT_FLOAT32 if fnmatchcase(parameter, p)]
                seen.update(patterns)
                wanted = "float32" if patterns else low
                # A product of constants has no type: the time embedding of a known grid.
                assert made.types.get(product.name, "float32") == wanted, parameter
    # Each pattern means something: a name that changed would quietly make its layer low.
    wanted_patterns = {p for p in KEPT_FLOAT32 if not p.startswith("speaker_projection")}
    talker = read_manifest(folders.bundle).graphs["talker_1"].initializers
    if not any("router" in name for name in talker):
        wanted_patterns -= {"*.router_weight"}
    assert wanted_patterns <= seen


@pytest.mark.parametrize("low", LOW)
def test_the_contracts_tensors_stay_float32_but_for_caches_that_are_appended_to(
    folders: Folders, low: str
) -> None:
    for graph in GRAPHS:
        given = read_manifest(folders.bundle).graphs[graph]
        native = graph == "talker_1"
        entry = prepared(folders.bundle, graph, low, native=native).entry
        for before, after in zip(
            (*given.inputs, *given.outputs), (*entry.inputs, *entry.outputs), strict=True
        ):
            cache = native and "_cache_" in before.name
            assert after.dtype == (low if cache else before.dtype), before.name


@pytest.mark.parametrize("low", [None, *LOW])
def test_a_table_that_is_looked_up_stays_as_it_is_stored(dense: Folders, low: str | None) -> None:
    """Widening it would double an engine, for the same rows."""
    made = prepared(dense.bundle, "prompt_embedding", low)
    (gather,) = (node for node in made.model.graph.node if node.op_type == "Gather")
    assert made.types[gather.name] == "bfloat16"
    assert gather.input[0] in {tensor.name for tensor in made.model.graph.initializer}


@pytest.mark.parametrize("low", [None, *LOW])
def test_a_norm_that_is_narrow_in_the_bundle_is_computed_in_float32(
    dense: Folders, tmp_path: Path, low: str | None
) -> None:
    """What is not the plan's is not believed: the graph comes from anywhere."""
    bundle = tmp_path / "bundle"
    shutil.copytree(dense.bundle, bundle)
    path = bundle / f"{AUDIO_DECODER}.onnx"
    model = onnx.load(path, load_external_data=False)
    power = next(node for node in model.graph.node if node.op_type == "Pow")
    number = len(model.graph.node)
    for index, name in enumerate(list(power.input)):
        narrow = helper.make_node("Cast", [name], [f"narrow.{index}"], name=f"n{index}",
                                  to=TensorProto.FLOAT16)  # fmt: skip
        model.graph.node.insert(list(model.graph.node).index(power), narrow)
        power.input[index] = f"narrow.{index}"
    wide = helper.make_node("Cast", ["narrow.power"], [power.output[0]], name="wide",
                            to=TensorProto.FLOAT)  # fmt: skip
    model.graph.node.insert(list(model.graph.node).index(power) + 1, wide)
    power.output[0] = "narrow.power"
    assert len(model.graph.node) == number + 3
    del model.graph.value_info[:]
    path.write_bytes(model.SerializeToString())
    made = prepared(bundle, AUDIO_DECODER, low)
    assert made.types[power.name] == "float32"
    assert types_found(made)[power.name] == "float32"


def test_the_residual_stream_is_float32(folders: Folders) -> None:
    """The sum of a float32 stream and a low product: read by the next norm and the next sum."""
    made = prepared(folders.bundle, TAIL, "bfloat16")
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in made.model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    streams = [
        node
        for node in made.model.graph.node
        if node.op_type == "Add"
        and any(r.op_type == "Pow" for r in readers.get(node.output[0], []))
    ]
    assert len(streams) > 10
    assert {made.types[node.name] for node in streams} == {"float32"}


@pytest.mark.parametrize("graph", [TAIL, AUDIO_DECODER, LANGUAGE_HEAD])
def test_float16_rounds_and_nothing_more(folders: Folders, graph: str) -> None:
    """On a CPU, which widens float16 between products: close to float32, and not equal to it."""
    results = []
    for low in (None, "float16"):
        made = prepared(folders.bundle, graph, low)
        options = ort.SessionOptions()
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(folders.bundle)
        )
        session = ort.InferenceSession(
            made.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        rng = np.random.default_rng(4)
        feeds = {}
        for tensor in made.entry.inputs:
            spec = tensor.sized(2)
            feeds[tensor.name] = (
                rng.standard_normal(spec.shape).astype(np.float32)
                if spec.dtype == "float32"
                else np.ones(spec.shape, spec.dtype)
            )
        results.append(session.run(None, feeds)[0])
    error = np.linalg.norm(results[1] - results[0]) / np.linalg.norm(results[0])
    # Eleven bits of a product's operands: some 2^-11 each, averaged over the sums.
    assert 1e-6 < error < 5e-3


def test_a_plan_of_a_node_that_is_not_there_is_refused(dense: Folders) -> None:
    made = prepared(dense.bundle, LANGUAGE_HEAD, None)
    with pytest.raises(MingError, match="no node Nowhere"):
        apply_types(made.model, {"Nowhere": "float32"})


def test_a_value_of_unknown_type_is_refused() -> None:
    unknown = helper.make_node("Foo", ["x"], ["y"], domain="strange", name="strange")
    graph = helper.make_graph(
        [unknown, helper.make_node("Identity", ["y"], ["z"], name="end")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1])],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("strange", 1)]
    )
    with pytest.raises(MingError, match="type of y"):
        plan_types(model, "float16")


def test_every_precision_is_a_row() -> None:
    assert set(PRECISIONS) == {"float32", MIXED, MIXED_BF16, MIXED_FP16}
    # The talker's states outgrow float16; the others were measured closer in it.
    assert PRECISIONS[MIXED].low_type("talker") == "bfloat16"
    assert PRECISIONS[MIXED].low_type(TAIL) == "float16"
    for row in PRECISIONS.values():
        assert set(row.components.values()) <= set(LOW_TYPES)
        # The prompt's table is only looked up, and the projection is one product a request.
        assert not {"prompt_embedding", "speaker_projection"} & set(row.components)
    with pytest.raises(UserError, match="no precision 'int3'"):
        find_precision("int3")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("value", "fits"), [(65280.0, True), (-65280.0, True), (65536.0, False),
                                             (-1e6, False), (float("inf"), False),
                                             (float("nan"), False)])  # fmt: skip
def test_what_does_not_fit_float16_is_named(
    dtype: str, value: float, fits: bool, tmp_path: Path
) -> None:
    values = np.zeros(5, np.float32)
    values[3] = value
    stored = values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32)
    (tmp_path / "w").write_bytes(b"12345678" + stored.tobytes())
    place = StoredTensor("w", dtype, (5,), 8, stored.nbytes)
    if fits:
        check_float16(tmp_path, [("p", place)])
        return
    with pytest.raises(UserError, match=r"parameter p does not fit float16[\s\S]*mixed-bf16"):
        check_float16(tmp_path, [("p", place)])


def test_a_checkpoint_that_does_not_fit_is_refused(dense: Folders, tmp_path: Path) -> None:
    """With what it keeps float32 as large as it likes: that is not narrowed."""
    bundle = tmp_path / "bundle"
    shutil.copytree(dense.bundle, bundle)
    parameters = read_manifest(bundle).graphs[TAIL].initializers
    for name, refused in (("flow.final_weight", False), ("flow.blocks.1.down_weight", True)):
        place = parameters[name]
        with (bundle / place.file).open("r+b") as file:
            file.seek(place.offset)
            file.write(np.full(1, 1e6, ml_dtypes.bfloat16).tobytes())
        if refused:
            with pytest.raises(UserError, match=name):
                prepared(bundle, TAIL, "float16")
        else:
            prepared(bundle, TAIL, "float16")
        prepared(bundle, TAIL, "bfloat16")
