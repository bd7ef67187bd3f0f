"""PyTorch behind the backend's interface: what a checkpoint is compared by."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engines.comparison.inputs import seeded_inputs
from engines.comparison.metrics import relative_error
from engines.comparison.probes import PROBES, walk
from engines.comparison.sides import Side
from engines.comparison.torch_reference import TorchBackend
from export.checkpoint import Checkpoint
from export.geometry import ExportOptions, geometry_of
from tests.conftest import Folders
from tests.goldens import dense_checkpoint, moe_checkpoint
from trt_runtime.contract import TAIL, TensorSpec
from trt_runtime.folder import OpenFolder
from trt_runtime.manifest import read_manifest
from trt_runtime.synthesizer import Synthesizer

SMALL = ExportOptions(cache_length=256, max_steps=40, max_reference_latents=32)


def reference(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> Side:
    geometry = geometry_of(checkpoint.sizes, SMALL)
    backend = TorchBackend(checkpoint, geometry, dtype=dtype)
    return Side("A", checkpoint.path, "checkpoint", "", geometry, backend, checkpoint=checkpoint)


@pytest.fixture(scope="module", params=["dense", "moe"])
def checkpoint(request: pytest.FixtureRequest) -> Checkpoint:
    folder = dense_checkpoint() if request.param == "dense" else moe_checkpoint()
    return Checkpoint.open(folder)


def test_a_slot_is_what_it_is_alone(checkpoint: Checkpoint) -> None:
    side = reference(checkpoint)
    inputs = seeded_inputs(side.geometry, side.geometry, 0)
    feed = walk(side, inputs)
    for name in ("talker_decode", "flow"):
        alone = {
            key: values[:, :1] if key not in ("prompts", "lengths") else values[:1]
            for key, values in feed.items()
            if key in PROBES[name].inputs
        }
        (every,) = PROBES[name].run(side, feed).values()
        (first,) = PROBES[name].run(side, alone).values()
        assert relative_error(first, every[:, :1]) <= 2e-6


def test_bfloat16_is_near_and_is_not_float32(checkpoint: Checkpoint) -> None:
    """The peer of the full-size benchmark."""
    side, low = reference(checkpoint), reference(checkpoint, torch.bfloat16)
    feed = walk(side, seeded_inputs(side.geometry, side.geometry, 0))
    probe = PROBES["flow"]
    wanted, found = probe.run(side, feed)["patch"], probe.run(low, feed)["patch"]
    assert 1e-4 < relative_error(found, wanted) < 0.1
    hidden = PROBES["talker_decode"].run(low, feed)["hidden"]
    assert np.isfinite(hidden).all()


def test_it_speaks(dense: Folders, dense_engines: OpenFolder) -> None:
    manifest = read_manifest(dense.bundle)
    backend = TorchBackend(Checkpoint.open(dense.checkpoint), manifest.geometry, threads=1)
    options = {"seed": 3, "max_steps": 4, "min_steps": 4, "trace": True}
    spoken = Synthesizer(OpenFolder(dense.bundle, manifest, backend)).synthesize(
        "Hello.", **options
    )
    wanted = Synthesizer(dense_engines).synthesize("Hello.", **options)
    assert spoken.trace is not None
    assert wanted.trace is not None
    assert relative_error(spoken.trace.latents, wanted.trace.latents) <= 1e-4
    assert relative_error(spoken.audio, wanted.audio) <= 1e-4


def test_its_buffers_are_rows_of_one_memory(checkpoint: Checkpoint) -> None:
    backend = reference(checkpoint).backend
    spec = TensorSpec("x", "float32", (1, 4), by_slot=True)
    buffer = backend.buffer(spec, 3)
    buffer.write(1.0)
    buffer.write_slot(1, np.arange(4))
    buffer.copy_slot(1, 2)
    np.testing.assert_array_equal(buffer.read(), [[1] * 4, [0, 1, 2, 3], [0, 1, 2, 3]])
    row = buffer.rows(spec.sized(1), 2)  # type: ignore[attr-defined]
    row.write(5.0)
    assert (buffer.read()[2] == 5).all()
    with pytest.raises(ValueError, match="does not fit"):
        buffer.rows(spec.sized(2), 2)  # type: ignore[attr-defined]
    assert not backend.has(TAIL)
