"""Where the recorded outputs of the reference lie, and how tests read them.

The full set is not part of the repository. Its folder is MING_TRT_GOLDENS, or `../shared/goldens`
beside the clone; without either, the few cases under `tests/data/goldens` are used, so that a
stranger's clone tests itself against the reference too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

#: Largest max |ours - reference| / max |reference|. The reference was recorded in float32; another
#: order of float32 sums moves these arrays by some 1e-6 (the goldens' README), and a perturbation
#: of 1e-6 in every hidden state moves latents by less than 7e-6. Wrong arithmetic is off by 1e-2.
RELATIVE_ERROR = 1e-4

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "goldens"
_OWN = Path(__file__).resolve().parent / "data" / "goldens"

GOLDENS = Path(os.environ.get("MING_TRT_GOLDENS") or (_BESIDE if _BESIDE.is_dir() else _OWN))
OMNI_TTS = GOLDENS / "ming-omni-tts"

#: Whether the full set is there, and not only the cases of this repository.
FULL = GOLDENS.resolve() != _OWN

needs_goldens = pytest.mark.skipif(
    not FULL, reason="needs the full set of goldens (set MING_TRT_GOLDENS)"
)


def load_npz(name: str) -> dict[str, np.ndarray]:
    """Every array of `goldens/NAME.npz` of the ming-omni-tts set, by its `case/array` name."""
    with np.load(OMNI_TTS / "goldens" / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def load_json(name: str) -> Any:
    """`goldens/NAME.json` of the ming-omni-tts set."""
    return json.loads((OMNI_TTS / "goldens" / f"{name}.json").read_text(encoding="utf-8"))


def cases(arrays: dict[str, np.ndarray]) -> list[str]:
    """The case names of a file's arrays, in order."""
    return list(dict.fromkeys(name.split("/")[0] for name in arrays if "/" in name))


def dense_checkpoint() -> Path:
    """The checkpoint folder that the `dense_` files were recorded with."""
    return checkpoints("dense")[0]


def moe_checkpoint() -> Path:
    """The checkpoint folder, in one file, that the `moe_` files were recorded with."""
    return min(checkpoints("bailingmm"), key=lambda folder: len(list(folder.iterdir())))


def checkpoints(model_type: str) -> list[Path]:
    """The checkpoint folders of a family, as its config.json names it."""
    return [
        config.parent
        for config in sorted(OMNI_TTS.glob("*/config.json"))
        if json.loads(config.read_text(encoding="utf-8")).get("model_type") == model_type
    ]


def relative_error(actual: np.ndarray, reference: np.ndarray) -> float:
    """max |actual - reference| / max |reference| over arrays of one shape; infinite otherwise."""
    if np.shape(actual) != np.shape(reference):
        return float("inf")
    difference = np.abs(np.asarray(actual, np.float64) - reference).max(initial=0.0)
    scale = np.abs(reference).max(initial=0.0)
    return float(difference / scale) if scale else float(difference)


def assert_close(actual: np.ndarray, reference: np.ndarray, what: str) -> None:
    error = relative_error(actual, reference)
    shapes = f"shapes {np.shape(actual)} and {np.shape(reference)}"
    assert error <= RELATIVE_ERROR, f"{what}: relative error {error:.2e}, {shapes}"
