"""Folders that many tests speak from, each made once a session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engines import build_engines
from export import export_checkpoint
from export.synthetic import write_random_checkpoint
from tests.export import small_random
from tests.goldens import dense_checkpoint, moe_checkpoint
from trt_runtime.folder import EMBEDDED, OpenFolder, open_folder
from trt_runtime.synthesizer import Synthesizer, load


@dataclass(frozen=True)
class Folders:
    """A checkpoint and what was made of it."""

    checkpoint: Path
    bundle: Path
    engines: Path


def _made(checkpoint: Path, folder: Path) -> Folders:
    bundle = export_checkpoint(checkpoint, folder / "bundle")
    return Folders(checkpoint, bundle, build_engines(bundle, folder / "engines"))


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """The goldens' dense checkpoint, exported and built as a user would."""
    return _made(dense_checkpoint(), tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="session")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """The goldens' mixture of experts, exported and built as a user would."""
    return _made(moe_checkpoint(), tmp_path_factory.mktemp("moe"))


@pytest.fixture(scope="module", params=["dense", "moe"])
def folders(request: pytest.FixtureRequest) -> Folders:
    """The goldens' dense checkpoint, then their mixture of experts."""
    made: Folders = request.getfixturevalue(request.param)
    return made


@pytest.fixture(scope="session")
def moe_engines(moe: Folders) -> OpenFolder:
    return open_folder(moe.engines)


@pytest.fixture(scope="session")
def dense_engines(dense: Folders) -> OpenFolder:
    return open_folder(dense.engines)


@pytest.fixture(scope="session")
def random_engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Engines with the released models' rate and patches, and random weights."""
    folder = tmp_path_factory.mktemp("random")
    write_random_checkpoint(
        folder / "checkpoint", small_random.CONFIG, seed=small_random.SEED,
        stop_bias=small_random.STOP_BIAS,
    )  # fmt: skip
    return build_engines(folder / "checkpoint", folder / "engines")


@pytest.fixture(scope="session")
def demo_engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Engines of the embedded default."""
    return build_engines(EMBEDDED, tmp_path_factory.mktemp("demo") / "engines")


@pytest.fixture(scope="session")
def demo(demo_engines: Path) -> Iterator[Synthesizer]:
    with load(demo_engines) as synthesizer:
        yield synthesizer
