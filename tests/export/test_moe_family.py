"""The mixture of experts: its tables, its sizes, what is refused, and its router as recorded."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import trt_runtime
from engines import build_engines
from export.bundle import export_checkpoint
from export.checkpoint import Checkpoint
from export.families import family_of
from export.geometry import ExportOptions, geometry_of
from export.modules import experts as experts_module
from export.modules.talker import Talker
from export.preflight import check_checkpoint, format_report
from export.synthetic import write_random_checkpoint
from export.verification import load_weights
from export.weights import write_component
from tests.goldens import OMNI_TTS, assert_close, cases, load_npz, moe_checkpoint, needs_goldens
from trt_runtime.errors import UserError
from trt_runtime.manifest import read_manifest

ARRAYS = load_npz("moe_talker")
RELEASED = Path(__file__).resolve().parents[2] / "benchmarks" / "configs"


@pytest.fixture
def config() -> dict[str, Any]:
    return json.loads((moe_checkpoint() / "config.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Talker:
    """The torch module with the checkpoint's weights, by the exporter's own table."""
    opened = Checkpoint.open(moe_checkpoint())
    rows = [row for row in opened.family.components(opened.sizes) if row.component == "talker"]
    folder = tmp_path_factory.mktemp("talker")
    stored = write_component(opened, rows, folder / "talker.weights")
    g = geometry_of(opened.sizes, ExportOptions())
    sizes = opened.sizes.talker
    module = Talker(sizes, g.cache_length)
    holder = torch.nn.Module()
    holder.talker = module
    load_weights(holder, stored, folder)
    return module


@pytest.mark.parametrize("case", cases(ARRAYS))
@torch.no_grad()
def test_the_router_is_as_recorded(
    talker: Talker, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores, the experts chosen, and their weights, of every layer and prompt token."""
    seen: list[torch.Tensor] = []
    plain = experts_module.mixture_of_experts

    def watched(x: torch.Tensor, logits: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(logits)
        return plain(x, logits, *rest)

    monkeypatch.setattr(experts_module, "mixture_of_experts", watched)
    sizes = talker.sizes
    assert sizes.experts is not None
    caches = [
        torch.zeros(1, sizes.kv_heads, length, sizes.head_dim)
        for length in talker.cache_lengths
        for _ in range(2)
    ]
    talker(torch.from_numpy(ARRAYS[f"{case}/embeds"])[None], torch.tensor([0]), caches)
    assert len(seen) == sizes.layers
    for layer, logits in enumerate(seen):
        scores = torch.softmax(logits, -1)
        weights, chosen = scores.topk(sizes.experts.chosen, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        recorded = {
            name: ARRAYS[f"{case}/step0_layer{layer}_{name}"]
            for name in ("scores", "topk", "weights")
        }
        assert_close(scores.numpy(), recorded["scores"], "scores")
        np.testing.assert_array_equal(chosen.numpy(), recorded["topk"])
        assert_close(weights.numpy(), recorded["weights"], "weights")


def test_the_released_config(config: dict[str, Any]) -> None:
    released = json.loads((RELEASED / "ming-omni-tts-16.8b-a3b.json").read_text())
    family = family_of(released)
    sizes = family.sizes(released)
    assert family.name == "ming-omni-tts-moe"
    assert (sizes.talker.experts.count, sizes.talker.experts.chosen) == (64, 6)
    assert sizes.talker.intermediate == 2816
    talker = [row for row in family.components(sizes) if row.component == "talker"]
    assert 14e9 < sum(row.elements for row in talker) < 17e9


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("first_k_dense_replace", 1), ("use_bias", True), ("use_qkv_bias", True),
        ("use_qk_norm", True), ("use_sliding_window", True), ("n_group", 8),
        ("score_function", "sigmoid"), ("routed_scaling_factor", 2.5),
        ("moe_router_enable_expert_bias", True), ("partial_rotary_factor", 0.5),
        ("hidden_act", "gelu"), ("num_experts_per_tok", 99), ("num_experts", 0),
        ("rope_scaling", {"type": "yarn", "factor": 4.0}),
        ("rope_scaling", {"type": "3D", "mrope_section": [1, 2, 3]}),
    ],
)  # fmt: skip
def test_what_the_family_does_not_run_is_refused_by_name(
    config: dict[str, Any], key: str, value: Any
) -> None:
    changed = copy.deepcopy(config)
    changed["llm_config"][key] = value
    with pytest.raises(UserError, match=rf"llm_config\.{key}|{key}"):
        family_of(changed).sizes(changed)


def test_every_tensor_has_its_place() -> None:
    opened = Checkpoint.open(moe_checkpoint())
    opened.require_complete()
    unused = {tensor.name for tensor in opened.family.unused(opened.sizes)}
    assert "model.model.layers.0.mlp.audio_gate.weight" in unused


@needs_goldens
def test_shards_give_the_same_bundle(tmp_path: Path, moe: Any) -> None:
    made = export_checkpoint(OMNI_TTS / "tiny-moe-sharded", tmp_path / "bundle", check_values=False)
    assert read_manifest(made).files == read_manifest(moe.bundle).files


def _stacked(layers: range | None = None) -> dict[str, np.ndarray]:
    """The recorded checkpoint's tensors, the experts of `layers` (all, by default) stacked.

    As upstream's BailingMoeGroupedMLP holds them: (experts, out, in) a projection.
    """
    tensors = load_file(moe_checkpoint() / "model.safetensors")
    experts: dict[str, dict[int, np.ndarray]] = {}
    for name in list(tensors):
        found = re.fullmatch(r"(.*layers\.(\d+)\.mlp\.experts\.)(\d+)\.(\w+\.weight)", name)
        if found and (layers is None or int(found[2]) in layers):
            experts.setdefault(found[1] + found[4], {})[int(found[3])] = tensors.pop(name)
    for name, each in experts.items():
        tensors[name] = np.stack([each[expert] for expert in range(len(each))])
    return tensors


