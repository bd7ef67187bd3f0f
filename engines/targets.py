"""The targets that engines can be built for: one row each, and what a row's builder is given."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trt_runtime.contract import TAIL
from trt_runtime.errors import UserError
from trt_runtime.manifest import GraphEntry

if TYPE_CHECKING:
    from engines.weights import WeightStore


@dataclass(frozen=True)
class GraphJob:
    """What a builder needs for one graph.

    `entry` is the graph in the bundle's manifest and `files` that manifest's files; the result goes
    to `out` under `entry.file`, its large tensors to `weights`, which the component's graphs share;
    `scratch` is an empty folder on the same file system, deleted afterwards.
    """

    name: str
    entry: GraphEntry
    bundle: Path
    files: Mapping[str, tuple[int, str]]
    out: Path
    weights: WeightStore
    scratch: Path


#: Builds one graph and returns its entry for the engine folder's manifest.
Builder = Callable[[GraphJob], GraphEntry]


@dataclass(frozen=True)
class Target:
    """One row.

    `leaves_out` names the graphs of a bundle that the target does without; `build` is
    "module:function" of a :data:`Builder`, imported when it is needed; `needs` gives, by name of
    an import, the command that installs it; `machine_needs` gives, by precision, the processor
    features (:data:`trt_runtime.machine.FEATURES`) without which the results would differ.
    """

    name: str
    description: str
    build: str
    leaves_out: frozenset[str] = frozenset()
    precision: str = "float32"
    needs: Mapping[str, str] = field(default_factory=dict)
    machine_needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def takes(self, graph: str) -> bool:
        """Whether the target builds the bundle's graph of this name."""
        return graph not in self.leaves_out

    def load_builder(self) -> Builder:
        """Imports the builder; UserError with the command to run where a package is missing."""
        for name, command in self.needs.items():
            if importlib.util.find_spec(name) is None:
                raise UserError(
                    f"Building for {self.name} needs the package {name}",
                    found="it is not installed here",
                    do=command,
                )
        module, _, function = self.build.partition(":")
        builder: Builder = getattr(importlib.import_module(module), function)
        return builder


_TABLE = (
    Target(
        "cpu",
        "ONNX Runtime on any CPU, float32",
        build="engines.onnxruntime_cpu:build_graph",
        # A runtime on CPU repacks weights for each node that uses them: a loop over one solver
        # step packs them once where the unrolled tail packs them once a step.
        leaves_out=frozenset({TAIL}),
        needs={
            "onnx": "pip install 'ming-trt[engines]'",
            "onnxruntime": "pip install 'ming-trt[cpu]'",
        },
        machine_needs={"float32": ()},
    ),
)
TARGETS: Mapping[str, Target] = {target.name: target for target in _TABLE}


def find_target(name: str) -> Target:
    """The row of this name; UserError listing the names where there is none."""
    try:
        return TARGETS[name]
    except KeyError:
        raise UserError(
            f"There is no target {name!r}",
            expected=" or ".join(TARGETS),
            found=repr(name),
            do="choose one of the targets that build-engines --list-targets shows",
        ) from None
