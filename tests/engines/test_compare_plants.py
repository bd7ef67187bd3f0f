"""Twenty mistakes, chosen by a seed among all parameters and all norms: each must be found.

A tensor, or one number of it, is multiplied by 1.01; a norm is computed in float16.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Folders
from tests.engines.comparing import status_of
from tests.engines.plants import copied, norms, parameters, plant, plant_float16_norm
from trt_runtime.manifest import read_manifest

SEED = 7
TENSORS, NUMBERS, NORMS = 10, 5, 5
#: What the exporter calls its own; all that a norm is computed in lies in one of these.
GRAPHS = (
    "talker_1",
    "talker_64",
    "flow_step",
    "flow_advance",
    "tail",
    "audio_decoder",
    "audio_encoder",
)


def found_in(a: Path, b: Path, folder: Path) -> dict[str, Any]:
    """The report of a comparison that must fail."""
    report = folder / "report.json"
    assert status_of(a, b, "--steps", "1", "--isolate", "--json", report) == 1
    loaded: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    assert not loaded["passed"]
    return loaded


def reading(report: dict[str, Any], parameter: str) -> list[str]:
    """The nodes found by bisection that read the parameter."""
    return [
        node["name"]
        for finding in report["isolated"]
        for node in finding["b"]
        if parameter in node["initializers"]
    ]


@pytest.fixture
def bundle(request: pytest.FixtureRequest, index: int) -> Path:
    """Of the dense model and of the mixture of experts in turns."""
    folders: Folders = request.getfixturevalue(("dense", "moe")[index % 2])
    return folders.bundle


@pytest.mark.parametrize("index", range(TENSORS))
def test_a_tensor_times_1_01_is_found(bundle: Path, index: int, tmp_path: Path) -> None:
    stored = parameters(bundle)
    name = random.Random(SEED + index).choice(sorted(stored))
    wrong = copied(bundle, tmp_path / "wrong")
    assert plant(wrong, stored[name], lambda values: values * 1.01)
    report = found_in(bundle, wrong, tmp_path)
    component = name.split(".")[0]
    assert report["components"]
    assert component in {row["component"] for row in report["weights"]}
    assert [row["name"] for row in report["weights"]] == [name]
    # Also by what it does, and not by its bytes alone; and nothing else is blamed.
    probed = {
        row["component"]
        for row in report["rows"]
        if not row["good"] and row["measured"] not in ("weights", "loop")
    }
    users = {g.component for g in read_manifest(bundle).graphs.values() if name in g.initializers}
    assert probed
    assert probed <= users
    assert reading(report, name), report["isolated"]


@pytest.mark.parametrize("index", range(NUMBERS))
def test_one_number_times_1_01_is_found(bundle: Path, index: int, tmp_path: Path) -> None:
    stored = parameters(bundle)
    chosen = random.Random(SEED + 100 + index)
    name = chosen.choice(sorted(stored))
    wrong = copied(bundle, tmp_path / "wrong")

    def change(values: np.ndarray) -> np.ndarray:
        place = chosen.choice(np.flatnonzero(values).tolist())
        values[place] *= 1.01
        return values

    assert plant(wrong, stored[name], change) == 1
    report = found_in(bundle, wrong, tmp_path)
    assert [(row["name"], row["differing"]) for row in report["weights"]] == [(name, 1)]
    assert name.split(".")[0] in report["components"]
    # A row of a table that no input looks up is read by its node all the same.
    assert report["readers"][name]
    apart = [finding for finding in report["isolated"] if finding["tensor"]]
    assert not apart or reading(report, name)


@pytest.mark.parametrize("index", range(NORMS))
def test_a_norm_in_float16_is_found(bundle: Path, index: int, tmp_path: Path) -> None:
    chosen = random.Random(SEED + 200 + index)
    graph = chosen.choice(GRAPHS)
    wrong = copied(bundle, tmp_path / "wrong")
    chain = plant_float16_norm(wrong, graph, chosen.choice(norms(bundle, graph)))
    report = found_in(bundle, wrong, tmp_path)
    assert report["components"] == [read_manifest(bundle).graphs[graph].component]
    (finding,) = [f for f in report["isolated"] if f["tensor"]]
    assert finding["graph"] == graph
    named = [node["name"] for node in finding["b"]]
    assert named
    assert set(named) <= set(chain)
    assert finding["error_before"] == 0.0
    assert finding["error_alone"] > 1e-5
