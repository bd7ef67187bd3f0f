"""Which buffer each tensor of a bound graph is, where a captured graph has tensors of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, Self, TypeVar

from trt_runtime.contract import NEXT, TensorSpec
from trt_runtime.manifest import GraphEntry


class _Rows(Protocol):
    def rows(self, spec: TensorSpec, first: int) -> Self: ...


_Buffer = TypeVar("_Buffer", bound=_Rows)


def buffer_name(entry: GraphEntry, tensor: str) -> str:
    """The name under which a tensor is bound: a state's output by the name of its input."""
    source = tensor.removesuffix(NEXT)
    return source if tensor.endswith(NEXT) and source in entry.state else tensor


def bind_rows(
    entry: GraphEntry,
    given: Mapping[str, _Buffer],
    *,
    first: int,
    slots: int,
    make: Callable[[list[TensorSpec]], Mapping[str, _Buffer]],
) -> dict[str, _Buffer]:
    """A buffer for every tensor of a graph that runs `slots` slots, by `buffer_name`.

    From row `first` on of those that are given; `make` makes all others, of sized tensors. Raises
    ValueError where one that is given does not fit.
    """
    specs: dict[str, TensorSpec] = {}
    for tensor in (*entry.inputs, *entry.outputs):
        name = buffer_name(entry, tensor.name)
        specs.setdefault(name, tensor.sized(slots))
    bound = {n: given[n].rows(spec, first) for n, spec in specs.items() if n in given}
    made = make([spec for name, spec in specs.items() if name not in bound])
    return {name: bound[name] if name in bound else made[name] for name in specs}
