"""GPUs as the driver tells of them, and folders that need one."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trt_runtime import cuda_devices
from trt_runtime.cuda_devices import CudaDevice, check_cuda, describe_cuda
from trt_runtime.errors import FolderError

H200 = CudaDevice("NVIDIA H200", "9.0", 141 << 30)


class Driver:
    """The driver's library, with one GPU."""

    def __init__(self, fails: str = "") -> None:
        self._fails = fails

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == self._fails:
                return 100
            if name == "cuDeviceGetName":
                ctypes.memmove(arguments[0], b"NVIDIA H200\0", 12)
                return 0
            values = {
                "cuDeviceGetCount": 1,
                "cuDeviceGet": 0,
                "cuDeviceTotalMem_v2": 141 << 30,
                "cuDriverGetVersion": 13000,
            }
            if name == "cuDeviceGetAttribute":
                values[name] = {75: 9, 76: 0}[arguments[1]]
            if name in values:
                arguments[0]._obj.value = values[name]
            return 0

        return call


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(cuda_devices, "_library", Driver)
    monkeypatch.setattr(cuda_devices, "driver_version", lambda: "580.159.04")
    return monkeypatch


def test_what_the_driver_tells(driver: pytest.MonkeyPatch) -> None:
    assert describe_cuda() == {
        "driver": "580.159.04",
        "cuda": "13.0",
        "devices": [vars(H200)],
    }


@pytest.mark.parametrize("fails", ["cuInit", "cuDeviceGetCount"])
def test_a_driver_that_cannot_start_has_no_gpus(driver: pytest.MonkeyPatch, fails: str) -> None:
    driver.setattr(cuda_devices, "_library", lambda: Driver(fails))
    assert describe_cuda()["devices"] == []


def test_no_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_devices, "_library", lambda: None)
    monkeypatch.setattr(cuda_devices, "driver_version", lambda: None)
    assert describe_cuda() == {"driver": None, "cuda": None, "devices": []}


def _manifest(**machine: Any) -> Any:
    return SimpleNamespace(
        machine=machine, target="cuda", kind="ming-trt-engines", build={"source": "CHECKPOINT"}
    )


def test_a_folder_that_needs_no_gpu_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_devices, "_library", lambda: 1 / 0)
    manifest = _manifest()
    manifest.target = "cpu"
    check_cuda(manifest, Path("engines"))


def test_a_folder_for_gpus_that_says_nothing_of_them_is_refused() -> None:
    with pytest.raises(FolderError, match=r"damaged(?s:.*)--target cuda"):
        check_cuda(_manifest(), Path("engines"))


@pytest.mark.parametrize("needed", ["8.0", "9.0"])
def test_a_gpu_that_is_new_enough_passes(driver: pytest.MonkeyPatch, needed: str) -> None:
    check_cuda(_manifest(compute_capability=needed), Path("engines"))


@pytest.mark.parametrize(
    ("needed", "found"),
    [("9.1", r"NVIDIA H200, compute capability 9\.0"), ("10.0", "9.0")],
)
def test_a_gpu_that_is_too_old_is_refused(
    driver: pytest.MonkeyPatch, needed: str, found: str
) -> None:
    with pytest.raises(FolderError, match=rf"{needed} or later(?s:.*)Found: .*{found}") as raised:
        check_cuda(_manifest(compute_capability=needed), Path("engines"))
    assert "build-engines CHECKPOINT --target cpu --out engines-cpu" in str(raised.value)


def test_no_gpu_is_refused_with_the_driver_that_is_there(driver: pytest.MonkeyPatch) -> None:
    driver.setattr(cuda_devices, "_library", lambda: None)
    with pytest.raises(FolderError, match=r"no GPU that CUDA can use \(driver 580"):
        check_cuda(_manifest(compute_capability="8.0"), Path("engines"))


@pytest.mark.parametrize("needed", [8.0, "", "eight", ["8.0"], "8"])
def test_a_damaged_compute_capability_is_refused(driver: pytest.MonkeyPatch, needed: Any) -> None:
    with pytest.raises(FolderError, match=r"damaged(?s:.*)--target cuda"):
        check_cuda(_manifest(compute_capability=needed), Path("engines"))


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Jan  6 2026",
    ],
)
def test_the_drivers_version_is_not_the_processors_name(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version").write_text(line + "\n", encoding="utf-8")
    monkeypatch.setattr(cuda_devices, "_VERSION_FILE", tmp_path / "version")
    assert cuda_devices.driver_version() == "580.159.04"


class Management:
    """The driver's management library: knows one GPU by its unique name."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.asked, self.open = fails, b"", 0

    def nvmlInit_v2(self) -> int:
        self.open += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: Any) -> int:
        self.asked = name
        return int(self.fails == "handle")

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory[0], memory[1], memory[2] = 141 << 30, 140 << 30, 1 << 30
        return int(self.fails == "memory")


def test_memory_in_use_is_that_of_the_gpu_that_cuda_counts_first(
    driver: pytest.MonkeyPatch,
) -> None:
    library = Management()
    driver.setattr(cuda_devices, "_loaded", lambda name: library)
    assert cuda_devices.device_memory_in_use() == 1 << 30
    assert library.asked == b"GPU-00000000-0000-0000-0000-000000000000"
    assert library.open == 0


@pytest.mark.parametrize("fails", ["handle", "memory"])
def test_memory_in_use_is_unknown_where_the_driver_does_not_say(
    fails: str, driver: pytest.MonkeyPatch
) -> None:
    library = Management(fails)
    driver.setattr(cuda_devices, "_loaded", lambda name: library)
    assert cuda_devices.device_memory_in_use() is None
    assert library.open == 0
    driver.setattr(cuda_devices, "_loaded", lambda name: None)
    assert cuda_devices.device_memory_in_use() is None
