"""What a manifest says of the machine that engines are for, and whether this one can build them.

One function a kind of target, named in its row of :mod:`engines.targets`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engines.options import BuildOptions
from trt_runtime.cuda_devices import COMPUTE_CAPABILITY, cuda_devices
from trt_runtime.errors import UserError
from trt_runtime.machine import describe_machine
from trt_runtime.tensorrt_check import (
    AMPERE_PLUS,
    COMPUTE_CAPABILITIES,
    HARDWARE_COMPATIBILITY,
    RTX_CAPABILITIES,
    WEIGHTS_ON_GPU,
)
from trt_runtime.tensorrt_library import Library, load_library, version_numbers

if TYPE_CHECKING:
    from engines.targets import Target

#: Where engines for "Ampere and later" begin.
_AMPERE = (8, 0)


def processor(target: Target, options: BuildOptions) -> dict[str, Any]:
    """This processor, and those of its features that the precision relies on."""
    needs = sorted(target.machine_needs.get(options.precision, ()))
    return {**describe_machine(), "needs": needs}


def least_gpu(target: Target, options: BuildOptions) -> dict[str, Any]:
    """What is built for a GPU on any machine does not depend on the processor that builds."""
    return {COMPUTE_CAPABILITY: target.compute_capability}


def present_gpu(target: Target, options: BuildOptions) -> dict[str, Any]:
    """The GPU that is here, the only one that TensorRT builds for."""
    library = load_library(target.name)
    devices = cuda_devices()
    if not devices:
        raise UserError(
            f"Target {target.name} builds for the GPU that is here",
            expected="a GPU that CUDA can use, and its driver",
            found="none",
            do="build where the GPU is; on a machine without one, --target tensorrt-rtx or cuda",
        )
    capability = devices[0].compute_capability
    if options.ampere_and_later and version_numbers(capability) < _AMPERE:
        raise UserError(
            "Engines for Ampere and later are built on Ampere or later",
            expected="a GPU of compute capability 8.0 or later",
            found=f"{devices[0].name}, {capability}",
            do="leave --ampere-and-later out",
        )
    if options.ampere_and_later:
        return {**_library(library, options), COMPUTE_CAPABILITY: "8.0",
                HARDWARE_COMPATIBILITY: AMPERE_PLUS}  # fmt: skip
    return {
        **_library(library, options),
        COMPUTE_CAPABILITY: capability,
        COMPUTE_CAPABILITIES: [capability],
        HARDWARE_COMPATIBILITY: "none",
    }


def named_gpus(target: Target, options: BuildOptions) -> dict[str, Any]:
    """The GPUs that the options name; without, the one that is here."""
    library = load_library(target.name)
    capabilities = options.compute_capability
    if options.ampere_and_later:
        if capabilities:
            raise UserError(
                "The GPUs to build for are given in two ways",
                expected="--compute-capability or --ampere-and-later",
                found="both",
                do="leave one of them out",
            )
        capabilities = tuple(c for c in RTX_CAPABILITIES if version_numbers(c) >= _AMPERE)
    if not capabilities:
        devices = cuda_devices()
        if not devices:
            raise UserError(
                f"Target {target.name} needs to know the GPUs to build for",
                expected="--compute-capability, or a GPU here",
                found="neither",
                do="name them, for instance --compute-capability 8.6,8.9, or all: "
                "--ampere-and-later",
            )
        capabilities = (devices[0].compute_capability,)
    if others := [c for c in capabilities if c not in RTX_CAPABILITIES]:
        raise UserError(
            f"TensorRT-RTX does not build for compute capability {', '.join(others)}",
            expected=", ".join(RTX_CAPABILITIES),
            found=", ".join(capabilities),
            do="build there with --target tensorrt, or on any machine with --target cuda",
        )
    return {
        **_library(library, options),
        COMPUTE_CAPABILITY: min(capabilities, key=version_numbers),
        COMPUTE_CAPABILITIES: sorted(capabilities, key=version_numbers),
        HARDWARE_COMPATIBILITY: "none",
    }


def _library(library: Library, options: BuildOptions) -> dict[str, Any]:
    here = describe_machine()
    streamed = {WEIGHTS_ON_GPU: options.weight_streaming * 10**6}
    return {
        **(streamed if options.weight_streaming else {}),
        "library": library.name,
        "library_version": library.version,
        "version_compatible": options.version_compatible,
        "cuda": library.cuda_major,
        "system": here["system"],
        "architecture": here["architecture"],
    }
