"""Graphs of a bundle as a backend gets them, prepared without building anything."""

from __future__ import annotations

from pathlib import Path

from engines.options import BuildOptions
from engines.prepared_graph import Prepared, prepare
from engines.targets import GraphJob
from engines.weights import WeightStore
from trt_runtime.manifest import read_manifest


def prepared(
    bundle: Path, graph: str, low: str | None, *, native: bool = False, any_tokens: bool = False
) -> Prepared:
    """See :func:`engines.prepared_graph.prepare`."""
    manifest = read_manifest(bundle)
    job = GraphJob(
        graph, manifest.graphs[graph], bundle, manifest.files, bundle,
        WeightStore(bundle, "unused"), bundle, BuildOptions(),
    )  # fmt: skip
    return prepare(job, low, native=native, any_tokens=any_tokens)
