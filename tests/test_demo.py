"""The embedded default: small, reproducible, and the same from checkpoint and bundle."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

import trt_runtime
from engines import build_engines
from examples.make_demo_checkpoint import CONFIG, SEED, STOP_BIAS
from export.synthetic import write_random_checkpoint
from trt_runtime.folder import EMBEDDED
from trt_runtime.manifest import read_manifest

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / "examples" / "demo-checkpoint"
TEXT = "The same samples both ways."


def test_checkpoint_and_bundle_are_small() -> None:
    for folder in (CHECKPOINT, EMBEDDED):
        assert sum(path.stat().st_size for path in folder.iterdir()) < 4_000_000


def test_the_script_makes_this_checkpoint(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "demo", CONFIG, seed=SEED, stop_bias=STOP_BIAS)
    for path in CHECKPOINT.iterdir():
        assert (tmp_path / "demo" / path.name).read_bytes() == path.read_bytes(), path.name


def test_from_the_checkpoint_as_from_the_bundle(tmp_path: Path, demo_engines: Path) -> None:
    """`make demo-export` against `make demo`: equal samples, bit for bit."""
    engines = build_engines(CHECKPOINT, tmp_path / "engines")
    ours, theirs = (
        trt_runtime.synthesize(TEXT, engines=folder, seed=4) for folder in (engines, demo_engines)
    )
    np.testing.assert_array_equal(ours.audio, theirs.audio)
    digests = {read_manifest(f).source["tensors_sha256"] for f in (engines, EMBEDDED)}
    assert len(digests) == 1


@pytest.mark.parametrize("seed", range(3))
def test_it_speaks_for_a_plausible_time(seed: int) -> None:
    """Random weights, but a length, a level and an end like speech."""
    speech = trt_runtime.synthesize("Hello. This is Ming T R T.", seed=seed)
    assert speech.finish_reason == "stop"
    assert 1.0 < speech.duration < 15.0
    assert 0.02 < np.abs(speech.audio).max() < 1.0


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == trt_runtime.__version__
    assert read_manifest(EMBEDDED).producer["ming-trt"] == trt_runtime.__version__


def test_it_says_that_it_is_noise() -> None:
    """Whoever forgets --engines must not have to listen to find out."""
    options = {"max_steps": 2}
    whole = trt_runtime.synthesize("Hello.", **options)
    *_, last = trt_runtime.stream("Hello.", **options)
    assert "random weights" in " ".join(whole.warnings)
    assert last.warnings == whole.warnings