@pytest.fixture
def stacked(tmp_path: Path) -> Callable[[dict[str, np.ndarray]], Path]:
    """Writes the recorded checkpoint with other tensors."""

    def write(tensors: dict[str, np.ndarray]) -> Path:
        folder = Path(shutil.copytree(moe_checkpoint(), tmp_path / "stacked"))
        save_file(tensors, folder / "model.safetensors")
        return folder

    return write


Write = Callable[[dict[str, np.ndarray]], Path]


def test_stacked_experts_give_the_same_bundle(stacked: Write, tmp_path: Path, moe: Any) -> None:
    folder = stacked(_stacked())
    report = check_checkpoint(folder)
    assert report.ok
    assert "layout: stacked experts" in format_report(report)
    made = export_checkpoint(folder, tmp_path / "bundle", check_values=False)
    ours, theirs = read_manifest(made), read_manifest(moe.bundle)
    assert ours.files == theirs.files
    assert ours.graphs == theirs.graphs
    assert ours.source["tensors_sha256"] != theirs.source["tensors_sha256"]


def _name(layer: int, projection: str) -> str:
    return f"model.model.layers.{layer}.mlp.experts.{projection}_proj.weight"


def _without_a_half() -> dict[str, np.ndarray]:
    tensors = _stacked()
    del tensors[_name(0, "up")]
    return tensors


def _transposed() -> dict[str, np.ndarray]:
    tensors = _stacked()
    tensors[_name(0, "gate")] = tensors[_name(0, "gate")].swapaxes(1, 2).copy()
    return tensors


def _an_expert_less() -> dict[str, np.ndarray]:
    tensors = _stacked()
    tensors[_name(0, "down")] = tensors[_name(0, "down")][:-1].copy()
    return tensors


def _one_expert_too() -> dict[str, np.ndarray]:
    tensors = _stacked()
    name = "model.model.layers.1.mlp.experts.3.gate_proj.weight"
    return tensors | {name: load_file(moe_checkpoint() / "model.safetensors")[name]}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_without_a_half, rf"1 missing: {_name(0, 'up')}"),
        (_transposed, rf"1 misshapen: {_name(0, 'gate')} \(expected"),
        (_an_expert_less, rf"1 misshapen: {_name(0, 'down')} \(expected"),
        (
            _one_expert_too,
            r"1 of another layout than the rest, which is stacked experts: "
            r"model\.model\.layers\.1\.mlp\.experts\.3\.gate_proj\.weight",
        ),
        (
            lambda: _stacked(range(1)),
            r"\d+ of another layout than the rest, which is one tensor an expert: "
            rf"{_name(0, 'down')}",
        ),
    ],
)
def test_experts_that_are_not_of_one_layout_are_refused_by_name(
    stacked: Write, tmp_path: Path, make: Callable[[], dict[str, np.ndarray]], said: str
) -> None:
    folder = stacked(make())
    with pytest.raises(UserError, match=said):
        export_checkpoint(folder, tmp_path / "bundle", check_values=False)
    assert re.search(said, format_report(check_checkpoint(folder)))


def test_a_random_checkpoint_of_either_layout(config: dict[str, Any], tmp_path: Path) -> None:
    for layout in family_of(config).layouts:
        folder = tmp_path / layout.name
        write_random_checkpoint(folder, config, layout=layout)
        assert Checkpoint.open(folder).match.layout is layout
        assert check_checkpoint(folder).ok


def test_the_graphs_hold_the_operator_and_its_function(moe: Any) -> None:
    import onnx

    from trt_runtime.operators import CACHED_ATTENTION, MIXTURE_OF_EXPERTS

    opened = Checkpoint.open(moe_checkpoint())
    for graph, entry in read_manifest(moe.bundle).graphs.items():
        model = onnx.load(moe.bundle / entry.file, load_external_data=False)
        found = [node for node in model.graph.node if node.op_type == MIXTURE_OF_EXPERTS]
        talker = graph.startswith("talker_")
        assert len(found) == (opened.sizes.talker.layers if talker else 0)
        functions = {MIXTURE_OF_EXPERTS, CACHED_ATTENTION} if talker else set()
        assert {function.name for function in model.functions} == functions
        if graph not in read_manifest(moe.engines).graphs:
            continue
        built = onnx.load(moe.engines / entry.file, load_external_data=False)
        kernels = [node.op_type for node in built.graph.node if node.op_type == "MoE"]
        assert len(kernels) == len(found)


def test_a_random_checkpoint_speaks(config: dict[str, Any], tmp_path: Path) -> None:
    """Other sizes than the recorded ones: more experts, more of them chosen, two shared."""
    config["llm_config"] |= {
        "num_experts": 12, "num_experts_per_tok": 5, "num_shared_experts": 2,
        "moe_intermediate_size": 24, "norm_topk_prob": False, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "rope_scaling": None,
    }  # fmt: skip
    write_random_checkpoint(tmp_path / "checkpoint", config, seed=5)
    assert check_checkpoint(tmp_path / "checkpoint").ok
    bundle = export_checkpoint(tmp_path / "checkpoint", tmp_path / "bundle", check_values=False)
    engines = build_engines(bundle, tmp_path / "engines")
    spoken = [
        trt_runtime.synthesize("Hello.", engines=folder, seed=3, max_steps=6, min_steps=6)
        for folder in (bundle, engines)
    ]
    assert spoken[0].steps == spoken[1].steps == 6
    # The function in the one, the kernel in the other.
    assert_close(spoken[1].audio, spoken[0].audio, "audio")
