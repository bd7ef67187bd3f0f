"""What the loop asks of a backend: buffers that live on its device, and graphs bound to them.

The slots of a batch are rows of buffers that are allocated once, and each graph is bound to them
once a number of slots; a step then writes the few small inputs, runs, and reads the few small
outputs. On a GPU a bound graph is a captured CUDA graph; on a CPU it is a session with its
addresses set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from trt_runtime.contract import TensorSpec


class Buffer(Protocol):
    """A tensor on the backend's device, zero when it is made."""

    spec: TensorSpec

    def read(self) -> np.ndarray:
        """The values, of the spec's shape and dtype; waits for the runs that write them.

        The array may be a view that the next run overwrites: copy what must last.
        """
        ...

    def write(self, values: np.ndarray | float | int | bool) -> None:
        """Copies `values`, broadcast to the spec's shape, into the buffer."""
        ...

    def write_slot(self, slot: int, values: np.ndarray | float | int | bool) -> None:
        """As `write`, into the row of one slot."""
        ...

    def copy_slot(self, source: int, to: int) -> None:
        """Copies one slot's row over another's, on the device."""
        ...


class BoundGraph(Protocol):
    """A graph with every tensor bound."""

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        """Every bound tensor by name; a state tensor by the name of its input."""
        ...

    def run(self) -> None:
        """Computes every output, and puts the state's outputs where its inputs are."""
        ...


class Talker(Protocol):
    """The talker of a batch's slots: their caches, and what goes in and comes out.

    `embedding` (slots, 1, talker_hidden) float32 is the decode step's input, to which the tail
    writes directly; `hidden`, alike, is the newest hidden state, after the final norm.
    """

    embedding: Any
    hidden: Any

    def prefill(self, embeddings: np.ndarray, slot: int = 0) -> object:
        """Starts a slot anew with a prompt, (tokens, talker_hidden) float32."""
        ...

    def decode(self, count: int = 1) -> None:
        """One step of the first `count` slots: `hidden` becomes the state after `embedding`."""
        ...

    def move(self, source: int, to: int) -> None:
        """Puts a slot in the place of another, which is lost."""
        ...

    def clear(self, slot: int) -> None:
        """Forgets what a slot holds: numbers that are not finite would reach the next in it."""
        ...


class Backend(Protocol):
    """The loaded graphs of one folder. Thread-safe; buffers and bound graphs are not.

    What it holds is freed with the last reference: a request that still runs keeps what it uses.
    """

    def has(self, graph: str) -> bool:
        """Whether the folder holds this graph and this backend runs it."""
        ...

    def buffer(self, spec: TensorSpec, slots: int = 1) -> Buffer:
        """A buffer for the tensor, with rows for so many slots where it is one by slot."""
        ...

    def talker(self, slots: int = 1) -> Talker:
        """A talker for so many slots; used by one thread."""
        ...

    def bind(
        self, graph: str, buffers: Mapping[str, Any], *, first: int = 0, slots: int = 1
    ) -> BoundGraph:
        """Binds `graph` to `buffers` by tensor name and to fresh buffers for all other tensors.

        It runs `slots` slots, from `first` on of those buffers that have more.

        A graph of `contract.ON_DEMAND` is loaded when it is first bound, and then stays.

        State needs no output buffer: after a run its input buffer holds the new state. `buffers`
        are those that this backend made.
        """
        ...
