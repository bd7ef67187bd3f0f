"""The targets that engines can be built for: one row each, and what a row's builders are given."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.options import BuildOptions
from engines.precision import FLOAT32, PRECISIONS
from trt_runtime.contract import FLOW_STEP, TAIL, TALKER
from trt_runtime.errors import UserError
from trt_runtime.manifest import ComponentEntry, GraphEntry, StoredTensor
from trt_runtime.tensorrt_library import MODULES, TENSORRT, TENSORRT_RTX, install_command

if TYPE_CHECKING:
    from engines.machines import Machine
    from engines.weights import WeightStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GraphJob:
    """What is needed to build one graph.

    `entry` is the graph in the bundle's manifest and `files` that manifest's files; the result goes
    to `out` under `entry.file`, its large tensors to `weights`, which the component's graphs share;
    `scratch` is an empty folder on the same file system, deleted afterwards; `options` is what the
    caller chose.
    """

    name: str
    entry: GraphEntry
    bundle: Path
    files: Mapping[str, tuple[int, str]]
    out: Path
    weights: WeightStore
    scratch: Path
    options: BuildOptions = field(default_factory=BuildOptions)


@dataclass(frozen=True)
class ComponentJob:
    """What a builder needs for one component: its graphs in the bundle, and what else that says.

    `step(name)` is held while one thing is built: it gives a scratch folder, and afterwards a line
    of progress and the figures of the manifest. `say` shows a line; `target` is its name;
    `machine` is what the manifest will say of the machine; `failed_log` is where a log is kept of a
    build that fails; `replaces` is the folder that the engines will replace, if there is one.
    Everything else is as in :class:`GraphJob`.
    """

    name: str
    graphs: Mapping[str, GraphEntry]
    entry: ComponentEntry
    bundle: Path
    files: Mapping[str, tuple[int, str]]
    out: Path
    weights: WeightStore
    step: Callable[[str], AbstractContextManager[Path]]
    options: BuildOptions = field(default_factory=BuildOptions)
    say: Callable[[str], None] = log.info
    target: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    failed_log: Path = Path("build.log")
    replaces: Path = Path()

    def graph(self, name: str, scratch: Path) -> GraphJob:
        """The same for one of its graphs."""
        return GraphJob(
            name, self.graphs[name], self.bundle, self.files, self.out, self.weights, scratch,
            self.options,
        )  # fmt: skip


@dataclass(frozen=True)
class Built:
    """A component in an engine folder: graphs, or the tensors of a backend that runs none.

    `profiles` are those of an engine's buckets; `operators` says what plugin operators became;
    `figures` is what the manifest notes of the build beside what the build itself measures.
    """

    graphs: Mapping[str, GraphEntry] = field(default_factory=dict)
    tensors: Mapping[str, StoredTensor] = field(default_factory=dict)
    profiles: tuple[tuple[int, int], ...] = ()
    operators: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)


#: Builds one component.
Builder = Callable[[ComponentJob], Built]


@dataclass(frozen=True)
class Row:
    """How a component is built ("module:function" of a :data:`Builder`), and what then runs it."""

    backend: str
    build: str


@dataclass(frozen=True)
class Target:
    """One row of the table of targets.

    `row` is that of every component but those in `others`; `leaves_out` names the graphs of a
    bundle that the target does without; `needs` gives, by name of an import, the command that
    installs it; `machine_needs` gives, by precision, the processor features
    (:data:`trt_runtime.machine.FEATURES`) without which the results would differ.
    `machine` ("module:function", given the row and the options) says what the manifest has to say
    of the machine, and refuses what cannot be built here; `compute_capability` is the least that a
    GPU must have where that is the row's to say. `options` names those of
    :class:`engines.options.BuildOptions` that the target has, `precisions` the values of one.
    """

    name: str
    description: str
    row: Row
    others: Mapping[str, Row] = field(default_factory=dict)
    leaves_out: frozenset[str] = frozenset()
    needs: Mapping[str, str] = field(default_factory=dict)
    machine_needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    compute_capability: str = ""
    machine: str = "engines.machines:processor"
    options: frozenset[str] = frozenset({"precision"})
    precisions: tuple[str, ...] = (FLOAT32,)

    def takes(self, graph: str) -> bool:
        """Whether the target builds the bundle's graph of this name."""
        return graph not in self.leaves_out

    def check_options(self, options: BuildOptions) -> None:
        """Raises UserError for options that this target does not have."""
        options.check_taken(self.name, self.options)
        if options.precision not in self.precisions:
            raise UserError(
                f"Target {self.name} has no precision {options.precision}",
                expected=" or ".join(self.precisions),
                found=options.precision,
                do="choose another precision or another target (build-engines --list-targets)",
            )

    def describe_machine(self, options: BuildOptions) -> Machine:
        """What the manifest says of the machine; UserError where it cannot build this."""
        machine: Machine = _imported(self.machine)(self, options)
        return machine

    def row_of(self, component: str) -> Row:
        return self.others.get(component, self.row)

    def load_builders(self) -> dict[Row, Builder]:
        """Imports the builders; UserError with the command to run where a package is missing."""
        for name, command in self.needs.items():
            if importlib.util.find_spec(name) is None:
                raise UserError(
                    f"Building for {self.name} needs the package {name}",
                    found="it is not installed here",
                    do=command,
                )
        return {row: _imported(row.build) for row in (self.row, *self.others.values())}


