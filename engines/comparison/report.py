"""What a comparison found, as values, as JSON and as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from engines.comparison.budgets import Budget
from engines.comparison.drift import Drift
from engines.comparison.isolate import Finding
from engines.comparison.metrics import COUNT, METRICS
from engines.comparison.stored_tensors import TensorDifference

#: Tensors and findings that the table names; the JSON has all.
_NAMED = 20
#: Nodes that the table names of those that read a tensor: the unrolled tail has it every step.
_READERS = 3


@dataclass(frozen=True)
class Row:
    """One measurement. `limit` None: reported and not judged. `precision`: of the component."""

    name: str
    measured: str
    component: str
    metric: str
    value: float
    limit: float | None
    precision: str
    good: bool

    @classmethod
    def of(
        cls, budget: Budget, component: str, value: float, limit: float | None, precision: str,
        name: str = "",
    ) -> Row:  # fmt: skip
        good = limit is None or budget.measure.within(value, limit)
        return cls(
            name or budget.name, budget.measured, component, budget.metric, value, limit,
            precision, good,
        )  # fmt: skip


@dataclass
class Report:
    """`a` and `b` say what was compared. `skipped`: what was not, by name, and why."""

    a: str
    b: str
    seed: int
    steps: int
    rows: list[Row] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    """Files beside the graphs that differ."""
    weights: list[TensorDifference] = field(default_factory=list)
    readers: dict[str, list[str]] = field(default_factory=dict)
    """By name of a tensor that differs, the nodes that read it (with `isolate`)."""
    drift: Drift | None = None
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return all(row.good for row in self.rows)

    @property
    def exceeded(self) -> list[Row]:
        """The rows outside their budgets."""
        return [row for row in self.rows if not row.good]

    @property
    def components(self) -> list[str]:
        """The components outside a budget, in the order of the loop; of stored numbers theirs."""
        named = [row.component for row in self.exceeded if row.component]
        named += [name.partition(".")[0] for name in self.files]
        named += [difference.component for difference in self.weights]
        return list(dict.fromkeys(named))

    def to_json(self) -> str:
        """The whole report; numbers that JSON lacks as text."""
        drift = self.drift
        value = {
            "a": self.a,
            "b": self.b,
            "seed": self.seed,
            "steps": self.steps,
            "passed": self.passed,
            "components": self.components,
            "rows": [asdict(row) for row in self.rows],
            "skipped": self.skipped,
            "files": self.files,
            "weights": [difference.to_json() for difference in self.weights],
            "readers": self.readers,
            "drift": None
            if drift is None
            else {
                "latents": drift.latents,
                "stop_agreement": drift.agreement,
                "first_different_stop": drift.first_difference,
                "a_stop_probabilities": drift.a_stops.tolist(),
                "b_stop_probabilities": drift.b_stops.tolist(),
            },
            "isolated": [finding.to_json() for finding in self.findings],
            "seconds": round(self.seconds, 3),
        }
        return json.dumps(_finite(value), indent=1, ensure_ascii=False) + "\n"

    def lines(self) -> Iterator[str]:
        """The report for a terminal."""
        yield f"A  {self.a}"
        yield f"B  {self.b}"
        yield ""
        width = max((len(row.name) for row in self.rows), default=0)
        for row in self.rows:
            limit = "not judged" if row.limit is None else f"budget {row.limit:.3g}"
            verdict = "" if row.limit is None else ("  good" if row.good else "  EXCEEDED")
            yield (
                f"{row.name:<{width}}  {row.metric:<8}  {_shown(row):>10}  {limit:<14}"
                f"  {row.precision:<7}{verdict}"
            )
        for name, why in self.skipped.items():
            yield f"{name:<{width}}  not compared: {why}"
        yield from self._drift_lines()
        yield from self._weight_lines()
        found = {finding.component for finding in self.findings if finding.tensor}
        told = [f for f in self.findings if f.tensor or f.component not in found]
        for finding in told[:_NAMED]:
            yield ""
            yield from _finding_lines(finding)
        yield ""
        if self.passed:
            yield f"B is within every budget of A ({self.seconds:.1f} s)"
        else:
            where = ", ".join(self.components) or "the loop"
            yield f"B is OUTSIDE its budgets: {where} ({self.seconds:.1f} s)"

    def _drift_lines(self) -> Iterator[str]:
        drift = self.drift
        if drift is None:
            return
        marks = sorted({1, 5, 10, 20, 50, 100, 200, len(drift.latents)})
        shown = ", ".join(
            f"{drift.latents[step - 1]:.2g} at step {step}"
            for step in marks
            if step <= len(drift.latents)
        )
        yield ""
        yield f"latents apart by {shown}"
        where = drift.first_difference
        yield (
            f"stop decisions agree in {100 * drift.agreement:.1f} %"
            + (f", first other at step {where}" if where else "")
        )

    def _weight_lines(self) -> Iterator[str]:
        if self.files:
            yield ""
            yield f"files that differ: {', '.join(self.files)}"
        if not self.weights:
            return
        yield ""
        yield f"stored tensors that differ: {len(self.weights)}"
        for difference in self.weights[:_NAMED]:
            form = f" ({difference.form})" if difference.form else ""
            yield (
                f"  {difference.name}: {difference.differing:,} of {difference.numbers:,} numbers, "
                f"relative error {difference.error:.2e}{form}"
            )
            nodes = self.readers.get(difference.name, [])
            for reader in nodes[:_READERS]:
                yield f"    read by {reader}"
            if len(nodes) > _READERS:
                yield f"    and by {len(nodes) - _READERS} more"
        if len(self.weights) > _NAMED:
            yield f"  and {len(self.weights) - _NAMED} more (--json names them)"


def _shown(row: Row) -> str:
    """The value with its unit; a count as a whole number."""
    unit = METRICS[row.metric].unit
    if row.metric == COUNT.name:
        return f"{row.value:,.0f}"
    return f"{row.value:.3g}{f' {unit}' if unit else ''}"


def _finding_lines(finding: Finding) -> Iterator[str]:
    if not finding.tensor:
        yield f"{finding.graph}: no node found: {finding.why}"
        return
    yield (
        f"{finding.graph}: first apart in {finding.tensor}, {finding.error:.2e} after "
        f"{finding.error_before:.2e} before"
        + ("" if finding.error_alone is None else f", {finding.error_alone:.2e} by itself")
        + f" ({finding.runs} runs)"
    )
    sides = (
        [("A and B", finding.a)] if finding.a == finding.b else [("A", finding.a), ("B", finding.b)]
    )
    for name, nodes in sides:
        for node in nodes:
            where = f" at {node.source}" if node.source else ""
            reads = f", reads {', '.join(node.initializers)}" if node.initializers else ""
            yield f"  {name}: {node.op_type} {node.name}{where}{reads}"


def _finite(value: Any) -> Any:
    """`value` with infinities and NaN, which JSON has not, as text."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
