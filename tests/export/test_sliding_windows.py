"""Sliding windows of the audio decoder, exported, built and run, under both attention rules.

Which rule the release follows depends on the attention implementation its config names: the
reference recorded FlashAttention-2 (window + 1 keys, layers from max_window_layers on) and the
sdpa rule (window keys, every layer).
"""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from engines import build_engines
from export.bundle import export_checkpoint
from export.graphs import GraphSource
from tests.goldens import assert_close, dense_checkpoint, load_json, load_npz
from trt_runtime.audio_decoder import AudioDecoder
from trt_runtime.backends.onnxruntime_cpu import CpuBackend
from trt_runtime.contract import AUDIO_DECODER
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import read_manifest

ARRAYS = load_npz("dense_vae")
WINDOW = load_json("dense_vae")["meta"]["sliding_window"]
RULES = {"fa2": "flash_attention_2", "sdpa": "sdpa"}
CASES = sorted({name.split("/")[1] for name in ARRAYS if name.startswith("sliding/fa2")}) + [
    name for name in ("sdpa_maxwin1",) if f"sliding/{name}/wave" in ARRAYS
]


def _only_the_decoder(geometry: Geometry) -> list[GraphSource]:
    from export.graphs import graph_sources

    return [source for source in graph_sources(geometry) if source.spec.name == AUDIO_DECODER]


@pytest.mark.parametrize("case", CASES)
def test_windowed_decoder(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, _, first_layer = case.partition("_maxwin")
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(dense_checkpoint(), checkpoint, copy_function=shutil.copy)
    config = json.loads((checkpoint / "config.json").read_text())
    config["audio_tokenizer_config"]["dec_kwargs"]["backbone"] |= {
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": int(first_layer),
        "_attn_implementation": RULES[rule],
    }
    (checkpoint / "config.json").chmod(0o644)
    (checkpoint / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("export.export_plan.graph_sources", _only_the_decoder)
    bundle = export_checkpoint(checkpoint, tmp_path / "bundle")
    engines = build_engines(bundle, tmp_path / "engines")
    manifest = read_manifest(engines)
    # Not open_folder: it would refuse a folder that cannot speak.
    backend = CpuBackend(engines, manifest)
    latents = ARRAYS["sliding/latent"]
    for name, pieces in (("wave", [len(latents)]), ("stream", [4, 3])):
        expected = ARRAYS.get(f"sliding/{case}/{name}")
        if expected is None:
            continue
        decoder = AudioDecoder(backend, manifest.geometry)
        ends = np.cumsum([0, *pieces])
        audio = [
            decoder.decode(latents[start:end], last=end == len(latents))
            for start, end in pairwise(ends)
        ]
        assert_close(np.concatenate(audio), expected, f"{case} {name}")


def test_the_rules_differ() -> None:
    """A decoder that ignored windows would match none of these."""
    waves = [ARRAYS[f"sliding/{case}/wave"] for case in CASES]
    for a in range(len(waves)):
        for b in range(a):
            assert np.abs(waves[a] - waves[b]).max() > 1e-3 * np.abs(waves[a]).max()