def _imported(place: str) -> Any:
    module, _, function = place.partition(":")
    return getattr(importlib.import_module(module), function)


_CPU_NEEDS = {
    "onnx": "pip install 'ming-trt[engines]'",
    "onnxruntime": "pip install 'ming-trt[cpu]'",
}
_TENSORRT = Row("tensorrt", "engines.tensorrt_build:build_component")
#: An engine of the unrolled tail is one launch a step.
_TENSORRT_LEAVES_OUT = frozenset({FLOW_STEP})


def _tensorrt_needs(target: str) -> dict[str, str]:
    return {"onnx": _CPU_NEEDS["onnx"], MODULES[target]: install_command(target)}


_TABLE = (
    Target(
        "cpu",
        "ONNX Runtime on any CPU, float32",
        Row("onnxruntime-cpu", "engines.onnxruntime_cpu:build_component"),
        # A runtime on CPU repacks weights for each node that uses them: a loop over one solver
        # step packs them once where the unrolled tail packs them once a step.
        leaves_out=frozenset({TAIL}),
        needs=_CPU_NEEDS,
        machine_needs={FLOAT32: ()},
    ),
    Target(
        "cuda",
        "NVIDIA GPUs of compute capability 8.0 and later: the talker by our kernels in bfloat16, "
        "all else by ONNX Runtime in the precision asked for; built on any machine",
        Row("onnxruntime-cuda", "engines.onnxruntime_cuda:build_component"),
        others={TALKER: Row("plugin-loop", "engines.plugin_loop:build_component")},
        # Captured as one CUDA graph, the unrolled tail costs one launch a step.
        leaves_out=frozenset({FLOW_STEP}),
        needs={**_CPU_NEEDS, "ml_dtypes": "pip install 'ming-trt[engines]'"},
        machine="engines.machines:least_gpu",
        # The kernels multiply bfloat16.
        compute_capability="8.0",
        precisions=tuple(PRECISIONS),
    ),
    Target(
        TENSORRT,
        "TensorRT, for the NVIDIA GPU that is here",
        _TENSORRT,
        leaves_out=_TENSORRT_LEAVES_OUT,
        needs=_tensorrt_needs(TENSORRT),
        machine="engines.machines:present_gpu",
        options=frozenset(
            {"precision", "slots", "version_compatible", "weight_streaming", "ampere_and_later",
             "time_limit"}
        ),
        precisions=tuple(PRECISIONS),
    ),
    Target(
        TENSORRT_RTX,
        "TensorRT-RTX, for GPUs that are named (--compute-capability); built on any machine",
        _TENSORRT,
        leaves_out=_TENSORRT_LEAVES_OUT,
        needs=_tensorrt_needs(TENSORRT_RTX),
        machine="engines.machines:named_gpus",
        options=frozenset(
            {"precision", "slots", "compute_capability", "ampere_and_later", "time_limit"}
        ),
        precisions=tuple(PRECISIONS),
    ),
)  # fmt: skip
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
