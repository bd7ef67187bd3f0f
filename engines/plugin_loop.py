"""Builds a talker for the plugin loop: its weights as the kernels read them, and no graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from engines.stored_dtypes import numpy_dtype
from engines.targets import Built, ComponentJob
from trt_runtime.errors import FolderError, UserError
from trt_runtime.manifest import StoredTensor, export_command
from trt_runtime.plugins.layout import KernelTensor, kernel_array, kernel_tensors
from trt_runtime.plugins.sizes import TalkerSizes
from trt_runtime.talker_kernels import kernel_sizes

_BLOCK_BYTES = 8 << 20
#: Of the parameters that the kernels' tensors can be made of.
_DTYPES = ("bfloat16", "float16", "float32")


def build_component(job: ComponentJob) -> Built:
    """Writes the component's tensors, one after the other: memory for the largest of them.

    Raises UserError for a talker that the kernels cannot run, FolderError where the bundle lacks
    one of its parameters.
    """
    sizes = kernel_sizes(job.entry.sizes)
    parameters = {n: t for graph in job.graphs.values() for n, t in graph.initializers.items()}
    wanted = list(kernel_tensors(sizes))
    _check_parameters(job, wanted, parameters)
    with job.step(job.name):
        return Built(tensors={t.name: _write(job, sizes, t, parameters) for t in wanted})


def _check_parameters(
    job: ComponentJob, wanted: list[KernelTensor], parameters: Mapping[str, StoredTensor]
) -> None:
    read = {source for tensor in wanted for source in tensor.sources}
    if missing := sorted(read - set(parameters)):
        raise FolderError(
            f"{job.bundle} lacks parameters of the {job.name}",
            expected=", ".join(missing[:3]) + (", ..." if missing[3:] else ""),
            found=f"{len(parameters)} others",
            do=f"make the bundle again: {export_command(job.bundle)}",
        )
    if left := sorted(set(parameters) - read):
        raise UserError(
            f"The kernels have no use for parameters of the {job.name}",
            expected=f"{len(read)} parameters",
            found=", ".join(left[:3]) + (", ..." if left[3:] else "") + " besides",
            do="build this talker for another target: --target cpu",
        )


def _write(
    job: ComponentJob,
    sizes: TalkerSizes,
    tensor: KernelTensor,
    parameters: Mapping[str, StoredTensor],
) -> StoredTensor:
    sources = {name: _mapped(job.bundle, parameters[name]) for name in tensor.sources}
    array = kernel_array(sizes, tensor, sources)
    raw = array.reshape(-1).view(np.uint8)

    def chunks() -> Iterator[memoryview]:
        for start in range(0, raw.size, _BLOCK_BYTES):
            yield raw[start : start + _BLOCK_BYTES].data

    return job.weights.add(tensor.dtype, tensor.shape, chunks)


def _mapped(folder: Path, tensor: StoredTensor) -> np.ndarray:
    """A parameter of the bundle, memory-mapped."""
    if tensor.dtype not in _DTYPES:
        raise UserError(
            f"The talker's parameters in {folder} are of a type that the kernels cannot take",
            expected=", ".join(_DTYPES),
            found=tensor.dtype,
            do="export a checkpoint of another precision",
        )
    dtype = numpy_dtype(tensor.dtype)
    return np.memmap(folder / tensor.file, dtype, "r", tensor.offset, tensor.shape)
