"""Writing the parameters of a component from a checkpoint into one raw file.

One parameter at a time, in blocks, so that the memory needed is that of a block and of the sources
that are mapped, not of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np

from export.checkpoint import Checkpoint
from export.parameters import (
    CONCAT,
    COPY,
    INTERLEAVE,
    TRANSPOSE,
    TRANSPOSE_CONCAT,
    Parameter,
)
from export.whole_file import whole_file
from trt_runtime.errors import UserError
from trt_runtime.manifest import StoredTensor
from trt_runtime.raw_tensors import ALIGNMENT

_BLOCK_BYTES = 8 << 20

#: The exponent bits of each float type; all of them set mean infinity or NaN.
_EXPONENT: dict[str, tuple[type[np.unsignedinteger], int]] = {
    "bfloat16": (np.uint16, 0x7F80),
    "float16": (np.uint16, 0x7C00),
    "float32": (np.uint32, 0x7F800000),
}


def write_component(
    checkpoint: Checkpoint,
    parameters: Sequence[Parameter],
    path: Path,
    on_bytes: Callable[[int], None] | None = None,
) -> dict[str, StoredTensor]:
    """Writes `parameters` in their order into the raw file `path` and says where each lies.

    A parameter keeps the dtype of its sources where they agree (bfloat16 stays bfloat16), and is
    float32 otherwise. The bytes depend on the tensors alone. The file appears whole or not at all.
    `on_bytes` is called with the size of every block that has been written.

    Raises UserError naming a tensor that holds NaN or infinity, or a tensor that is missing or has
    another shape than the table says, and where the disk fills, saying how much was needed.
    """
    stored = layout(checkpoint, parameters, path.name)
    size = max((entry.offset + entry.bytes for entry in stored.values()), default=0)
    with whole_file(path, size) as file:
        for parameter in parameters:
            entry = stored[parameter.name]
            file.write(bytes(entry.offset - file.tell()))
            for size in _write(file, checkpoint, parameter, entry):
                if on_bytes is not None:
                    on_bytes(size)
    return stored


def layout(
    checkpoint: Checkpoint, parameters: Sequence[Parameter], file: str
) -> dict[str, StoredTensor]:
    """Where :func:`write_component` puts each parameter in a file `file`; no tensor is read."""
    stored: dict[str, StoredTensor] = {}
    position = 0
    for parameter in parameters:
        dtype = stored_dtype(checkpoint, parameter)
        size = parameter.elements * _numpy_dtype(dtype).itemsize
        position += -position % ALIGNMENT
        stored[parameter.name] = StoredTensor(file, dtype, parameter.shape, position, size)
        position += size
    return stored


def stored_dtype(checkpoint: Checkpoint, parameter: Parameter) -> str:
    """The dtype that a bundle stores the parameter in; UserError as :func:`write_component`."""
    dtypes = set()
    for name, shape in zip(parameter.sources, parameter.source_shapes, strict=True):
        info = checkpoint.tensors.get(name)
        if info is None or info.shape != shape or info.dtype not in _EXPONENT:
            raise UserError(
                f"Tensor {name}, needed for {parameter.name}, cannot be used",
                expected=f"shape {list(shape)} in {', '.join(_EXPONENT)}",
                found="no such tensor"
                if info is None
                else f"shape {list(info.shape)} in {info.dtype}",
                do="run python -m export --check on the checkpoint",
            )
        dtypes.add(info.dtype)
    return dtypes.pop() if len(dtypes) == 1 else "float32"


def _numpy_dtype(dtype: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def _write(
    file: BinaryIO, checkpoint: Checkpoint, parameter: Parameter, entry: StoredTensor
) -> Iterator[int]:
    """Streams a parameter into `file`, yielding the bytes of each block as it is written."""
    start = file.tell()
    for block in parameter_blocks(checkpoint, parameter):
        yield file.write(block.view(np.uint8).data)
    if file.tell() - start != entry.bytes:
        raise AssertionError(f"{parameter.name}: the table's shape does not fit its sources")


def parameter_blocks(checkpoint: Checkpoint, parameter: Parameter) -> Iterator[np.ndarray]:
    """The parameter row-major, as a bundle stores it: flat arrays of a few megabytes.

    float16, float32 or ml_dtypes.bfloat16. Raises UserError as :func:`write_component` does.
    """
    dtype = _numpy_dtype(stored_dtype(checkpoint, parameter))
    sources = [checkpoint.read(name) for name in parameter.sources]
    for name, source in zip(parameter.sources, sources, strict=True):
        _check_finite(name, source, checkpoint.tensors[name].dtype)
    for block in _blocks(parameter.transform, sources):
        yield np.ascontiguousarray(block, dtype).reshape(-1)
    for name in parameter.sources:
        checkpoint.release(name)


def _rows_a_block(row_bytes: int) -> int:
    return max(1, _BLOCK_BYTES // max(row_bytes, 1))


def _blocks(transform: str, sources: list[np.ndarray]) -> Iterator[np.ndarray]:
    """The parameter's rows, a bounded number of bytes at a time."""
    if transform in (COPY, CONCAT):
        for source in sources:
            flat = source.reshape(-1)
            step = _rows_a_block(flat.itemsize)
            for start in range(0, flat.size, step):
                yield flat[start : start + step]
    elif transform in (TRANSPOSE, TRANSPOSE_CONCAT):
        inputs = sources[0].shape[1]
        step = _rows_a_block(sum(source.shape[0] * source.itemsize for source in sources))
        for start in range(0, inputs, step):
            rows = [source[:, start : start + step].T for source in sources]
            yield rows[0] if len(rows) == 1 else _side_by_side(rows)
    elif transform == INTERLEAVE:
        matrices = [source.reshape(-1, source.shape[-1]) for source in sources]
        for even, odd in zip(matrices[0::2], matrices[1::2], strict=True):
            step = _rows_a_block(2 * even.shape[1] * even.itemsize)
            for start in range(0, len(even), step):
                rows = [even[start : start + step], odd[start : start + step]]
                yield np.stack(_alike(rows), axis=1)
    else:
        raise AssertionError(f"no such transform: {transform}")


def _side_by_side(rows: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(_alike(rows), axis=1)


def _alike(parts: list[np.ndarray]) -> list[np.ndarray]:
    """The parts in one dtype: float32 where they differ."""
    if len({part.dtype for part in parts}) > 1:
        return [part.astype(np.float32) for part in parts]
    return parts


def _check_finite(name: str, source: np.ndarray, dtype: str) -> None:
    """Raises UserError where a tensor holds NaN or infinity. Looks at bits, converting nothing."""
    unsigned, mask = _EXPONENT[dtype]
    bits = source.reshape(-1).view(unsigned)
    step = _rows_a_block(bits.itemsize)
    for start in range(0, bits.size, step):
        bad = (bits[start : start + step] & unsigned(mask)) == mask
        if bad.any():
            at = np.unravel_index(start + int(bad.argmax()), source.shape)
            raise UserError(
                f"Tensor {name} of the checkpoint holds a value that is not finite",
                expected="finite numbers",
                found=f"{float(source[at])} at {[int(i) for i in at]}",
                do="download the checkpoint again; if it was fine-tuned, the training has diverged",
            )
