"""The audio encoder of any family: the reference's recordings, and windows by definition."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import rms_norm, silu, softplus

from engines import build_engines
from export.audio_tokenizer import audio_components
from export.bundle import export_checkpoint
from export.checkpoint import Checkpoint
from export.config_section import ConfigSection
from export.geometry import ExportOptions, geometry_of
from export.graphs import GraphSource, graph_sources
from export.modules.audio_encoder import AudioEncoder
from export.sizes import AudioSizes, TransformerSizes, audio_sizes
from export.synthetic import write_random_checkpoint
from tests.goldens import (
    OMNI_TTS,
    assert_close,
    cases,
    dense_checkpoint,
    load_npz,
    needs_goldens,
    relative_error,
)
from trt_runtime.audio_encoder import encode_wave
from trt_runtime.backends.onnxruntime_cpu import CpuBackend
from trt_runtime.contract import AUDIO_ENCODER, audio_encoder_spec
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import read_manifest

Tensors = dict[str, Tensor]
#: Of the reference's rotary embedding and norms in the tiny configs.
BASE, EPSILON = 10_000.0, 1e-6


def filled(audio: AudioSizes, geometry: Geometry, tensors: Tensors) -> AudioEncoder:
    """The module with a checkpoint's tensors, by the rows of the table."""
    module = AudioEncoder(audio, geometry).eval()
    own = dict(module.named_parameters())
    for row in audio_components(audio):
        if row.component == "audio_encoder":
            parts = [tensors[name].float() for name in row.sources]
            parts = [part.T if "transpose" in row.transform else part for part in parts]
            own.pop(row.name.removeprefix("audio_encoder.")).data.copy_(torch.cat(parts, -1))
    assert not own, f"without a row: {own.keys()}"
    return module


