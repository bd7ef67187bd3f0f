"""Engine folders of fake engines, opened over the fakes of CUDA and of the library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.trt_runtime.backends.engine_folders import write_folder
from tests.trt_runtime.backends.fake_cuda import FakeCuda
from tests.trt_runtime.backends.fake_tensorrt import State, fake_library
from trt_runtime.backends.tensorrt import TensorrtBackend
from trt_runtime.folder import OpenFolder
from trt_runtime.manifest import read_manifest


@dataclass
class Opened:
    """A folder of fake engines, opened, with the fakes."""

    folder: OpenFolder
    backend: TensorrtBackend
    cuda: FakeCuda
    state: State


def open_fake(bundle: Path, folder: Path, target: str = "tensorrt-rtx", **how: Any) -> Opened:
    """Writes the folder and opens it; `how` as in `write_folder`."""
    return reopen(write_folder(bundle, folder, target=target, **how))


def reopen(folder: Path, *failing: str) -> Opened:
    """Opens a folder that is there, with methods of the library that fail."""
    cuda, manifest = FakeCuda(), read_manifest(folder)
    library, state = fake_library(cuda, manifest.target)
    state.failing |= set(failing)
    backend = TensorrtBackend(folder, manifest, library=library, cuda=cuda)
    return Opened(OpenFolder(folder, manifest, backend, 1), backend, cuda, state)
