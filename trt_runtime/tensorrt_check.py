"""Whether a folder of TensorRT engines may be used here, asked before anything is deserialised.

Engines run with the library version that built them, on its operating system, on GPUs of the
compute capabilities that they were built for. The library's own refusal says little, and late:
https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/engine-compatibility.html
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trt_runtime.cuda_devices import (
    COMPUTE_CAPABILITY,
    CUDA,
    CudaDevice,
    capability_numbers,
    cuda_devices,
    driver_cuda_version,
    driver_version,
)
from trt_runtime.errors import FolderError
from trt_runtime.machine import describe_machine
from trt_runtime.manifest import Manifest
from trt_runtime.rebuilding import quoted, rebuild_beside, rebuild_command
from trt_runtime.tensorrt_library import (
    MODULES,
    TENSORRT,
    TENSORRT_RTX,
    install_command,
    installed_version,
    version_numbers,
)

#: Under `machine` in the manifest: the exact list of compute capabilities that the engines run on.
COMPUTE_CAPABILITIES = "compute_capabilities"
HARDWARE_COMPATIBILITY = "hardware_compatibility"
#: The most bytes of an engine's weights that the GPU keeps; absent: all of them.
WEIGHTS_ON_GPU = "weights_on_gpu"
#: Runs on every GPU from the least compute capability on; the others on those that are listed.
AMPERE_PLUS = "ampere_plus"
_COMPATIBILITIES = ("none", AMPERE_PLUS)
#: What TensorRT-RTX 1.7 builds our graphs for: `ComputeCapability` of its binding, which has no
#: data-centre GPU of 9.0, but for 7.5, whose GPUs cannot compute what is stored in bfloat16.
RTX_CAPABILITIES = ("8.0", "8.6", "8.9", "12.0", "12.1")
#: The least that the target `cuda` needs.
_LEAST_OF_CUDA = (8, 0)


def check_tensorrt(manifest: Manifest, folder: Path) -> None:
    """Raises FolderError, with the command that helps, where engines of `folder` cannot run here.

    Compared are the fields of the manifest's `machine`, which may be damaged or a stranger's.
    """
    machine = manifest.machine
    _check_fields(machine, manifest, folder)
    _check_system(machine, manifest, folder)
    # Before the library: on a GPU that the engines are not for, installing it would be in vain.
    device = _check_driver(machine, manifest, folder)
    _check_gpu(machine, manifest, folder, device)
    _check_library(machine, manifest, folder)


def _check_fields(machine: Mapping[str, Any], manifest: Manifest, folder: Path) -> None:
    def damaged(field: str, expected: str) -> FolderError:
        return FolderError(
            f"The manifest of {folder} is damaged",
            expected=f"{expected} under machine.{field}",
            found=repr(machine.get(field)),
            do=f"build it again: {rebuild_command(manifest, folder)}",
        )

    if machine.get("library") != MODULES[manifest.target]:
        raise damaged("library", repr(MODULES[manifest.target]))
    for field, known in (("library_version", True), ("cuda", False)):
        value = machine.get(field)
        if not isinstance(value, str) or not (
            version_numbers(value) or (value == "" and not known)
        ):
            raise damaged(field, "a version")
    for field in ("system", "architecture"):
        if not isinstance(machine.get(field), str):
            raise damaged(field, "a name")
    if not isinstance(machine.get("version_compatible"), bool):
        raise damaged("version_compatible", "true or false")
    weights = machine.get(WEIGHTS_ON_GPU, 0)
    if not isinstance(weights, int) or isinstance(weights, bool) or weights < 0:
        raise damaged(WEIGHTS_ON_GPU, "a number of bytes")
    if capability_numbers(machine.get(COMPUTE_CAPABILITY)) is None:
        raise damaged(COMPUTE_CAPABILITY, "a compute capability such as 8.0")
    if machine.get(HARDWARE_COMPATIBILITY) not in _COMPATIBILITIES:
        raise damaged(HARDWARE_COMPATIBILITY, " or ".join(_COMPATIBILITIES))
    if machine[HARDWARE_COMPATIBILITY] != AMPERE_PLUS:
        listed = machine.get(COMPUTE_CAPABILITIES)
        if not isinstance(listed, list) or not listed or None in map(capability_numbers, listed):
            raise damaged(COMPUTE_CAPABILITIES, "a list of compute capabilities such as 8.0")


def _check_system(machine: Mapping[str, Any], manifest: Manifest, folder: Path) -> None:
    here = describe_machine()
    for field, what in (("system", "operating system"), ("architecture", "architecture")):
        if machine[field] != here[field]:
            raise FolderError(
                f"{folder} was built for another {what}",
                expected=machine[field],
                found=here[field],
                do=f"build it again here: {rebuild_command(manifest, folder)}",
            )


def _check_library(machine: Mapping[str, Any], manifest: Manifest, folder: Path) -> None:
    name, built = machine["library"], machine["library_version"]
    found = installed_version(manifest.target)
    exact = f"pip install {quoted(_distribution(machine, manifest.target))}"
    if found is None:
        others = {target: installed_version(target) for target in MODULES}
        there = [f"{MODULES[t]} {v}" for t, v in others.items() if v is not None]
        raise FolderError(
            f"{folder} needs {name}, which is not installed",
            expected=f"{name} {built}",
            found=" and ".join(there) or "neither tensorrt nor tensorrt_rtx",
            do=f"{exact} (or {install_command(manifest.target)} and build again: "
            f"{rebuild_command(manifest, folder)})",
        )
    if not _runs(version_numbers(built), version_numbers(found), machine, manifest.target):
        or_newer = " or later" if _version_compatible(machine, manifest.target) else ""
        raise FolderError(
            f"{folder} was built with another version of {name}",
            expected=f"{name} {built}{or_newer}",
            found=f"{name} {found}",
            do=f"build it again here: {rebuild_command(manifest, folder)}, or install the version "
            f"that built it: {exact}",
        )


def _version_compatible(machine: Mapping[str, Any], target: str) -> bool:
    """TensorRT-RTX has no engines that run with another release."""
    return bool(machine["version_compatible"]) and target == TENSORRT


def _runs(
    built: tuple[int, ...], found: tuple[int, ...], machine: Mapping[str, Any], target: str
) -> bool:
    """Whether a library runs engines of another version: newer ones may, to the next major one."""
    if _version_compatible(machine, target):
        return built <= found and found[:1] <= (built[0] + 1,)
    return built == found


def _distribution(machine: Mapping[str, Any], target: str) -> str:
    """As pip names the very version that built the engines."""
    package = f"{target}-cu{machine['cuda'].partition('.')[0]}" if machine["cuda"] else target
    return f"{package}=={machine['library_version']}"


def _check_driver(machine: Mapping[str, Any], manifest: Manifest, folder: Path) -> CudaDevice:
    """The GPU that would run the engines: CUDA's first."""
    devices = cuda_devices()
    wanted = f"a GPU of compute capability {_wanted(machine)}, and its driver"
    if not devices:
        driver = driver_version()
        raise FolderError(
            f"{folder} was built for NVIDIA GPUs",
            expected=wanted,
            found="no GPU that CUDA can use" + (f" (driver {driver})" if driver else ""),
            do=f"build for a processor instead: {rebuild_beside(manifest, folder, 'cpu')}",
        )
    cuda, major = driver_cuda_version(), version_numbers(machine["cuda"])[:1]
    if cuda is not None and version_numbers(cuda)[:1] < major:
        raise FolderError(
            f"{folder} needs a newer driver",
            expected=f"a driver for CUDA {major[0]} or later",
            found=f"driver {driver_version() or 'unknown'}, which supports CUDA up to {cuda}",
            do="update the NVIDIA driver, or build for a processor instead: "
            + rebuild_beside(manifest, folder, "cpu"),
        )
    return devices[0]


