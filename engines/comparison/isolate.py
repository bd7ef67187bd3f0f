"""From a component outside its budget to the node that leaves it, by bisection.

Both sides' graphs run on ONNX Runtime on the CPU with the same inputs, and the tensors that are
alive at one point of the topological order are compared. Where one of them differs, the fault is
before that point, among what made it; where none does, it is after it. A run costs memory for the
tensors alive at that point, and log2 of the number of nodes runs find the first.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from engines.comparison.marked_graph import MarkedGraph
from engines.comparison.metrics import relative_error

log = logging.getLogger(__name__)

#: Nodes of a chain that are named; a chain of B's alone is rarely longer.
_NAMED = 12


@dataclass(frozen=True)
class Node:
    """A node as a reader finds it again: in the graph, and in the exporter's source."""

    name: str
    op_type: str
    source: str
    initializers: tuple[str, ...] = ()

    @classmethod
    def of(cls, graph: MarkedGraph, index: int) -> Node:
        node = graph.nodes[index]
        kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        name = node.name or (node.output[0] if node.output else "")
        return cls(name, kind, graph.source(index), tuple(graph.initializers(index)))


@dataclass(frozen=True)
class Finding:
    """The first tensor of a graph that differs, and the nodes that make it on either side.

    `error_before` is the largest of what they read, `error` that of the tensor, `error_alone` what
    B's nodes make of A's values. `runs` is how many pairs of runs it took. Without a tensor nothing
    differs beyond `budget`, and `why` says what that means.
    """

    graph: str
    component: str
    budget: float
    tensor: str = ""
    a: tuple[Node, ...] = ()
    b: tuple[Node, ...] = ()
    error_before: float = 0.0
    error: float = 0.0
    error_alone: float | None = None
    runs: int = 0
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class _Pair:
    """Both graphs on one feed, each tensor's error kept."""

    a: MarkedGraph
    b: MarkedGraph
    feed: Mapping[str, np.ndarray]
    ignored: frozenset[str] = frozenset()
    runs: int = 0

    def __post_init__(self) -> None:
        self.errors: dict[str, float] = dict.fromkeys(self.feed, 0.0)
        self.common = (self.a.computed & self.b.computed) - self.ignored
        self.narrow = bool(self.a.narrow or self.b.narrow)

    def differing(self, names: Sequence[str], budget: float) -> list[str]:
        """Those of `names` that both sides have and whose values are apart."""
        wanted = [n for n in dict.fromkeys(names) if n in self.common and n not in self.errors]
        if wanted:
            self.runs += 1
            x = self.a.run(self.feed, wanted, narrow=self.narrow)
            y = self.b.run(self.feed, wanted, narrow=self.narrow)
            self.errors |= {name: relative_error(y[name], x[name]) for name in wanted}
        return [n for n in names if n in self.errors and not self.errors[n] <= budget]


def isolate(
    graph: str, component: str, a: MarkedGraph, b: MarkedGraph, feeds: Sequence[Mapping[str, Any]],
    budget: float, *, alike: bool, ignored: Sequence[str] = (),
) -> Finding:  # fmt: skip
    """The first node of the graph that leaves the budget while what it reads is within it.

    `alike`: the graphs are the exporter's on both sides, of which equal ones give equal bits. Where
    nothing is beyond the budget, it is then the first node with any difference. `ignored`: tensors
    that need not agree.
    """
    for allowed in (budget, 0.0) if alike else (budget,):
        for feed in feeds:
            pair = _Pair(a, b, feed, frozenset(ignored))
            found = pair.differing(a.outputs, allowed)
            if found:
                return _first(graph, component, pair, found, allowed)
    why = (
        f"no node beyond {budget:g} for the same inputs on a CPU (--budget node= lowers that): the "
        "fault is in what runs B, or shows with other inputs (--seed)"
    )
    return Finding(graph, component, budget, why=why)


def _first(graph: str, component: str, pair: _Pair, differing: list[str], budget: float) -> Finding:
    a = pair.a
    order = sorted(a.ancestors(differing))
    lower, upper = -1, len(order) - 1
    while upper - lower > 1:
        middle = (lower + upper) // 2
        found = pair.differing(_alive(a, order, middle, differing), budget)
        log.info(
            "%s: %d of %d nodes left, %d tensors differ at %s",
            graph, upper - lower, len(order), len(found), a.nodes[order[middle]].name,
        )  # fmt: skip
        if not found:
            lower = middle
            continue
        # Only what made the tensors that differ: the rest agrees or does not matter.
        agreed, differing = set(order[: lower + 1]), found
        makers = a.ancestors(found)
        order = [index for index in order[: middle + 1] if index in makers]
        lower, upper = sum(index in agreed for index in order) - 1, len(order) - 1
    outputs = [name for name in a.nodes[order[upper]].output if name in a.computed]
    tensor = next((name for name in pair.differing(outputs, budget)), differing[0])
    return _explained(graph, component, pair, tensor, budget)


def _alive(a: MarkedGraph, order: list[int], last: int, ends: list[str]) -> list[str]:
    """Computed tensors that nodes up to `last` of `order` made and that is needed after it."""
    made = {name for index in order[: last + 1] for name in a.nodes[index].output if name}
    later = {name for index in order[last + 1 :] for name in a.reads(index)} | set(ends)
    return sorted(made & later, key=lambda name: a.producer[name])


def _explained(graph: str, component: str, pair: _Pair, tensor: str, budget: float) -> Finding:
    """The nodes of both sides between what agrees and the tensor, and B's alone on A's values."""
    a, b = pair.a, pair.b
    known = frozenset(name for name in pair.common if name != tensor)
    chains = [sorted(side.ancestors([tensor], known)) for side in (a, b)]
    reads = {
        name
        for side, chain in zip((a, b), chains, strict=True)
        for index in chain
        for name in side.reads(index)
        if name in known
    }
    pair.differing(sorted(reads), budget)
    before = max((pair.errors[name] for name in reads), default=0.0)
    return Finding(
        graph, component, budget, tensor,
        a=_named(a, chains[0]), b=_named(b, chains[1]),
        error_before=before, error=pair.errors[tensor],
        error_alone=_alone(pair, sorted(reads), tensor), runs=pair.runs,
    )  # fmt: skip


def _named(graph: MarkedGraph, chain: list[int]) -> tuple[Node, ...]:
    return tuple(Node.of(graph, index) for index in chain[:_NAMED])


def _alone(pair: _Pair, reads: list[str], tensor: str) -> float | None:
    """The error of B's nodes alone, given A's values; None where types differ too much to say."""
    try:
        made = [name for name in reads if name not in pair.feed]
        given = {name: pair.feed[name] for name in reads if name in pair.feed}
        given |= pair.a.run(pair.feed, made, exact=True, narrow=pair.narrow) if made else {}
        wanted = pair.a.run(given, [tensor], narrow=pair.narrow)[tensor]
        found = pair.b.run(given, [tensor], narrow=pair.narrow)[tensor]
    except Exception as error:  # onnxruntime has a dozen classes without a common base
        log.info("%s alone cannot run: %s", tensor, error)
        return None
    return relative_error(found, wanted)
