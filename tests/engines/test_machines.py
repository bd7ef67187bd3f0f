"""What a manifest says of the machine, and what of it makes engines others."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from engines import machines
from engines.cache import BuildSettings
from engines.options import BuildOptions
from engines.targets import find_target
from engines.tensorrt_build import TIMING_CACHE, _timing_cache
from tests.conftest import Folders
from trt_runtime import tensorrt_check
from trt_runtime.cuda_devices import CudaDevice
from trt_runtime.errors import UserError
from trt_runtime.manifest import read_manifest
from trt_runtime.tensorrt_library import Library

ADA, TURING = (
    CudaDevice("NVIDIA L4", "8.9", 24 << 30),
    CudaDevice("NVIDIA T4", "7.5", 16 << 30),
)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT as if it were installed: what is asked of it here is its name and version."""
    monkeypatch.setattr(
        machines, "load_library", lambda target: Library(target, "tensorrt", "11.4.1", None, None)
    )


def present(monkeypatch: pytest.MonkeyPatch, *devices: CudaDevice, **options: Any) -> Any:
    monkeypatch.setattr(machines, "cuda_devices", lambda: list(devices))
    return find_target("tensorrt").describe_machine(BuildOptions(**options)).described


@pytest.mark.usefixtures("library")
def test_tensorrt_builds_for_the_gpu_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    described = present(monkeypatch, ADA)
    assert described["compute_capability"] == "8.9"
    assert described["compute_capabilities"] == ["8.9"]
    assert described["hardware_compatibility"] == "none"
    assert (described["library"], described["library_version"]) == ("tensorrt", "11.4.1")
    with pytest.raises(UserError, match=r"GPU that is here[\s\S]*tensorrt-rtx or cuda"):
        present(monkeypatch)


@pytest.mark.usefixtures("library")
def test_ampere_and_later(monkeypatch: pytest.MonkeyPatch, dense: Folders) -> None:
    described = present(monkeypatch, ADA, ampere_and_later=True)
    assert described["compute_capability"] == "8.0"
    assert "compute_capabilities" not in described
    with pytest.raises(UserError, match=r"7\.5"):
        present(monkeypatch, TURING, ampere_and_later=True)
    # And the runtime takes what is written so: a form that both know.
    manifest = dataclasses.replace(
        read_manifest(dense.bundle), target="tensorrt", machine=described
    )
    tensorrt_check._check_fields(manifest.machine, manifest, Path("folder"))


@pytest.mark.parametrize(
    ("target", "options", "field", "counts"),
    [
        ("cpu", {}, "system", False),
        ("cpu", {}, "architecture", True),
        ("cpu", {}, "onnxruntime", True),
        ("cuda", {}, "onnxruntime", True),
        ("tensorrt-rtx", {"compute_capability": ("8.9",)}, "system", True),
        ("tensorrt-rtx", {"compute_capability": ("8.9",)}, "architecture", True),
        ("tensorrt-rtx", {"compute_capability": ("8.9",)}, "onnxruntime", False),
    ],
)
def test_what_of_a_machine_makes_engines_others(
    target: str, options: dict[str, Any], field: str, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that the runtime refuses on another machine is built again there, not kept."""
    if target == "tensorrt-rtx":
        pytest.importorskip("tensorrt_rtx")

    def facts() -> dict[str, Any]:
        machine = find_target(target).describe_machine(BuildOptions(**options))
        return BuildSettings(target, {}, machine.matters).facts()

    before, here = facts(), machines.describe_machine()
    monkeypatch.setattr(machines, "describe_machine", lambda: {**here, field: "another"})
    assert (facts() != before) is counts


def test_a_timing_cache_is_taken_over_from_the_folder_that_is_replaced(tmp_path: Path) -> None:
    class Job:
        target, out, replaces = "tensorrt", tmp_path / "new", tmp_path / "old"

    Job.out.mkdir()
    Job.replaces.mkdir()
    assert _timing_cache(Job) == str(Job.out / TIMING_CACHE)  # type: ignore[arg-type]
    assert not (Job.out / TIMING_CACHE).exists()
    (Job.replaces / TIMING_CACHE).write_bytes(b"measured")
    _timing_cache(Job)  # type: ignore[arg-type]
    assert (Job.out / TIMING_CACHE).read_bytes() == b"measured"
    Job.target = "tensorrt-rtx"
    assert _timing_cache(Job) == ""  # type: ignore[arg-type]
