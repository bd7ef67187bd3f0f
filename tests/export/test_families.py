"""The tables name every tensor of the released layout, once."""

from __future__ import annotations

import json
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import pytest

from export.families import FAMILIES, Family, family_of, unknown_keys
from export.matching import match_tensors, require_match
from export.parameters import CONCAT, COPY, TRANSPOSE, TRANSPOSE_CONCAT
from export.safetensors_header import TensorInfo
from export.sizes import ModelSizes
from tests.goldens import OMNI_TTS, needs_goldens
from trt_runtime.errors import UserError

CONFIGS = Path(__file__).resolve().parents[2] / "benchmarks" / "configs"


def stored(family: Family, sizes: ModelSizes) -> dict[str, TensorInfo]:
    """Headers of a checkpoint that holds exactly what the tables name."""
    shapes = {
        name: shape
        for row in family.components(sizes)
        for name, shape in zip(row.sources, row.source_shapes, strict=True)
    } | {tensor.name: tensor.shape for tensor in family.unused(sizes)}
    return {
        name: TensorInfo(Path("x"), "bfloat16", shape, 0, 2 * prod(shape))
        for name, shape in shapes.items()
    }


@pytest.fixture
def family(config: dict[str, Any]) -> Family:
    return family_of(config)


@pytest.fixture
def sizes(family: Family, config: dict[str, Any]) -> ModelSizes:
    return family.sizes(config)


def test_parameters_and_tensors_are_named_once(family: Family, sizes: ModelSizes) -> None:
    rows = family.components(sizes)
    assert max(Counter(row.name for row in rows).values()) == 1
    tensors = [name for row in rows for name in row.sources]
    tensors += [tensor.name for tensor in family.unused(sizes)]
    assert max(Counter(tensors).values()) == 1
    assert all(tensor.reason for tensor in family.unused(sizes))


def test_shapes_follow_from_the_sources(family: Family, sizes: ModelSizes) -> None:
    for row in family.components(sizes):
        shapes = row.source_shapes
        if row.transform == COPY:
            assert (row.shape,) == shapes
        elif row.transform == CONCAT:
            assert row.shape == (sum(shape[0] for shape in shapes),)
        else:
            assert row.transform in (TRANSPOSE, TRANSPOSE_CONCAT)
            assert (len(shapes) == 1) == (row.transform == TRANSPOSE)
            assert {shape[1] for shape in shapes} == {row.shape[0]}
            assert row.shape[1] == sum(shape[0] for shape in shapes)


def test_components_come_in_the_order_of_the_table(family: Family, sizes: ModelSizes) -> None:
    assert family.component_names(sizes) == (
        "prompt_embedding",
        "speaker_projection",
        "talker",
        "flow",
        "flow_advance",
        "audio_decoder",
        "audio_encoder",
    )


def test_sizes_of_fused_parameters(family: Family, sizes: ModelSizes) -> None:
    shapes = {row.name: row.shape for row in family.components(sizes)}
    assert shapes["talker.layers.1.qkv_weight"] == (16, (4 + 2 * 2) * 4)
    assert shapes["talker.layers.1.gate_up_weight"] == (16, 48)
    assert shapes["flow.time_in_weight"] == (256, 16)
    assert shapes["flow.condition_weight"] == (16, 16)
    assert shapes["aggregator.final_weight"] == (12, 16)
    assert shapes["stop_head.weight"] == (16, 2)
    assert shapes["audio_decoder.head_weight"] == (8, 66)
    assert shapes["audio_decoder.window"] == (64,)


def test_the_full_size_flow_has_the_parameters_that_others_counted() -> None:
    """124 tensors and 103,117,920 parameters, published for an extract of the same DiT."""
    config = json.loads((CONFIGS / "ming-omni-tts-0.5b.json").read_text())
    family = family_of(config)
    rows = [r for r in family.components(family.sizes(config)) if r.component == "flow"]
    assert sum(len(row.sources) for row in rows) == 124
    assert sum(row.elements for row in rows) == 103_117_920


@needs_goldens
def test_names_shapes_and_no_more_than_the_released_layout() -> None:
    lines = (OMNI_TTS / "tensor_names-dense.txt").read_text().splitlines()
    released = {
        name: tuple(json.loads(shape))
        for name, shape, _ in (line.split("\t") for line in lines if not line.startswith("#"))
    }
    config = json.loads((OMNI_TTS / "tiny-dense" / "config.json").read_text())
    family = family_of(config)
    ours = {name: t.shape for name, t in stored(family, family.sizes(config)).items()}
    assert ours == released


