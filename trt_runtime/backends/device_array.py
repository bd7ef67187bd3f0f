"""Tensors in device memory as the loop's buffers: `interface.Buffer` without torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from trt_runtime.backends.cuda_memory import ALIGNMENT, Allocation, CudaStream
from trt_runtime.contract import TensorSpec
from trt_runtime.errors import MingError
from trt_runtime.raw_tensors import DTYPE_BYTES

#: Has no dtype of NumPy's: of such a tensor the host only makes zeros, and the device copies.
BFLOAT16 = "bfloat16"


class _Memory:
    """A whole tensor's place, and its values on the host as long as nobody has changed them."""

    def __init__(self, stream: CudaStream, within: Allocation, offset: int) -> None:
        self.stream, self.within, self.pointer = stream, within, within.pointer + offset
        self._host: np.ndarray | None = None

    def read(self, spec: TensorSpec) -> np.ndarray:
        values = self._host
        if values is None:
            values = np.empty(spec.shape, spec.dtype)
            self.stream.download(values, self.pointer)
            self._host = values
        return values

    def changed(self) -> None:
        self._host = None


class DeviceArray:
    """See :class:`trt_runtime.backends.interface.Buffer`; some rows of a tensor, or all of it.

    Reading fetches the whole tensor once, however many read their rows of it, until `changed`.
    `pointer` is the address of its first row, valid while this object lives.
    """

    def __init__(
        self, spec: TensorSpec, memory: _Memory, whole: TensorSpec | None = None, first: int = 0
    ) -> None:
        self.spec, self._memory, self._whole, self._first = spec, memory, whole or spec, first
        self.pointer = memory.pointer + first * row_bytes(spec)
        self.bytes = size_of(spec)

    @property
    def is_whole(self) -> bool:
        """Whether these are all rows of the tensor."""
        return self.spec.shape == self._whole.shape

    @property
    def within(self) -> Allocation:
        """The memory that it lies in, perhaps with other tensors."""
        return self._memory.within

    def rows(self, spec: TensorSpec, first: int) -> DeviceArray:
        """The same memory as a tensor of `spec`, from row `first` on.

        Raises ValueError where the rows are others, or not as many.
        """
        self.spec.check_rows(spec, first)
        return DeviceArray(spec, self._memory, self._whole, self._first + first)

    def row_pointer(self, row: int) -> int:
        """The address of one of its rows."""
        return self.pointer + row * row_bytes(self.spec)

    def changed(self) -> None:
        """Says that something wrote to the tensor: the next read fetches it again."""
        self._memory.changed()

    def read(self) -> np.ndarray:
        if self.spec.dtype == BFLOAT16:
            raise MingError(f"{self.spec.name} is bfloat16, which the host does not read")
        values = self._memory.read(self._whole)
        if self.is_whole:
            return values
        return values[self._first : self._first + self.spec.shape[0]]

    def write(self, values: np.ndarray | float | int | bool) -> None:
        self._write(self.pointer, self.spec.shape, values)

    def write_slot(self, slot: int, values: np.ndarray | float | int | bool) -> None:
        self._write(self.row_pointer(slot), self.spec.shape[1:], values)

    def copy_slot(self, source: int, to: int) -> None:
        size = row_bytes(self.spec)
        self._memory.stream.copy((self.row_pointer(to), self.row_pointer(source), size))
        self.changed()

    def _write(
        self, pointer: int, shape: tuple[int, ...], values: np.ndarray | float | int | bool
    ) -> None:
        stream = self._memory.stream
        if np.isscalar(values) and not values:
            stream.fill(pointer, math.prod(shape) * DTYPE_BYTES[self.spec.dtype])
        elif self.spec.dtype == BFLOAT16:
            raise MingError(f"{self.spec.name} is bfloat16, into which the host writes only zeros")
        else:
            # A copy of our own: the caller may change what it gave before the device has read it.
            same = np.broadcast_to(np.asarray(values, self.spec.dtype), shape)
            stream.upload(pointer, np.array(same, order="C"))
        self.changed()


def size_of(spec: TensorSpec) -> int:
    """Bytes of a sized tensor."""
    return math.prod(spec.shape) * DTYPE_BYTES[spec.dtype]


def row_bytes(spec: TensorSpec) -> int:
    """Bytes of one entry of a tensor's first axis."""
    return math.prod(spec.shape[1:]) * DTYPE_BYTES[spec.dtype]


def device_arrays(stream: CudaStream, specs: Iterable[TensorSpec]) -> dict[str, DeviceArray]:
    """Zeros for the sized tensors, by name, one after the other in one allocation."""
    offsets, end = {}, 0
    for spec in specs:
        offsets[spec] = end
        end += -(-size_of(spec) // ALIGNMENT) * ALIGNMENT
    within = stream.allocate(end)
    stream.fill(within.pointer, end)
    return {s.name: DeviceArray(s, _Memory(stream, within, at)) for s, at in offsets.items()}


#: Bytes to copy on the device: to which address, from which, how many.
Copy = tuple[int, int, int]


def copies(pairs: Sequence[tuple[DeviceArray, DeviceArray]]) -> tuple[Copy, ...]:
    """Copies of each (target, source), those that lie side by side in both places as one.

    They know addresses alone: the arrays must outlive them.
    """
    found: list[Copy] = []
    last: tuple[DeviceArray, DeviceArray] | None = None
    for to, source in sorted(pairs, key=lambda pair: pair[0].pointer):
        if last is not None and _beside(last, (to, source)):
            start, begin, _ = found.pop()
            found.append((start, begin, to.pointer + to.bytes - start))
        else:
            found.append((to.pointer, source.pointer, to.bytes))
        last = (to, source)
    return tuple(found)


def _beside(one: tuple[DeviceArray, DeviceArray], two: tuple[DeviceArray, DeviceArray]) -> bool:
    """Whether nothing but padding lies between the two targets, and between their sources.

    Only between whole tensors: behind some rows of one lie its others.
    """
    distances = {b.pointer - a.pointer for a, b in zip(one, two, strict=True)}
    return (
        all(array.is_whole for array in (*one, *two))
        and all(a.within is b.within for a, b in zip(one, two, strict=True))
        and distances == {-(-one[0].bytes // ALIGNMENT) * ALIGNMENT}
    )
