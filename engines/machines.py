"""What a manifest says of the machine that engines are for, and whether this one can build them.

One function a kind of target, named in its row of :mod:`engines.targets`.
"""

from __future__ import annotations

from dataclasses import dataclass
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
_AMPERE = "8.0"


@dataclass(frozen=True)
class Machine:
    """`described` is what the manifest says of it, `matters` what the engines depend on."""

    described: dict[str, Any]
    matters: dict[str, Any]


def processor(target: Target, options: BuildOptions) -> Machine:
    """This processor, and those of its features that the precision relies on."""
    here = describe_machine()
    needs = sorted(target.machine_needs.get(options.precision, ()))
    matters = {"architecture": here["architecture"], "needs": needs}
    return Machine({**here, "needs": needs}, {**matters, "onnxruntime": here["onnxruntime"]})


def least_gpu(target: Target, options: BuildOptions) -> Machine:
    """What is built for a GPU on any machine does not depend on the processor that builds."""
    described = {COMPUTE_CAPABILITY: target.compute_capability}
    return Machine(described, {**described, "onnxruntime": describe_machine()["onnxruntime"]})


def present_gpu(target: Target, options: BuildOptions) -> Machine:
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
    if options.ampere_and_later and version_numbers(capability) < version_numbers(_AMPERE):
        raise UserError(
            "Engines for Ampere and later are built on Ampere or later",
            expected=f"a GPU of compute capability {_AMPERE} or later",
            found=f"{devices[0].name}, {capability}",
            do="leave --ampere-and-later out",
        )
    gpus: dict[str, Any] = {
        COMPUTE_CAPABILITY: capability,
        COMPUTE_CAPABILITIES: [capability],
        HARDWARE_COMPATIBILITY: "none",
    }
    if options.ampere_and_later:
        gpus = {COMPUTE_CAPABILITY: _AMPERE, HARDWARE_COMPATIBILITY: AMPERE_PLUS}
    return _with(library, options, gpus)


def named_gpus(target: Target, options: BuildOptions) -> Machine:
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
        capabilities = RTX_CAPABILITIES
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
            do="build there with --target tensorrt; on any machine, with --target cuda for GPUs of "
            "8.0 and later, or --target cpu",
        )
    gpus = {
        COMPUTE_CAPABILITY: min(capabilities, key=version_numbers),
        COMPUTE_CAPABILITIES: sorted(capabilities, key=version_numbers),
        HARDWARE_COMPATIBILITY: "none",
    }
    return _with(library, options, gpus)


def _with(library: Library, options: BuildOptions, gpus: dict[str, Any]) -> Machine:
    """What engines of a library for these GPUs depend on: all of what is said of them."""
    here = describe_machine()
    streamed = {WEIGHTS_ON_GPU: options.weight_streaming * 10**6}
    described = {
        **gpus,
        **(streamed if options.weight_streaming else {}),
        "library": library.name,
        "library_version": library.version,
        "version_compatible": options.version_compatible,
        "cuda": library.cuda_major,
        "system": here["system"],
        "architecture": here["architecture"],
    }
    return Machine(described, described)