def test_a_whole_checkpoint_matches(family: Family, sizes: ModelSizes) -> None:
    report = match_tensors(family, sizes, stored(family, sizes))
    assert report.ok
    require_match(report, "x")
    assert len(report.consumed) + len(report.unused) == len(stored(family, sizes))


def test_every_difference_is_named(family: Family, sizes: ModelSizes) -> None:
    tensors = stored(family, sizes)
    del tensors["stop_head.bias"]
    tensors["model.visual.weight"] = tensors["stop_head.weight"]
    norm = tensors["model.model.norm.weight"]
    tensors["model.model.norm.weight"] = TensorInfo(norm.file, norm.dtype, (17,), 0, 34)
    tensors["spk_head.bias"] = TensorInfo(norm.file, "int8", (16,), 0, 16)
    report = match_tensors(family, sizes, tensors)
    assert not report.ok
    with pytest.raises(UserError) as caught:
        require_match(report, "the/folder")
    message = str(caught.value)
    assert "the/folder" in message
    assert "1 missing: stop_head.bias" in message
    assert "1 unexpected: model.visual.weight" in message
    assert "model.model.norm.weight (expected [16], found [17])" in message
    assert "spk_head.bias (int8)" in message


def test_many_differences_are_counted(family: Family, sizes: ModelSizes) -> None:
    report = match_tensors(family, sizes, {})
    with pytest.raises(UserError, match=rf"{len(report.missing)} missing: .*and \d+ more"):
        require_match(report, "x")


def test_an_unused_tensor_may_be_absent_but_not_misshapen(
    family: Family, sizes: ModelSizes
) -> None:
    tensors = stored(family, sizes)
    head = tensors.pop("model.lm_head.weight")
    assert match_tensors(family, sizes, tensors).ok
    tensors["model.lm_head.weight"] = TensorInfo(head.file, head.dtype, (1, 16), 0, 32)
    assert [t.name for t in match_tensors(family, sizes, tensors).misshapen] == [
        "model.lm_head.weight"
    ]


def test_encoder_layers_that_the_reference_never_runs_are_told_apart(
    family: Family, sizes: ModelSizes
) -> None:
    reasons = {tensor.name: tensor.reason for tensor in family.unused(sizes)}
    layers = "audio.encoder.encoder.layers."
    assert f"{layers}3.mlp.up_proj.weight" not in reasons
    assert "first 4 layers" in reasons[f"{layers}4.mlp.up_proj.weight"]
    assert f"{layers}5.mlp.up_proj.weight" not in reasons
    assert "table of embeddings" in reasons["model.lm_head.weight"]
    assert "fed as embeddings" in reasons["audio.decoder.decoder.embed_tokens.weight"]


def test_no_latent_aggregator_with_patch_size_minus_one(config: dict[str, Any]) -> None:
    config["audio_tokenizer_config"]["patch_size"] = -1
    family = family_of(config)
    names = {tensor.name for tensor in family.unused(family.sizes(config))}
    assert not any(name.startswith("audio.encoder.aggregator.") for name in names)
    assert "audio.encoder.cls_embed" not in names


@pytest.mark.parametrize(("file", "looks_like"), [("ming-3.0-tts-tiny.json", "Ming-3.0-tts-tiny")])
def test_a_family_that_is_not_supported_is_named(file: str, looks_like: str) -> None:
    config = json.loads((CONFIGS / file).read_text())
    with pytest.raises(UserError, match=looks_like) as caught:
        family_of(config)
    assert "ming-omni-tts-dense" in str(caught.value)


@pytest.mark.parametrize(
    "config", [{}, {"model_type": "llama"}, {"model_type": 3}, {"model_type": ["dense"]}]
)
def test_an_unknown_architecture(config: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="unknown architecture"):
        family_of(config)


def test_missing_sections_are_named(config: dict[str, Any]) -> None:
    del config["ditar_config"]
    with pytest.raises(UserError, match="no ditar_config"):
        family_of(config)


def test_unknown_keys_are_dotted(config: dict[str, Any], family: Family) -> None:
    assert list(unknown_keys(config, family.known_keys)) == []
    config["audio_tokenizer_config"]["dec_kwargs"]["backbone"]["partial_rotary_factor"] = 0.5
    config["quantization_config"] = {"bits": 4}
    assert sorted(unknown_keys(config, family.known_keys)) == [
        "audio_tokenizer_config.dec_kwargs.backbone.partial_rotary_factor",
        "quantization_config",
    ]


@pytest.mark.parametrize("file", ["ming-omni-tts-0.5b.json", "ming-3.0-tts-0.5b.json"])
def test_no_key_of_the_dense_configs_is_unknown(file: str) -> None:
    config = json.loads((CONFIGS / file).read_text())
    assert list(unknown_keys(config, FAMILIES[0].known_keys)) == []
