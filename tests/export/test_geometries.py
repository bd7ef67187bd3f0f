"""Models of unusual geometry, exported, built and spoken, against an independent audio decoder.

The reference here is written from the definition with other libraries' parts: transformers' Qwen2,
torch's interpolation and overlap-add, NumPy's inverse FFT, over the whole signal at once.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2Model

from engines import build_engines
from export import ExportOptions, export_checkpoint
from export.checkpoint import Checkpoint
from export.graphs import GraphSource, graph_sources
from export.synthetic import write_random_checkpoint
from tests.goldens import assert_close
from trt_runtime.contract import TAIL
from trt_runtime.geometry import Geometry
from trt_runtime.synthesizer import load

#: Patch, history, frames a latent (-1: no upsampling), hop: odd, even, one, and history < patch.
GEOMETRIES = {
    "Ming-3.0: one latent a step": {"patch": 1, "history": 1, "frames": 4, "hop": 16},
    "no upsampling": {"patch": 3, "history": 6, "frames": -1, "hop": 10},
    "odd upsampling, short history": {"patch": 3, "history": 2, "frames": 3, "hop": 12},
    "windowed decoder": {"patch": 2, "history": 5, "frames": 5, "hop": 8, "window": 9},
}


def config_of(base: dict[str, Any], geometry: dict[str, int]) -> dict[str, Any]:
    config = copy.deepcopy(base)
    audio, flow = config["audio_tokenizer_config"], config["ditar_config"]
    audio["patch_size"] = geometry["frames"]
    audio["enc_kwargs"] |= {"input_dim": geometry["hop"], "hop_size": geometry["hop"]}
    audio["dec_kwargs"]["output_dim"] = geometry["hop"]
    flow |= {"patch_size": geometry["patch"], "history_patch_size": geometry["history"]}
    if "window" in geometry:
        audio["dec_kwargs"]["backbone"] = audio["dec_kwargs"]["backbone"] | {
            "use_sliding_window": True,
            "sliding_window": geometry["window"],
            "layer_types": ["full_attention", "sliding_attention"],
            "_attn_implementation": "sdpa",
        }
    return config


@torch.no_grad()
def whole_decode(checkpoint: Path, latents: np.ndarray) -> np.ndarray:
    """latents: (T, latent_dim) to audio, from the checkpoint's tensors by their released names."""
    opened = Checkpoint.open(checkpoint)
    audio = opened.config["audio_tokenizer_config"]
    prefix = "audio.decoder."

    def tensor(name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(opened.read(prefix + name), np.float32))

    backbone = audio["dec_kwargs"]["backbone"]
    qwen2 = Qwen2Config(**{k: v for k, v in backbone.items() if not k.startswith("_")})
    qwen2._attn_implementation = "sdpa"
    model = Qwen2Model(qwen2).eval()
    names = [name for name, _ in model.named_parameters()]
    model.load_state_dict({name: tensor(f"decoder.{name}") for name in names})
    x = torch.from_numpy(latents) @ tensor("fc1.weight").T + tensor("fc1.bias")
    if audio["patch_size"] > 1:
        x = torch.nn.functional.interpolate(
            x.T[None], scale_factor=audio["patch_size"], mode="linear", align_corners=False
        )[0].T
    hidden = model(inputs_embeds=x[None]).last_hidden_state[0]
    spectrum = (hidden @ tensor("head.out.weight").T + tensor("head.out.bias")).numpy()
    magnitude, phase = np.split(spectrum.astype(np.float64), 2, axis=-1)
    spectra = np.minimum(np.exp(magnitude), 100) * np.exp(1j * phase)
    window = tensor("head.istft.window").numpy().astype(np.float64)
    hop, size = audio["dec_kwargs"]["output_dim"], len(window)
    length = (len(spectra) - 1) * hop + size
    total, weight = np.zeros(length), np.zeros(length)
    for frame, values in enumerate(np.fft.irfft(spectra, n=size)):
        total[frame * hop : frame * hop + size] += values * window
        weight[frame * hop : frame * hop + size] += window**2
    trim = (size - hop) // 2
    return (total[trim:-trim] / weight[trim:-trim]).astype(np.float32)


def _without_the_unrolled_tail(geometry: Geometry) -> list[GraphSource]:
    """The slowest graph to trace, and the one that a CPU leaves out."""
    return [source for source in graph_sources(geometry) if source.spec.name != TAIL]


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometry(
    name: str, config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.export_plan.graph_sources", _without_the_unrolled_tail)
    geometry = GEOMETRIES[name]
    checkpoint = tmp_path / "checkpoint"
    write_random_checkpoint(checkpoint, config_of(config, geometry), seed=5)
    options = ExportOptions(cache_length=512, max_steps=24, prefill_chunks=(16,))
    bundle = export_checkpoint(checkpoint, tmp_path / "bundle", options=options)
    with load(build_engines(bundle, tmp_path / "engines")) as speaker:
        speech = speaker.synthesize("Odd sizes.", max_steps=20, min_steps=20, trace=True)
        assert speech.trace is not None
        assert speech.trace.latents.shape == (20, geometry["patch"], speaker.geometry.latent_dim)
        latents = speech.trace.latents.reshape(-1, speaker.geometry.latent_dim)
        samples = len(latents) * abs(geometry["frames"]) * geometry["hop"]
        assert len(speech.audio) == samples
        assert_close(speech.audio, whole_decode(checkpoint, latents), name)
        for chunk_patches in (1, 2, 3, 7, 20):
            chunks = speaker.stream(
                "Odd sizes.", max_steps=20, min_steps=20, chunk_patches=chunk_patches
            )
            streamed = np.concatenate([chunk.audio for chunk in chunks])
            np.testing.assert_array_equal(streamed, speech.audio)
