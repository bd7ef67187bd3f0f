"""What of a bundle goes into an engine folder, under which names, and how large that will be."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from engines.precision import FLOAT32, find_precision
from engines.targets import Target
from trt_runtime.errors import FolderError
from trt_runtime.manifest import (
    MANIFEST,
    ComponentEntry,
    GraphEntry,
    Manifest,
    is_plain_name,
    rebuild_command,
)
from trt_runtime.raw_tensors import DTYPE_BYTES

_FLOATS = ("bfloat16", "float16", "float32", "float64")


def component_graphs(bundle: Manifest, target: Target) -> dict[str, dict[str, GraphEntry]]:
    """The graphs that the target takes, by component and name."""
    components: dict[str, dict[str, GraphEntry]] = {}
    for name, graph in bundle.graphs.items():
        if target.takes(name):
            components.setdefault(graph.component, {})[name] = graph
    return components


def weights_file(component: str) -> str:
    """Name of the file that holds a component's weights."""
    return f"{component}.weights"


def build_log(component: str) -> str:
    """Name of the file that keeps what a library said while it built a component's engine."""
    return f"{component}.build.log"


def asset_names(bundle: Manifest) -> list[str]:
    """The bundle's files that are neither graphs nor weights, such as the tokenizer."""
    taken = set()
    for graph in bundle.graphs.values():
        taken.add(graph.file)
        taken.update(tensor.file for tensor in graph.initializers.values())
    return sorted(set(bundle.files) - taken)


def check_names(folder: Path, bundle: Manifest, target: Target) -> None:
    """Raises FolderError where two files of the engine folder would have one name."""
    components = component_graphs(bundle, target)
    for component in components:
        if not is_plain_name(component):
            raise FolderError(
                f"{folder / MANIFEST} names a component that cannot name a file",
                expected="letters, digits, '.', '_' and '-'",
                found=repr(component),
                do=f"make the bundle again: {rebuild_command(bundle, folder)}",
            )
    names = [graph.file for graphs in components.values() for graph in graphs.values()]
    names += map(weights_file, components)
    names += asset_names(bundle)
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise FolderError(
            f"{folder / MANIFEST} uses one file name for several things",
            expected="a file a graph, apart from weights and other files",
            found=", ".join(twice),
            do=f"make the bundle again: {rebuild_command(bundle, folder)}",
        )


def stored_precisions(
    graphs: Mapping[str, GraphEntry], components: Mapping[str, ComponentEntry], precision: str
) -> dict[str, str]:
    """Precision by component: the mixed one it was built in, else the widest float of its weights.

    A table that is only looked up keeps the checkpoint's precision, since widening it would add
    memory and no accuracy; a component without large weights is float32. Without graphs it is the
    narrowest: what is multiplied, beside norms and biases that cost nothing.
    """
    chosen = find_precision(precision)
    found: dict[str, set[str]] = {}
    for graph in graphs.values():
        types = found.setdefault(graph.component, set())
        types.update(t.dtype for t in graph.initializers.values() if t.dtype in _FLOATS)
    widest = {
        component: max(sorted(types), key=DTYPE_BYTES.__getitem__, default=FLOAT32)
        for component, types in found.items()
    }
    narrowest = {
        component: min((t.dtype for t in entry.tensors.values()), key=DTYPE_BYTES.__getitem__)
        for component, entry in components.items()
        if entry.tensors
    }
    mixed = {c: chosen.of(c) for c in widest if chosen.low_type(c) is not None}
    return dict(sorted((widest | narrowest | mixed).items()))


def bytes_needed(bundle: Manifest, target: Target) -> int:
    """About the disk that a build needs at its fullest: all engines, and one graph's scratch.

    Every tensor is counted as float32, so it is rather too much than too little.
    """
    distinct: dict[tuple[str, str, int], int] = {}
    largest = 0
    total = sum(bundle.files[name][0] for name in asset_names(bundle))
    for graphs in component_graphs(bundle, target).values():
        for graph in graphs.values():
            sizes = {
                (graph.component, tensor.file, tensor.offset): 4 * math.prod(tensor.shape)
                for tensor in graph.initializers.values()
            }
            distinct |= sizes
            largest = max(largest, sum(sizes.values()))
            total += bundle.files[graph.file][0]
    return total + sum(distinct.values()) + largest
