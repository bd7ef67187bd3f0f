"""Comparing B with A: weights, components on forced inputs, the loop, and where a fault begins."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engines.comparison.budgets import BUDGETS, Budget, budgets_of, checked_overrides
from engines.comparison.destinations import check_destinations, write_all
from engines.comparison.drift import Drift, check_steps, first_rows, run_loop
from engines.comparison.graph_pairs import (
    graphs_that_differ,
    isolated,
    readers,
    runnable_graphs,
)
from engines.comparison.inputs import Inputs, recorded_inputs, seeded_inputs
from engines.comparison.plot import drawn
from engines.comparison.probes import PROBES, Outputs, walk
from engines.comparison.report import Report, Row
from engines.comparison.runners import measured, outputs_of, run_both
from engines.comparison.sides import LOWER, Side, open_sides
from engines.comparison.spoken_prompts import spoken_prompts
from engines.comparison.stored_tensors import (
    IN_GRAPH,
    comparable,
    differing_files,
    differing_tensors,
)
from engines.precision import FLOAT32
from trt_runtime.errors import NumericError, UserError
from trt_runtime.noise import LARGEST_SEED, check_seed

log = logging.getLogger(__name__)

STEPS = 50
#: Kept free from the seed on: each slot of the loop takes the next one.
_SEEDS = 64
#: Called with each line that a user should see while it works.
Progress = Callable[[str], None]


def compare(
    a: str | Path,
    b: str | Path,
    *,
    inputs: str | Path | None = None,
    seed: int = 0,
    steps: int = STEPS,
    budgets: Mapping[str, float] | None = None,
    isolate: bool = False,
    json: str | Path | None = None,
    plot: str | Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Judges B by A, the reference; each is a checkpoint's folder, a bundle or an engine folder.

    Every component is given A's values, so that an error is blamed on the component that made it;
    then both loops run `steps` steps with shared noise. `inputs` is a .npz file of
    :class:`engines.comparison.inputs.Inputs`, None draws them from the `seed`. `budgets` replaces
    limits of :data:`engines.comparison.budgets.BUDGETS` by name. `isolate` looks for the first node
    that leaves the budget. `json` and `plot` (PNG) are written where all went well, both or
    neither, and never over a file of A, B or `inputs`. The same for the same seed and the same
    folders.

    Raises UserError or FolderError for what cannot be compared, read or written; a report outside
    its budgets is no error.
    """
    started = time.perf_counter()
    overrides = checked_overrides(budgets or {})
    _check_seed(seed)
    recorded, json_path, plot_path = (
        None if path is None else Path(path) for path in (inputs, json, plot)
    )
    check_destinations(json_path, plot_path, Path(a), Path(b), recorded)
    sides = open_sides(a, b, threads=threads)
    geometries = sides[0].geometry, sides[1].geometry
    given = (
        seeded_inputs(*geometries, seed)
        if recorded is None
        else recorded_inputs(recorded, *geometries, seed)
    )
    prompts = spoken_prompts(sides) if given.spoken else given.token_ids
    check_steps(sides, max(prompts.shape[1], given.token_ids.shape[1]), steps)
    report = Report(str(sides[0]), str(sides[1]), seed, steps)
    work = _Work(sides, given, overrides, report, progress or log.info)
    work.weights()
    work.components()
    waves = work.loop(prompts, steps)
    if isolate and not report.passed:
        work.isolate()
    report.seconds = time.perf_counter() - started
    _write(report, json_path, plot_path, waves, sides[0].geometry.sample_rate)
    return report


