"""Tensors on a device as the loop's buffers, all of a backend's work in the order it was asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from trt_runtime.contract import TensorSpec
from trt_runtime.errors import UserError

INSTALL = "pip install 'ming-trt[cuda]' (onnxruntime-gpu, torch and triton)"


def import_torch() -> Any:
    """The torch module; a UserError with the command that installs it where it is missing."""
    try:
        import torch
    except ImportError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from error
        raise UserError(
            "Engines for a GPU need torch, which is not installed or cannot be loaded",
            expected="the packages onnxruntime-gpu, torch and triton",
            found=str(error),
            do=INSTALL,
        ) from error
    return torch


_ONE_AT_A_TIME = threading.RLock()


class Place:
    """A device of torch's (`cuda`, or `cpu` in tests), and the one stream that orders its work.

    Not the default stream, which cannot be captured.
    """

    def __init__(self, device: str) -> None:
        self.torch = import_torch()
        self.device = self.torch.device(device)
        if self.device.type == "cuda" and not self.torch.cuda.is_available():
            raise UserError(
                "The torch that is installed cannot use the GPU",
                expected="a build with CUDA that fits the driver (ming-trt doctor shows it)",
                found=f"torch {self.torch.__version__}",
                do="pip uninstall torch, then install PyPI's build for Linux: " + INSTALL,
            )
        self.stream = self.torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    @contextmanager
    def ordered(self) -> Iterator[None]:
        """Within it, what torch enqueues is on this place's stream; one thread at a time.

        Of the whole process: while one captures a graph, another that allocates would break the
        capture, whichever folder it is for.
        """
        with _ONE_AT_A_TIME:
            if self.stream is None:
                yield
            else:
                with self.torch.cuda.stream(self.stream):
                    yield

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        with self.ordered():
            return self.torch.zeros(shape, dtype=getattr(self.torch, dtype), device=self.device)

    def uploaded(self, values: np.ndarray) -> Any:
        """A tensor of the array's values."""
        with self.ordered():
            return self.torch.from_numpy(np.array(values)).to(self.device, non_blocking=True)


class Memory:
    """A tensor, and its values on the host as long as nobody has changed them."""

    def __init__(self, place: Place, tensor: Any) -> None:
        self.place, self.tensor = place, tensor
        self._host: np.ndarray | None = None

    def read(self) -> np.ndarray:
        if self._host is None:
            with self.place.ordered():
                # Waits for what was enqueued on this stream, and for nothing else.
                self._host = self.tensor.cpu().numpy()
        return self._host

    def changed(self) -> None:
        self._host = None


class DeviceBuffer:
    """See :class:`trt_runtime.backends.interface.Buffer`; a view of some rows of a tensor, or all.

    Reading fetches the whole tensor once, however many read their rows of it, until `changed`.
    """

    def __init__(
        self, place: Place, spec: TensorSpec, memory: Memory | None = None, first: int = 0
    ) -> None:
        if memory is None:
            memory = Memory(place, place.zeros(spec.shape, spec.dtype))
        self.spec, self._place, self._memory, self._first = spec, place, memory, first
        whole = memory.tensor
        rows = slice(self._first, self._first + spec.shape[0])
        #: torch's tensor of the same shape: the same memory.
        self.tensor = whole if tuple(whole.shape) == spec.shape else whole[rows]

    def rows(self, spec: TensorSpec, first: int) -> DeviceBuffer:
        """The same memory as a tensor of `spec`, from row `first` on.

        Raises ValueError where the rows are others, or not as many.
        """
        self.spec.check_rows(spec, first)
        return DeviceBuffer(self._place, spec, self._memory, self._first + first)

    def changed(self) -> None:
        """Says that something wrote to the tensor: the next read fetches it again."""
        self._memory.changed()

    def read(self) -> np.ndarray:
        values = self._memory.read()
        if values.shape == self.spec.shape:
            return values
        return values[self._first : self._first + self.spec.shape[0]]

    def write(self, values: np.ndarray | float | int | bool) -> None:
        self._write(self.tensor, values)

    def write_slot(self, slot: int, values: np.ndarray | float | int | bool) -> None:
        self._write(self.tensor[slot], values)

    def copy_slot(self, source: int, to: int) -> None:
        with self._place.ordered():
            self.tensor[to].copy_(self.tensor[source])
        self.changed()

    def _write(self, tensor: Any, values: np.ndarray | float | int | bool) -> None:
        # A copy of our own: the caller may change what it gave before the device has read it.
        array = np.array(np.broadcast_to(np.asarray(values, self.spec.dtype), tuple(tensor.shape)))
        with self._place.ordered():
            # From pageable memory the driver has read everything when this returns, and the host
            # has waited for no work of the stream.
            tensor.copy_(self._place.torch.from_numpy(array), non_blocking=True)
        self.changed()
