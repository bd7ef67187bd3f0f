"""The CUDA GPUs of this machine, and whether a folder built for GPUs may be used here.

Asks the driver's own library through ctypes: the answer is needed before torch or a runtime is
imported, and where neither is installed.
"""

from __future__ import annotations

import ctypes
import re
import sys
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trt_runtime.errors import FolderError
from trt_runtime.manifest import Manifest, rebuild_command
from trt_runtime.rebuilding import rebuild_beside

#: The target of ONNX Runtime whose engines need a GPU, whatever their manifest says of it.
CUDA = "cuda"
#: Under `machine` in the manifest of engines that need a GPU: the least compute capability.
COMPUTE_CAPABILITY = "compute_capability"

_VERSION_FILE = Path("/proc/driver/nvidia/version")
_LIBRARIES = {"win32": "nvcuda.dll"}
_MANAGEMENT = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
# CUdevice_attribute of the driver's interface (cuda.h).
_MAJOR, _MINOR = 75, 76


@dataclass(frozen=True)
class CudaDevice:
    """`compute_capability` as "9.0"; `memory_bytes` of all of its memory."""

    name: str
    compute_capability: str
    memory_bytes: int


def describe_cuda() -> dict[str, Any]:
    """What `doctor` tells, as values that JSON holds.

    `driver`, its version, and `cuda`, the newest that it supports, each None where there is none;
    `devices`, the fields of :class:`CudaDevice` of each.
    """
    return {
        "driver": driver_version(),
        "cuda": driver_cuda_version(),
        "devices": [asdict(device) for device in cuda_devices()],
    }


def cuda_devices() -> list[CudaDevice]:
    """The GPUs that this process may use, in CUDA's order; none where there is no driver."""
    library = _library()
    count = ctypes.c_int()
    if library is None or library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)):
        return []
    return [_device(library, index) for index in range(count.value)]


def device_memory_in_use() -> int | None:
    """Bytes in use, by anybody, on the GPU that engines run on; None where that cannot be told.

    Asks the driver's management library, which needs no context on the GPU.
    """
    cuda, library = _library(), _loaded(_MANAGEMENT)
    if cuda is None or library is None or cuda.cuInit(0) or library.nvmlInit_v2():
        return None
    try:
        # By its unique name: the two libraries number the GPUs in orders of their own.
        device, unique = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        if cuda.cuDeviceGet(ctypes.byref(device), 0) or cuda.cuDeviceGetUuid(unique, device):
            return None
        name = f"GPU-{uuid.UUID(bytes=bytes(unique))}".encode()
        handle, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
        if library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)):
            return None
        # nvmlMemory_t: total, free, used.
        return None if library.nvmlDeviceGetMemoryInfo(handle, memory) else int(memory[2])
    finally:
        library.nvmlShutdown()


def check_cuda(manifest: Manifest, folder: Path) -> None:
    """Raises FolderError where the folder needs a GPU that this machine does not have."""
    needed = manifest.machine.get(COMPUTE_CAPABILITY)
    if needed is None and manifest.target != CUDA:
        return
    least = capability_numbers(needed)
    rebuild = rebuild_command(manifest, folder)
    if least is None:
        raise FolderError(
            f"The manifest of {folder} is damaged",
            expected="a compute capability such as 8.0 under machine",
            found=repr(needed),
            do=f"build it again: {rebuild}",
        )
    devices = cuda_devices()
    if devices and (capability_numbers(devices[0].compute_capability) or (0, 0)) >= least:
        return
    found = "no GPU that CUDA can use"
    if devices:
        found = f"{devices[0].name}, compute capability {devices[0].compute_capability}"
    elif (driver := driver_version()) is not None:
        found += f" (driver {driver})"
    raise FolderError(
        f"{folder} was built for NVIDIA GPUs",
        expected=f"a GPU of compute capability {needed} or later, and its driver",
        found=found,
        do=f"build for a processor instead: {rebuild_beside(manifest, folder, 'cpu')}",
    )


def capability_numbers(value: Any) -> tuple[int, int] | None:
    """Major and minor of a compute capability, `"9.0"`; None where `value` is none."""
    match = re.fullmatch(r"(\d+)\.(\d+)", value) if isinstance(value, str) else None
    return None if match is None else (int(match[1]), int(match[2]))


def _library() -> Any:
    """The driver's library, None where it is not installed."""
    return _loaded(_LIBRARIES.get(sys.platform, "libcuda.so.1"))


def _loaded(library: str) -> Any:
    try:
        return ctypes.CDLL(library)
    except OSError:
        return None


def _device(library: Any, index: int) -> CudaDevice:
    device, value, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    library.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    capability = []
    for attribute in (_MAJOR, _MINOR):
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(str(value.value))
    return CudaDevice(name.value.decode(errors="replace"), ".".join(capability), memory.value)


def driver_cuda_version() -> str | None:
    """The newest version of CUDA that the driver supports, as "13.0"; None without a driver."""
    library = _library()
    return None if library is None else _cuda_version(library)


def _cuda_version(library: Any) -> str | None:
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def driver_version() -> str | None:
    """As the kernel module says it, on Linux; None elsewhere and without one."""
    try:
        text = _VERSION_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # Not the processor's name that some drivers give first: "for x86_64  580.159.04".
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return None if match is None else match[1]
