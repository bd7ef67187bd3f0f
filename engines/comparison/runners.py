"""Polygraphy's runners and comparison over the probes: both sides run, their outputs judged.

Polygraphy is imported inside functions: whoever only builds engines need not have it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from engines.comparison.budgets import Budget
from engines.comparison.inputs import Feed
from engines.comparison.probes import Outputs
from engines.comparison.sides import Side

#: Runs something of a side on inputs: a probe, or the loop.
Run = Callable[[Side, Feed], Outputs]


@contextmanager
def _quietly() -> Iterator[None]:
    """Within it Polygraphy prints nothing: the report says all, in one place."""
    from polygraphy.logger import G_LOGGER

    with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        yield


def runner_of(side: Side, run: Run, feed: Feed) -> Any:
    """A Polygraphy runner of `run`: a component with its state, or a whole loop, behind `infer`."""
    from polygraphy.backend.base import BaseRunner
    from polygraphy.common import TensorMetadata

    class SideRunner(BaseRunner):
        def get_input_metadata_impl(self) -> Any:
            return TensorMetadata().from_feed_dict(feed)

        def infer_impl(self, feed_dict: Mapping[str, np.ndarray]) -> OrderedDict[str, np.ndarray]:
            started = time.perf_counter()
            outputs = run(side, feed_dict)
            self.inference_time = time.perf_counter() - started
            return OrderedDict(outputs)

    return SideRunner(name=side.name)


def run_both(sides: tuple[Side, Side], run: Run, feed: Feed) -> Any:
    """Polygraphy's RunResults of both sides on the same inputs."""
    from polygraphy.comparator import Comparator

    given = OrderedDict((name, np.asarray(values)) for name, values in feed.items())
    with _quietly():
        return Comparator.run([runner_of(side, run, given) for side in sides], data_loader=[given])


def outputs_of(results: Any) -> tuple[Outputs, Outputs]:
    """The arrays of both sides."""
    a, b = (dict(iterations[0].items()) for _, iterations in results)
    return a, b


def measured(
    results: Any, judged: Sequence[tuple[Budget, float | None]], sample_rate: int
) -> dict[str, float]:
    """The value of each budget's metric, by the budget's name, where Polygraphy compares.

    Beside each budget its limit, None where it is not judged.
    """
    from polygraphy.comparator import Comparator

    functions = [_compare_function(budget, limit, sample_rate) for budget, limit in judged]
    with _quietly():
        accuracy = Comparator.compare_accuracy(results, compare_func=functions)
    values: dict[str, float] = {}
    for (budget, _), result in zip(judged, accuracy, strict=True):
        (iterations,) = result.values()
        values[budget.name] = iterations[0][budget.output].value
    return values


def _compare_function(budget: Budget, limit: float | None, sample_rate: int) -> Any:
    """A comparison of Polygraphy's that measures one output by the budget's metric."""
    from polygraphy.comparator import BaseCompareFunc, CompareResult, Threshold

    metric = budget.measure

    class BudgetThreshold(Threshold):
        METRIC_FIELDS = ("value",)

        def passed(self, metric_values: Mapping[str, float]) -> bool:
            return limit is None or metric.within(metric_values["value"], limit)

    class BudgetResult(CompareResult):
        _THRESHOLD_CLASS = BudgetThreshold

        def __init__(self, value: float) -> None:
            super().__init__(thresholds=BudgetThreshold())
            self.value = value

    class BudgetCompare(BaseCompareFunc):
        def thresholds_for(self, output_name: str) -> Threshold:
            return BudgetThreshold()

        def __call__(self, iter_result0: Any, iter_result1: Any) -> OrderedDict[str, Any]:
            a, b = (np.asarray(r[budget.output]) for r in (iter_result0, iter_result1))
            return OrderedDict([(budget.output, BudgetResult(metric(b, a, sample_rate)))])

    return BudgetCompare()
