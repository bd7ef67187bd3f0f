"""The plugin loop on a GPU: against float32 torch, against itself, and under changing company."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from benchmarks.talker_reference import DENSE, EXPERTS, SMALL_DENSE, SMALL_EXPERTS

pytest.importorskip("triton")
from tests.gpu import checks

#: Small ones, and two layers of the released widths.
SIZES = {
    "small dense": SMALL_DENSE,
    "small experts": SMALL_EXPERTS,
    "dense": replace(DENSE, layers=2),
    "experts": replace(EXPERTS, layers=2),
}


@cache
def talker(name: str) -> checks.Talker:
    return checks.Talker(SIZES[name], "cuda")


pytestmark = pytest.mark.parametrize("name", SIZES)


@pytest.mark.parametrize("prompt", [1, 16, 70, 300, 1500])
def test_prefill_and_decode_are_the_reference(name: str, prompt: int) -> None:
    checks.prefill_and_decode_are_the_reference(talker(name), prompt, 20)


@pytest.mark.parametrize("slots", [2, 4, 8, 16])
def test_identical_rows_are_equal_and_so_are_repeats(name: str, slots: int) -> None:
    checks.identical_rows_are_equal_and_so_are_repeats(talker(name), slots, 8)


def test_alone_is_as_in_a_batch(name: str) -> None:
    checks.alone_is_as_in_a_batch(talker(name), 8, 12)


@pytest.mark.parametrize(("slots", "count"), [(4, 3), (8, 5), (16, 9)])
def test_a_larger_bucket_leaves_other_slots_alone(name: str, slots: int, count: int) -> None:
    checks.a_larger_bucket_leaves_other_slots_alone(talker(name), slots, count)


def test_requests_that_come_move_and_go(name: str) -> None:
    checks.requests_that_come_move_and_go(talker(name), 6, 200, seed=3)


@pytest.mark.parametrize(("rows", "count"), [(64, 64), (256, 100)])
def test_experts_of_sorted_rows_are_the_reference(name: str, rows: int, count: int) -> None:
    if talker(name).sizes.experts is None:
        pytest.skip("has no experts")
    checks.experts_of_sorted_rows_are_the_reference(talker(name), rows, count)