@torch.no_grad()
def encoded(module: AudioEncoder, wave: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and std of a wave (samples,), call by call as the runtime makes them."""
    g = module.geometry
    spec = audio_encoder_spec(g)
    caches = [torch.zeros(tensor.shape) for tensor in spec.inputs[3:]]
    a_call = g.encoder_latents * g.samples_per_latent
    frames = -(-len(wave) // g.encoder_hop)
    latents = -(-frames // g.frames_per_latent)
    padded = torch.from_numpy(np.pad(wave, (0, -len(wave) % a_call)))[None]
    means, stds = [], []
    for start in range(0, padded.shape[1], a_call):
        before = start // g.samples_per_latent
        left = min(frames - before * g.frames_per_latent, g.encoder_latents * g.frames_per_latent)
        mean, std, *caches = module(
            padded[:, start : start + a_call], torch.tensor([before]), torch.tensor([left]), *caches
        )
        means.append(mean[0])
        stds.append(std[0])
    return torch.cat(means)[:latents].numpy(), torch.cat(stds)[:latents].numpy()


MOE = load_npz("moe_vae") if (OMNI_TTS / "goldens" / "moe_vae.npz").is_file() else {}


@needs_goldens
@pytest.mark.parametrize("case", [case for case in cases(MOE) if case.startswith("enc")])
def test_another_familys_encoder(case: str) -> None:
    """The mixture-of-experts checkpoint: other frame sizes, and waves that end within a frame."""
    folder = OMNI_TTS / "tiny-moe"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    audio = audio_sizes(ConfigSection(config).section("audio_tokenizer_config"))
    # Of the sizes only the audio tokenizer's matter here; the talker of this family is another.
    sizes = dataclasses.replace(Checkpoint.open(dense_checkpoint()).sizes, audio=audio)
    module = filled(
        audio, geometry_of(sizes, ExportOptions()), load_file(folder / "model.safetensors")
    )
    mean, std = encoded(module, MOE[f"{case}/wave"])
    assert_close(mean, MOE[f"{case}/mean"], "mean")
    assert_close(std, MOE[f"{case}/std"], "std")


def by_definition(
    tensors: Tensors, audio: AudioSizes, wave: np.ndarray, windows: list[int | None]
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and std of whole latents, with one mask over all positions and no cache.

    windows: of each layer, the keys that a query sees, its own among them; None for all.
    """
    prefix, per_latent = "audio.encoder.", audio.frames_per_latent
    frames = torch.from_numpy(wave).view(1, -1, audio.encoder_hop)
    hidden = frames @ tensors[f"{prefix}fc1.weight"].T
    hidden = hidden @ tensors[f"{prefix}fc2.weight"].T + tensors[f"{prefix}fc2.bias"]
    hidden = stack(tensors, f"{prefix}encoder.", audio.encoder, hidden, windows)
    latents = hidden.shape[1] // per_latent
    classes = tensors[f"{prefix}cls_embed"].expand(latents, 1, -1)
    rows = torch.cat((hidden.view(latents, per_latent, -1), classes), 1).view(
        1, -1, hidden.shape[-1]
    )
    assert audio.latent_aggregator is not None
    rows = stack(tensors, f"{prefix}aggregator.", audio.latent_aggregator, rows, windows)
    at_classes = rows[0, per_latent :: per_latent + 1]
    moments = at_classes @ tensors[f"{prefix}fc3.weight"].T + tensors[f"{prefix}fc3.bias"]
    mean, scale = moments.chunk(2, -1)
    return mean.numpy(), (softplus(scale) + 1e-4).numpy()


def stack(
    tensors: Tensors, prefix: str, s: TransformerSizes, x: Tensor, windows: list[int | None]
) -> Tensor:
    """A Qwen2 stack over all of x (1, rows, hidden) at once."""
    count = x.shape[1]
    distance = torch.arange(count)[:, None] - torch.arange(count)
    frequencies = BASE ** -(torch.arange(0, s.head_dim, 2) / s.head_dim)
    angles = torch.outer(torch.arange(count).float(), frequencies).repeat(1, 2)

    def heads(name: str, normed: Tensor, number: int) -> Tensor:
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        return (normed @ weight.T + bias).view(count, number, s.head_dim).transpose(0, 1)

    def turned(row: Tensor) -> Tensor:
        half = s.head_dim // 2
        return (
            row * angles.cos() + torch.cat((-row[..., half:], row[..., :half]), -1) * angles.sin()
        )

    for index, window in enumerate(windows):
        layer = f"{prefix}layers.{index}."
        normed = rms_norm(x, (s.hidden,), tensors[f"{layer}input_layernorm.weight"], EPSILON)[0]
        query = turned(heads(f"{layer}self_attn.q_proj", normed, s.heads))
        key = turned(heads(f"{layer}self_attn.k_proj", normed, s.kv_heads))
        value = heads(f"{layer}self_attn.v_proj", normed, s.kv_heads)
        key, value = (part.repeat_interleave(s.heads // s.kv_heads, 0) for part in (key, value))
        seen = (distance >= 0) & (distance < (count if window is None else window))
        scores = (query @ key.transpose(1, 2) * s.head_dim**-0.5).masked_fill(~seen, -torch.inf)
        attended = (scores.softmax(-1) @ value).transpose(0, 1).reshape(1, count, -1)
        x = x + attended @ tensors[f"{layer}self_attn.o_proj.weight"].T
        normed = rms_norm(
            x, (s.hidden,), tensors[f"{layer}post_attention_layernorm.weight"], EPSILON
        )
        gate = silu(normed @ tensors[f"{layer}mlp.gate_proj.weight"].T)
        up = normed @ tensors[f"{layer}mlp.up_proj.weight"].T
        x = x + (gate * up) @ tensors[f"{layer}mlp.down_proj.weight"].T
    return rms_norm(x, (s.hidden,), tensors[f"{prefix}norm.weight"], EPSILON)


WINDOW = 6
#: By attention rule and first windowed layer: FlashAttention-2 counts the keys before a query's
#: own, sdpa its own too and in every layer.
RULES: dict[str, tuple[dict[str, Any], list[int | None]]] = {
    "none": ({"use_sliding_window": False}, [None] * 4),
    "all layers": ({"max_window_layers": 0}, [WINDOW + 1] * 4),
    "later layers": ({"max_window_layers": 2}, [None, None, WINDOW + 1, WINDOW + 1]),
    "sdpa": ({"max_window_layers": 2, "_attn_implementation": "sdpa"}, [WINDOW] * 4),
}


def _only_the_encoder(geometry: Geometry) -> list[GraphSource]:
    return [source for source in graph_sources(geometry) if source.spec.name == AUDIO_ENCODER]


@pytest.mark.parametrize("rule", ["later layers", "sdpa"])
def test_sliding_windows(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """Forty latents, exported, built and run in calls with rings, against one mask over all."""
    options, windows = RULES[rule]
    backbone = config["audio_tokenizer_config"]["enc_kwargs"]["backbone"]
    backbone |= {"use_sliding_window": True, "sliding_window": WINDOW} | options
    write_random_checkpoint(tmp_path / "checkpoint", config, dtype="float32")
    audio = Checkpoint.open(tmp_path / "checkpoint").sizes.audio
    wave = 0.3 * np.random.default_rng(1).standard_normal(40 * 4 * audio.encoder_hop)
    wave = wave.astype(np.float32)
    tensors = load_file(tmp_path / "checkpoint" / "model.safetensors")
    expected = {
        name: by_definition(tensors, audio, wave, windows if name == rule else row[1])
        for name, row in RULES.items()
    }
    monkeypatch.setattr("export.export_plan.graph_sources", _only_the_encoder)
    bundle = export_checkpoint(tmp_path / "checkpoint", tmp_path / "bundle")
    engines = build_engines(bundle, tmp_path / "engines")
    manifest = read_manifest(engines)
    mean, std = encode_wave(CpuBackend(engines, manifest), manifest.geometry, wave)
    for name, (other_mean, other_std) in expected.items():
        if name == rule:
            assert_close(mean, other_mean, "mean")
            assert_close(std, other_std, "std")
        else:
            assert relative_error(mean, other_mean) > 1e-3, f"{rule} and {name} are one"
