"""The budgets of a comparison: none is loose, and docs/compare.md has them all."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from engines.comparison.budgets import BUDGETS, Budget
from engines.comparison.inputs import PROBE_STEPS, SLOTS
from engines.comparison.metrics import METRICS
from engines.comparison.sides import LOWER
from engines.precision import FLOAT32

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compare.md"


def outputs(budget: Budget) -> np.ndarray:
    rng = np.random.default_rng(1)
    shape = (3, 20_000) if budget.output == "audio" else (PROBE_STEPS, SLOTS, 4, 16)
    return rng.standard_normal(shape)


@pytest.mark.parametrize(
    ("name", "precision", "limit"),
    [
        (budget.name, precision, limit)
        for budget in BUDGETS.values()
        for precision in (FLOAT32, LOWER)
        if budget.metric != "count" and (limit := budget.limit(precision)) is not None
    ],
)
def test_no_budget_is_loose(name: str, precision: str, limit: float) -> None:
    """One part in a thousand is no rounding of float32, one in eight none of a narrow format."""
    budget = BUDGETS[name]
    size = 1e-3 if precision == FLOAT32 else 0.125
    a = outputs(budget)
    b = a * (1 + size * np.random.default_rng(2).standard_normal(a.shape))
    metric = METRICS[budget.metric]
    assert not metric.within(metric(b, a, 16_000), limit)
    assert metric.within(metric(a, a, 16_000), limit)


def documented_limits() -> dict[str, tuple[float | None, float | None]]:
    """By name the limits of the document's table, in float32 and below.

    A row has several names with a limit for each, or one for all.
    """
    found: dict[str, tuple[float | None, float | None]] = {}
    section = DOCUMENT.read_text(encoding="utf-8").partition("\n## Budgets\n")[2]
    for line in section.partition("\n## ")[0].splitlines():
        if not line.startswith("| `"):
            continue
        first, _, *limits = (cell.strip() for cell in line.strip("|").split("|"))
        names = re.findall(r"`([^`]+)`", first)
        columns = [_limits(cell, len(names)) for cell in limits]
        found |= dict(zip(names, zip(*columns, strict=True), strict=True))
    return found


def _limits(cell: str, count: int) -> list[float | None]:
    texts = [text.strip().removesuffix(" dB") for text in re.split("[;,]", cell)]
    limits = [None if text == "-" else float(text) for text in texts]
    return limits * count if len(limits) == 1 else limits


def test_the_document_has_every_budget() -> None:
    assert documented_limits() == {b.name: (b.float32, b.lower) for b in BUDGETS.values()}
