"""A talker's sizes in a manifest: the same after a round trip, and nothing of a wrong kind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trt_runtime.errors import FolderError, UserError
from trt_runtime.folder import EMBEDDED
from trt_runtime.manifest import MANIFEST, read_manifest
from trt_runtime.talker_kernels import kernel_sizes
from trt_runtime.transformer_sizes import ExpertSizes, TransformerSizes

DENSE = TransformerSizes(
    hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate=96, rope_theta=1e6,
    rms_eps=1e-6, vocab_size=300, window=(None, 16),
)  # fmt: skip
MOE = replace(
    DENSE, window=(None, None), qkv_bias=False, experts=ExpertSizes(8, 2, 32, normalized=True)
)


@pytest.mark.parametrize("sizes", [DENSE, MOE])
def test_sizes_come_back_as_they_were(sizes: TransformerSizes) -> None:
    assert TransformerSizes.from_json(json.loads(json.dumps(sizes.to_json()))) == sizes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden", "64"),
        ("layers", 0),
        ("heads", True),
        ("kv_heads", 2.0),
        ("rope_theta", "1e6"),
        ("rms_eps", 0),
        ("rms_eps", float("nan")),
        ("window", None),
        ("window", [None]),
        ("window", [None, -1]),
        ("qkv_bias", 1),
        ("experts", "none"),
        ("experts", {"count": 8}),
        ("experts", {"count": 8, "chosen": 2, "intermediate": 32, "normalized": 1}),
    ],
)
def test_sizes_of_a_wrong_kind_are_damage(tmp_path: Path, name: str, value: Any) -> None:
    _write(tmp_path, lambda entry: entry["sizes"].__setitem__(name, value))
    with pytest.raises(FolderError, match="is damaged"):
        read_manifest(tmp_path)


def _write(folder: Path, change: Any) -> None:
    """The embedded bundle's manifest with another entry of its talker."""
    data = json.loads((EMBEDDED / MANIFEST).read_text(encoding="utf-8"))
    change(data["components"]["talker"])
    (folder / MANIFEST).write_text(json.dumps(data), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda e: e.pop("sizes"), "sizes"),
        (lambda e: e.pop("backend"), "backend"),
        (lambda e: e.update(backend=None), "not text"),
        (lambda e: e.update(tensors={"w": ["no.weights", "float32", [1], 0, 4]}), "does not list"),
        (lambda e: e.update(tensors={"w": ["talker.weights", "float32", [2], 0, 4]}), "wrong size"),
        (lambda e: e.update(tensors={"w": ["../w", "float32", [1], 0, 4]}), "plain file name"),
        (
            lambda e: e.update(tensors={"w": ["talker.weights", "float32", [1], 1 << 40, 4]}),
            "ends past",
        ),
    ],
)
def test_components_of_a_wrong_kind_are_damage(tmp_path: Path, change: Any, said: str) -> None:
    _write(tmp_path, change)
    with pytest.raises(FolderError, match=rf"is damaged(?s:.*){said}"):
        read_manifest(tmp_path)


def test_a_manifest_without_components_is_damaged(tmp_path: Path) -> None:
    data = json.loads((EMBEDDED / MANIFEST).read_text(encoding="utf-8"))
    del data["components"]
    (tmp_path / MANIFEST).write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(FolderError, match=r"damaged(?s:.*)components"):
        read_manifest(tmp_path)


def test_the_kernels_take_what_they_have_and_name_what_they_have_not() -> None:
    sizes = kernel_sizes(MOE)
    assert sizes.experts is not None
    assert (sizes.hidden, sizes.experts.count, sizes.qkv_bias) == (64, 8, False)
    with pytest.raises(UserError, match=r"sliding window(?s:.*)a window in layer 1\b"):
        kernel_sizes(DENSE)
    with pytest.raises(UserError, match="does not say the sizes"):
        kernel_sizes(None)
