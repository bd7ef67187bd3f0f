"""Experts of many rows at once, as in a prefill: rows sorted by expert, products of groups.

A row and one expert that it goes through are a pair. Row r's choice c is pair r * CHOSEN + c; then
follow, one shared expert after the other, the pairs of all rows with it. An expert's group is the
list of its pairs; both products read a group's rows and write a row for each pair, and `join` adds
up the pairs of a row, in their order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from trt_runtime.plugins.arithmetic import inverse_rms, rows_times_weight


@triton.jit
def route(
    x_ptr, squares_ptr, norm_ptr, router_ptr, chosen_ptr, share_ptr,
    K: tl.constexpr, ROUTED: tl.constexpr, PADDED: tl.constexpr, CHOSEN: tl.constexpr,
    NORMALIZED: tl.constexpr, TILES: tl.constexpr, EPS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """One program a row: its experts chosen (rows, CHOSEN) int32, and shares (rows, CHOSEN)."""
    row = tl.program_id(0)
    depth = tl.arange(0, DEPTH)
    experts = tl.arange(0, PADDED)
    present = experts < ROUTED
    products = tl.zeros([PADDED, DEPTH], tl.float32)
    for k in range(0, K, DEPTH):
        weight_ptrs = router_ptr + experts[:, None] * K + k + depth[None, :]
        weight = tl.load(weight_ptrs, mask=present[:, None], other=0.0).to(tl.float32)
        x = tl.load(x_ptr + row * K + k + depth) * tl.load(norm_ptr + k + depth)
        products += weight * x[None, :]
    scale = inverse_rms(squares_ptr, row + tl.arange(0, 1), K, TILES, EPS)
    logits = tl.where(present, tl.sum(products, 1) * scale, -float("inf"))
    powers = tl.exp(logits - tl.max(logits, 0))
    left = tl.where(present, powers / tl.sum(powers, 0), -1.0)
    total = 0.0
    for place in tl.static_range(CHOSEN):
        best = tl.argmax(left, 0)
        share = tl.max(left, 0)
        total += share
        tl.store(chosen_ptr + row * CHOSEN + place, best)
        tl.store(share_ptr + row * CHOSEN + place, share)
        left = tl.where(experts == best, -2.0, left)
    if NORMALIZED:
        tl.debug_barrier()
        for place in tl.static_range(CHOSEN):
            share = tl.load(share_ptr + row * CHOSEN + place)
            tl.store(share_ptr + row * CHOSEN + place, share / total)


@triton.jit
def group(
    chosen_ptr, count_ptr, pair_ptr, size_ptr,
    ROWS: tl.constexpr, CHOSEN: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """One program a routed expert: its pairs (experts, ROWS) int32 of rows below count, ascending,
    and how many they are, size (experts,) int32."""
    expert = tl.program_id(0)
    last = tl.load(count_ptr) * CHOSEN
    found = 0
    for first in range(0, ROWS * CHOSEN, STEP):
        pair = first + tl.arange(0, STEP)
        mine = tl.load(chosen_ptr + pair, mask=pair < last, other=-1) == expert
        place = found + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(pair_ptr + expert * ROWS + place, pair, mask=mine)
        found += tl.sum(mine.to(tl.int32), 0)
    tl.store(size_ptr + expert, found)


@triton.jit
def multiply(
    input_ptr, squares_ptr, weight_ptr, pair_ptr, size_ptr, share_ptr, output_ptr,
    ROWS: tl.constexpr, K: tl.constexpr, N: tl.constexpr, CHOSEN: tl.constexpr,
    SWIGLU: tl.constexpr, TILES: tl.constexpr, EPS: tl.constexpr,
    FEATURES: tl.constexpr, DEPTH: tl.constexpr, TILE_ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Of each pair its row times its expert's weight (N, K). Grid: tiles of N, experts, of rows.

    With SWIGLU input is (ROWS, K) bfloat16, still to be divided by its rms, and output (pairs,
    N / 2) bfloat16 = silu(gate) * up * share of the pair; without, input is (pairs, K) bfloat16
    and output (pairs, N) float32.
    """
    tile = tl.program_id(0)
    expert = tl.program_id(1)
    size = tl.load(size_ptr + expert)
    first = tl.program_id(2) * TILE_ROWS
    if first < size:
        place = first + tl.arange(0, TILE_ROWS)
        mask = place < size
        pair = tl.load(pair_ptr + expert * ROWS + place, mask=mask, other=0)
        features = tile * FEATURES + tl.arange(0, FEATURES)
        rows = pair
        if SWIGLU:
            shared = pair - ROWS * CHOSEN
            rows = tl.where(shared < 0, pair // CHOSEN, shared % ROWS)
        sums = rows_times_weight(
            input_ptr, weight_ptr + expert.to(tl.int64) * (N * K), rows, mask, features,
            K, FEATURES, DEPTH, TILE_ROWS, True, STAGES, False,
        )  # fmt: skip
        if SWIGLU:
            sums = sums * inverse_rms(squares_ptr, rows, K, TILES, EPS)[None, :]
            halves = tl.reshape(sums, [FEATURES // 2, 2, TILE_ROWS])
            gate, up = tl.split(tl.permute(halves, [0, 2, 1]))
            share = tl.load(share_ptr + pair, mask=mask, other=0.0)
            inner = gate / (1.0 + tl.exp(-gate)) * up * share[None, :]
            column = tile * (FEATURES // 2) + tl.arange(0, FEATURES // 2)
            out = output_ptr + pair[None, :] * (N // 2) + column[:, None]
            tl.store(out, inner.to(tl.bfloat16), mask=mask[None, :])
        else:
            out = output_ptr + pair[None, :] * N + features[:, None]
            tl.store(out, sums, mask=mask[None, :])


@triton.jit
def join(
    output_ptr, x_ptr, scaled_ptr, squares_ptr, norm_ptr, count_ptr,
    ROWS: tl.constexpr, HIDDEN: tl.constexpr, PADDED: tl.constexpr, CHOSEN: tl.constexpr,
    SHARED: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One program a row: x += its pairs' outputs (pairs, HIDDEN), and what the next norm needs.

    The pairs of rows from count on were never made: they get none.
    """
    row = tl.program_id(0)
    k = tl.arange(0, PADDED)
    mask = k < HIDDEN
    x = tl.load(x_ptr + row * HIDDEN + k, mask=mask, other=0.0)
    if row < tl.load(count_ptr):
        for place in tl.static_range(CHOSEN):
            x += tl.load(output_ptr + (row * CHOSEN + place) * HIDDEN + k, mask=mask, other=0.0)
        for shared in tl.static_range(SHARED):
            pair = ROWS * CHOSEN + shared * ROWS + row
            x += tl.load(output_ptr + pair * HIDDEN + k, mask=mask, other=0.0)
    norm = tl.load(norm_ptr + k, mask=mask, other=0.0)
    tl.store(x_ptr + row * HIDDEN + k, x, mask=mask)
    tl.store(scaled_ptr + row * HIDDEN + k, (x * norm).to(tl.bfloat16), mask=mask)
    tile = tl.arange(0, TILES)
    tl.store(squares_ptr + row * TILES + tile, tl.where(tile == 0, tl.sum(x * x, 0), 0.0))