@dataclass
class _Work:
    """The stages of one comparison, each adding to the report."""

    sides: tuple[Side, Side]
    inputs: Inputs
    overrides: Mapping[str, float]
    report: Report
    say: Progress

    def limit(self, budget: Budget, precision: str) -> float | None:
        return self.overrides.get(budget.name, budget.limit(precision))

    def precision(self, *components: str) -> str:
        """The lower of both sides': a reference that is narrow itself is no better than B."""
        found = {side.precision(component) for side in self.sides for component in components}
        return FLOAT32 if found == {FLOAT32} else LOWER

    def add(self, name: str, component: str, value: float, precision: str, shown: str = "") -> None:
        budget = BUDGETS[name]
        limit = self.limit(budget, precision)
        self.report.rows.append(Row.of(budget, component, value, limit, precision, shown))

    def weights(self) -> None:
        """Stored numbers of both, by content; then the graphs whose nodes differ."""
        if all(side.manifest is not None for side in self.sides):
            self.report.files = differing_files(self.sides)
            self.add("files", "", float(len(self.report.files)), FLOAT32)
        if not comparable(self.sides):
            self.report.skipped["weights"] = "engines store other tensors than a bundle"
            return
        self.say("comparing the stored numbers")
        found = differing_tensors(self.sides)
        self.report.weights = found
        self.add("weights", "", float(sum(d.differing for d in found)), FLOAT32)
        for graph in graphs_that_differ(self.sides, self.report.seed):
            precision = self.precision(graph.component)
            where = f"graph {graph.name}"
            self.add("graphs", graph.component, graph.error, precision, where)
            narrow = float(graph.narrow)
            self.add("graphs.narrow", graph.component, narrow, precision, f"{where}.narrow")

    def components(self) -> None:
        """Each component of both on what A gave it."""
        self.say(f"walking A: {self.inputs.slots} prompts, {self.inputs.steps} steps")
        feed = walk(self.sides[0], self.inputs)
        for name, probe in PROBES.items():
            if why := probe.missing(self.sides):
                self.report.skipped[name] = why
                continue
            self.say(f"comparing {name}")
            given = {key: feed[key] for key in probe.inputs}
            self._judge(name, probe.component, (probe.component,), given)

    def _judge(
        self, name: str, component: str, of: tuple[str, ...], given: Mapping[str, np.ndarray]
    ) -> None:
        precision = self.precision(*of)
        judged = [(budget, self.limit(budget, precision)) for budget in budgets_of(name)]
        try:
            results = run_both(self.sides, PROBES[name].run, given)
            rate = self.sides[0].geometry.sample_rate
            values = measured(results, judged, rate)
        except NumericError as error:
            self.report.skipped[name] = error.what
            values = {budget.name: budget.measure.worst() for budget, _ in judged}
        for budget, _ in judged:
            self.add(budget.name, component, values[budget.name], precision)

    def loop(self, prompts: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Both loops with shared noise; what their first requests say, (samples,) each.

        prompts: (slots, tokens) int64, the shorter ones padded.
        """
        self.say(f"running both loops for {steps} steps")
        given = {
            "token_ids": prompts,
            "seed": np.array(self.report.seed, np.uint64),
            "steps": np.array(steps),
        }
        precision = self.precision(*(probe.component for probe in PROBES.values()))
        results = run_both(self.sides, run_loop, given)
        a, b = outputs_of(results)
        judged = [
            (budget, self.limit(budget, precision))
            for budget in budgets_of("loop")
            if budget.output != "rows"
        ]
        rate = self.sides[0].geometry.sample_rate
        for name, value in measured(results, judged, rate).items():
            self.add(name, "", value, precision)
        self._rows(b, precision)
        self.report.drift = Drift.of(a, b)
        return a["audio"][0], b["audio"][0]

    def _rows(self, b: Outputs, precision: str) -> None:
        """Equal requests of a batch must be equal in B, whatever A does."""
        budget = BUDGETS["loop.rows"]
        self.add("loop.rows", "", budget.measure(b["rows"], first_rows(b["rows"])), precision)

    def isolate(self) -> None:
        """The first node that leaves the budget, of each graph of the components outside theirs."""
        report = self.report
        budget = BUDGETS["node"]
        allowed = self.limit(budget, FLOAT32)
        assert allowed is not None
        components = {row.component for row in report.exceeded if row.component}
        unrolled = any(side.unrolled for side in self.sides)
        if "flow" in components and (unrolled or comparable(self.sides)):
            # The same weights in one graph: what a side runs, or what a bundle also holds.
            components = components - ({"flow"} if unrolled else set()) | {"tail"}
        named = {d.name.split(IN_GRAPH)[0] for d in report.weights if IN_GRAPH in d.name}
        with ExitStack() as stack:
            self.say("looking for the first node that differs")
            pair = stack.enter_context(runnable_graphs(self.sides))
            stored = {d.name for d in report.weights}
            named |= {
                name
                for name, entry in pair[0].manifest.graphs.items()
                if stored & set(entry.initializers)
            }
            if not components and not named:
                # Only the loop has parted: any of them may be why.
                components = {entry.component for entry in pair[0].manifest.graphs.values()}
            report.readers = readers(pair, report.weights)
            report.findings = isolated(pair, components, named, allowed, report.seed)


def _check_seed(seed: int) -> None:
    largest = LARGEST_SEED - _SEEDS
    if check_seed(seed) > largest:
        raise UserError(
            "The seed cannot be used",
            expected=f"a whole number from 0 to {largest}: each slot has one of its own",
            found=str(seed),
            do="choose a smaller seed",
        )


def _write(
    report: Report,
    json: Path | None,
    plot: Path | None,
    waves: tuple[np.ndarray, np.ndarray],
    sample_rate: int,
) -> None:
    files: dict[Path, bytes] = {}
    if json is not None:
        files[json] = report.to_json().encode("utf-8")
    if plot is not None:
        assert report.drift is not None
        files[plot] = drawn(report.drift, *waves, sample_rate)
    write_all(files)
