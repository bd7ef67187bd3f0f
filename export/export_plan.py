"""What an export will write, part by part, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from export.checkpoint import Checkpoint
from export.graphs import GraphSource, graph_sources
from export.needs import graph_seconds
from export.parameters import Parameter
from export.producer import producer_facts
from export.progress import READ, TRACE, WRITE
from export.verification import no_room_to_compare
from export.weights import layout
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import StoredTensor, digest_of


def weights_part(component: str) -> str:
    return f"weights of {component}"


def graph_part(graph: str) -> str:
    return f"graph {graph}"


def weights_file(component: str) -> str:
    return f"{component}.weights"


@dataclass(frozen=True)
class Plan:
    """The parts of one bundle: a weight file for each component, then the graphs."""

    opened: Checkpoint
    geometry: Geometry
    check_values: bool
    memory: int

    @cached_property
    def components(self) -> dict[str, list[Parameter]]:
        """The parameters of each component, in the order in which they are written."""
        components: dict[str, list[Parameter]] = {}
        for row in self.opened.parameters:
            components.setdefault(row.component, []).append(row)
        return components

    @cached_property
    def graphs(self) -> list[GraphSource]:
        return list(graph_sources(self.geometry))

    @cached_property
    def _stored(self) -> dict[str, dict[str, StoredTensor]]:
        return {
            component: layout(self.opened, rows, weights_file(component))
            for component, rows in self.components.items()
        }

    def weights(self, source: GraphSource) -> dict[str, StoredTensor]:
        """The stored parameters of the components that a graph is made of."""
        # A component may be empty: the tied language head has no table of its own.
        parts = [self._stored.get(component, {}) for component in source.components]
        return {name: tensor for part in parts for name, tensor in part.items()}

    def weight_bytes(self, component: str) -> int:
        return sum(tensor.bytes for tensor in self._stored[component].values())

    @property
    def bytes_read(self) -> int:
        """Of the tensors that are consumed."""
        return sum(self.opened.tensors[name].bytes for name in self.opened.match.consumed)

    def parameter_counts(self) -> dict[str, int]:
        return {
            component: sum(row.elements for row in rows)
            for component, rows in self.components.items()
        }

    def graph_seconds(self, source: GraphSource) -> float:
        """What a graph will take, by estimate."""
        compared = self.check_values and not no_room_to_compare(self.weights(source), self.memory)
        return graph_seconds(source.spec, self.parameter_counts(), self.geometry, compared=compared)

    def units(self) -> Iterator[tuple[str, float]]:
        """All of the work, as :mod:`export.progress` counts it."""
        yield READ, self.bytes_read
        for component in self.components:
            yield WRITE, self.weight_bytes(component)
        for source in self.graphs:
            yield TRACE, self.graph_seconds(source)

    def keys(self, digest: str) -> dict[str, str]:
        """For each part what it is made from, as a digest; `digest` is that of the tensors.

        A graph's key has the options too, and whether its values are to be compared and in what.
        """
        family, sizes = self.opened.family.name, repr(self.opened.sizes)
        source = digest_of([producer_facts(), family, sizes, digest])
        graphs = digest_of([source, self.geometry.to_json(), self.check_values, self.memory])
        return {weights_part(name): source for name in self.components} | {
            graph_part(graph.spec.name): graphs for graph in self.graphs
        }