def _check_gpu(
    machine: Mapping[str, Any], manifest: Manifest, folder: Path, device: CudaDevice
) -> None:
    here = capability_numbers(device.compute_capability) or (0, 0)
    if machine[HARDWARE_COMPATIBILITY] == AMPERE_PLUS:
        fits = here >= (capability_numbers(machine[COMPUTE_CAPABILITY]) or here)
    else:
        fits = device.compute_capability in machine[COMPUTE_CAPABILITIES]
    if fits:
        return
    raise FolderError(
        f"{folder} was built for another GPU",
        expected=f"a GPU of compute capability {_wanted(machine)}",
        found=f"{device.name}, compute capability {device.compute_capability}",
        do=_build_for(manifest, folder, device),
    )


def _build_for(manifest: Manifest, folder: Path, device: CudaDevice) -> str:
    """What builds engines for this very GPU."""
    capability = device.compute_capability
    if manifest.target == TENSORRT:
        # It builds for the GPU of the machine that it runs on.
        command = rebuild_command(manifest, folder, options={COMPUTE_CAPABILITY: None})
        return f"build it again here: {command}"
    if capability in RTX_CAPABILITIES:
        command = rebuild_command(manifest, folder, options={COMPUTE_CAPABILITY: capability})
        return f"build it again: {command}"
    others = [TENSORRT]
    if (capability_numbers(capability) or (0, 0)) >= _LEAST_OF_CUDA:
        others.append(CUDA)
    commands = " or ".join(rebuild_beside(manifest, folder, target) for target in others)
    return f"{TENSORRT_RTX} does not run on this GPU; build for another target here: {commands}"


def _wanted(machine: Mapping[str, Any]) -> str:
    if machine[HARDWARE_COMPATIBILITY] == AMPERE_PLUS:
        return f"{machine[COMPUTE_CAPABILITY]} or later"
    return " or ".join(machine[COMPUTE_CAPABILITIES])
