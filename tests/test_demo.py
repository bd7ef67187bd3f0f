"""The embedded default: a small trained voice, the same from checkpoint and bundle, understood."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

import trt_runtime
from benchmarks.recognition import Recogniser
from benchmarks.word_errors import word_errors, words
from engines import build_engines
from trt_runtime.folder import EMBEDDED
from trt_runtime.manifest import read_manifest
from trt_runtime.synthesizer import Synthesizer

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / "examples" / "demo-checkpoint"
TEXT = "The same samples both ways."

#: What the two folders may take of a clone together.
LIMIT = 32_000_000

SAID = (
    "Good morning. The voice in this box was made in a few minutes.",
    "The committee voted to close the old school and build a new library near the river.",
    "THE SHIP SAILED INTO THE HARBOR AT SUNSET.",
    "In 1984 the price was forty dollars.",
)
#: The recogniser errs too: it gets some 17 of 100 words of the source wrong, of these fewer.
MOST_ERRORS = 0.15


def test_checkpoint_and_bundle_are_small() -> None:
    folders = (CHECKPOINT, EMBEDDED)
    assert sum(path.stat().st_size for folder in folders for path in folder.iterdir()) <= LIMIT


def test_from_the_checkpoint_as_from_the_bundle(tmp_path: Path, demo_engines: Path) -> None:
    """`make demo-export` against `make demo`: equal samples, bit for bit."""
    engines = build_engines(CHECKPOINT, tmp_path / "engines")
    ours, theirs = (
        trt_runtime.synthesize(TEXT, engines=folder, seed=4) for folder in (engines, demo_engines)
    )
    np.testing.assert_array_equal(ours.audio, theirs.audio)
    digests = {read_manifest(f).source["tensors_sha256"] for f in (engines, EMBEDDED)}
    assert len(digests) == 1


@pytest.mark.parametrize("voice", [None, "rms", "slt"])
def test_its_words_are_heard(demo: Synthesizer, voice: str | None) -> None:
    recogniser = Recogniser()
    errors = count = 0
    for text in SAID:
        speech = demo.synthesize(text, voice=voice, seed=1)
        assert speech.finish_reason == "stop"
        said = words(text.replace("1984", "nineteen eighty four"))
        errors += word_errors(said, recogniser.words(speech.audio, speech.sample_rate))
        count += len(said)
    assert errors / count <= MOST_ERRORS


@pytest.mark.parametrize("seed", range(3))
def test_it_speaks_for_a_plausible_time(demo: Synthesizer, seed: int) -> None:
    """Ten words take some four seconds."""
    speech = demo.synthesize("The weather is fine today, and so is the sea.", seed=seed)
    assert speech.finish_reason == "stop"
    assert 2.0 < speech.duration < 5.0
    assert 0.1 < np.abs(speech.audio).max() <= 1.0


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == trt_runtime.__version__
    assert read_manifest(EMBEDDED).producer["ming-trt"] == trt_runtime.__version__


def test_it_says_what_it_is() -> None:
    """Whoever forgets --engines must not take it for the model."""
    options = {"max_steps": 2}
    whole = trt_runtime.synthesize("Hello.", **options)
    *_, last = trt_runtime.stream("Hello.", **options)
    assert "not Ming's weights" in " ".join(whole.warnings)
    assert last.warnings == whole.warnings
