"""A talker's graph for TensorRT: any number of tokens, our operators native or their bodies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from engines.operator_forms import BODY, NATIVE, expand_operators
from tests.conftest import Folders
from tests.engines.prepared import prepared
from tests.operators.one_node import without_our_attribute
from trt_runtime.errors import MingError
from trt_runtime.manifest import read_manifest
from trt_runtime.operators import DOMAIN

#: float32 sums in another order, over some layers.
TOLERANCE = 1e-5


def _session(model: onnx.ModelProto, folder: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(folder)
    )
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


@pytest.mark.parametrize("native", [False, True], ids=[BODY, NATIVE])
def test_one_graph_is_every_bucket_of_the_talker(folders: Folders, native: bool) -> None:
    made = prepared(folders.bundle, "talker_1", None, native=native, any_tokens=True)
    assert made.forms["CachedAttention"] == (NATIVE if native else BODY)
    assert not [node for node in made.model.graph.node if node.domain == DOMAIN]
    assert not made.model.functions
    without_our_attribute(made.model)
    one = _session(made.model, folders.bundle)
    for name, graph in read_manifest(folders.bundle).graphs.items():
        if graph.component != "talker":
            continue
        bucket = _session(onnx.load(folders.bundle / graph.file, load_external_data=False),
                          folders.bundle)  # fmt: skip
        rng = np.random.default_rng(2)
        feeds = {}
        for tensor in graph.inputs:
            spec = tensor.sized(3)
            feeds[tensor.name] = (
                5 + np.arange(spec.shape[0])
                if tensor.name == "position"
                else rng.standard_normal(spec.shape).astype(np.float32)
            )
        for mine, wanted in zip(one.run(None, feeds), bucket.run(None, feeds), strict=True):
            assert mine.shape == wanted.shape, name
            assert np.abs(mine - wanted).max() <= TOLERANCE * np.abs(wanted).max(), name


def test_a_mixture_of_experts_is_its_body(moe: Folders) -> None:
    """TensorRT's own layer for it is for compute capabilities that none of our targets has."""
    made = prepared(moe.bundle, "talker_1", None, native=True, any_tokens=True)
    assert made.forms == {"CachedAttention": NATIVE, "MixtureOfExperts": BODY}


def test_every_node_has_a_name_of_its_own_and_knows_its_source(moe: Folders) -> None:
    made = prepared(moe.bundle, "talker_1", "bfloat16", native=True, any_tokens=True)
    names = [node.name for node in made.model.graph.node]
    assert len(set(names)) == len(names)
    assert "" not in names
    scatter = next(n.name for n in made.model.graph.node if n.op_type == "TensorScatter")
    assert made.sources[scatter].startswith("export/modules/")


def test_an_operator_without_a_function_is_refused(dense: Folders) -> None:
    model = onnx.load(dense.bundle / "talker_1.onnx", load_external_data=False)
    del model.functions[:]
    with pytest.raises(MingError, match="no function for its operator CachedAttention"):
        expand_operators(model, native=False)
