"""The graphs of both sides in pairs: those whose nodes differ, and where they leave a budget."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engines.comparison.isolate import Finding, isolate
from engines.comparison.marked_graph import MarkedGraph
from engines.comparison.metrics import relative_error
from engines.comparison.sides import CHECKPOINT, Side
from engines.comparison.stored_tensors import IN_GRAPH, TensorDifference
from engines.graph_inputs import graph_inputs
from trt_runtime.contract import NEXT
from trt_runtime.folder import ENGINE
from trt_runtime.manifest import BUNDLE, GraphEntry, Manifest, read_manifest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Graphs:
    """A folder whose graphs can be run: a side's own, or the export of a checkpoint."""

    path: Path
    manifest: Manifest

    def marked(self, name: str) -> MarkedGraph:
        return MarkedGraph(self.path, self.manifest.graphs[name], self.manifest)

    @property
    def exported(self) -> bool:
        """Whether the exporter wrote them, and no builder changed them."""
        return self.manifest.kind == BUNDLE


@contextmanager
def runnable_graphs(sides: tuple[Side, Side]) -> Iterator[tuple[Graphs, Graphs]]:
    """Both sides' graphs; a checkpoint is exported for it, into a folder that is then deleted."""
    with tempfile.TemporaryDirectory(prefix="ming-trt-compare-") as folder:
        found = [_graphs(side, Path(folder) / side.name) for side in sides]
        yield found[0], found[1]


def _graphs(side: Side, place: Path) -> Graphs:
    if side.kind != CHECKPOINT:
        assert side.manifest is not None
        return Graphs(side.path, side.manifest)
    from export import ExportOptions, export_checkpoint

    g = side.geometry
    log.info("exporting %s to look into its graphs", side.path)
    options = ExportOptions(g.cache_length, g.max_steps, g.prefill_chunks, g.max_reference_latents)
    export_checkpoint(side.path, place, options=options, check_values=False, resumable=False)
    return Graphs(place, read_manifest(place))


def feeds(graphs: Graphs, name: str, seed: int) -> list[dict[str, np.ndarray]]:
    """The middle of a request with several slots, and its first call with one."""
    inputs, geometry = graphs.manifest.graphs[name].inputs, graphs.manifest.geometry
    middle = graph_inputs(inputs, geometry, seed=seed)
    first = graph_inputs(inputs, geometry, slots=1, seed=seed, first_call=True)
    return [middle, first]


@dataclass(frozen=True)
class GraphDifference:
    """A graph of other nodes: the largest relative error of an output, and B's narrow nodes.

    `narrow` is how many more of B's nodes than of A's round to less than float32.
    """

    name: str
    component: str
    error: float
    narrow: int


def graphs_that_differ(sides: tuple[Side, Side], seed: int) -> list[GraphDifference]:
    """Of bundles, every graph whose nodes are others, also those that no loop on a CPU runs.

    A bundle's loop leaves the unrolled tail alone, and engines for a GPU are made of it.
    """
    if any(side.kind != "bundle" for side in sides):
        return []
    a, b = (_graphs(side, side.path) for side in sides)
    found: list[GraphDifference] = []
    for name, entry in a.manifest.graphs.items():
        other = b.manifest.graphs.get(name)
        if other is None or other.inputs != entry.inputs or _same_file(a, b, name):
            continue
        x, y = a.marked(name), b.marked(name)
        if _nodes(x) == _nodes(y):
            continue
        narrow = bool(x.narrow or y.narrow)
        error = 0.0
        for feed in feeds(a, name, seed):
            wanted, made = (graph.run(feed, x.outputs, narrow=narrow) for graph in (x, y))
            error = max(error, *(relative_error(made[n], wanted[n]) for n in x.outputs))
        more = max(0, y.narrow - x.narrow)
        found.append(GraphDifference(name, entry.component, error, more))
    return found


def _same_file(a: Graphs, b: Graphs, name: str) -> bool:
    """Whether the graph's files are equal, as the manifests list them."""
    files = [graphs.manifest.files[graphs.manifest.graphs[name].file] for graphs in (a, b)]
    return files[0] == files[1]


def _nodes(graph: MarkedGraph) -> list[bytes]:
    parts = [*graph.model.graph.node, *graph.model.functions]
    return [part.SerializeToString(deterministic=True) for part in parts]


def isolated(
    pair: tuple[Graphs, Graphs], components: Iterable[str], names: Iterable[str], budget: float,
    seed: int,
) -> list[Finding]:  # fmt: skip
    """What is first apart in each graph of `components`, and in those of `names`.

    A finding without a tensor says why there is none, and what to do where it cannot be looked for.
    """
    a, b = pair
    wanted, named = set(components), set(names)
    findings: list[Finding] = []
    for name, entry in a.manifest.graphs.items():
        component = entry.component
        if component not in wanted and name not in named:
            continue
        if why := _why_not(a.manifest, b.manifest, name, entry):
            # Once a component that has no graphs at all, not once a graph.
            finding = Finding(name, component, budget, why=why)
            if all((f.component, f.why) != (component, why) for f in findings):
                findings.append(finding)
            continue
        given = feeds(a, name, seed)
        alike = a.exported and b.exported
        # What lies in a cache past the positions is nobody's: kernels leave it as it was, or not.
        ignored = () if alike else [state + NEXT for state in entry.in_place]
        marked = a.marked(name), b.marked(name)
        findings.append(
            isolate(name, component, *marked, given, budget, alike=alike, ignored=ignored)
        )
    return findings


def _why_not(a: Manifest, b: Manifest, name: str, entry: GraphEntry) -> str:
    """Why both sides' graph cannot be looked into, and what to do; "" where it can."""
    component = entry.component
    engines = [side for side, manifest in (("A", a), ("B", b)) if _is_engine(manifest, component)]
    if engines:
        runs = "A and B run" if len(engines) == 2 else f"{engines[0]} runs"
        return (
            f"{runs} {component} as an engine, which has no graph to look into: compare the bundle "
            "that it was built from"
        )
    other = b.graphs.get(name)
    if other is not None:
        same = other.inputs == entry.inputs
        return "" if same else "its inputs have other shapes: export both with the same options"
    row = b.components.get(component)
    if row is not None and row.tensors:
        return (
            f"B runs {component} by {row.backend}, which has no graph: compare the bundle that B "
            "was built from; if that is good, the fault is in the kernels or in what was built for "
            "them"
        )
    return f"B has no graph {name}: compare the bundle that B was built from"


def _is_engine(manifest: Manifest, component: str) -> bool:
    row = manifest.components.get(component)
    return row is not None and row.backend == ENGINE


def readers(
    pair: tuple[Graphs, Graphs], differences: Iterable[TensorDifference]
) -> dict[str, list[str]]:
    """By name of a tensor that differs, the nodes of A's graphs that read it."""
    names = [difference.name for difference in differences]
    found: dict[str, list[str]] = {name: [] for name in names}
    for graph, entry in pair[0].manifest.graphs.items():
        stored = {name: name for name in names if name in entry.initializers}
        stored |= {n: n.split(IN_GRAPH, 1)[1] for n in names if n.startswith(graph + IN_GRAPH)}
        marked = pair[0].marked(graph) if stored else None
        for name, tensor in stored.items():
            assert marked is not None
            for index in marked.readers(tensor):
                where = marked.source(index)
                node = marked.nodes[index]
                at = f" at {where}" if where else ""
                found[name].append(f"{node.op_type} {node.name} of {graph}{at}")
    return found
