"""Kernels around the residual stream: into it, out of it, and the projections on both sides.

The stream is float32. Whoever writes x of a tile also writes bfloat16(x * w) with the weight w of
the norm that follows, and the tile's sum of squares: so a norm is no kernel of its own, and its
reader only scales its result by the row's 1 / rms.
"""

from __future__ import annotations

import triton
import triton.language as tl

from trt_runtime.plugins.arithmetic import (
    dot,
    inverse_rms,
    rows_times_weight,
    wait_for_previous,
)


@triton.jit
def begin(
    input_ptr, x_ptr, scaled_ptr, squares_ptr, norm_ptr,
    HIDDEN: tl.constexpr, PADDED: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One program a row: the stream x (rows, HIDDEN) of the inputs (rows, HIDDEN) float32."""
    row = tl.program_id(0)
    k = tl.arange(0, PADDED)
    x = tl.load(input_ptr + row * HIDDEN + k, mask=k < HIDDEN, other=0.0)
    norm = tl.load(norm_ptr + k, mask=k < HIDDEN, other=0.0)
    tl.store(x_ptr + row * HIDDEN + k, x, mask=k < HIDDEN)
    tl.store(scaled_ptr + row * HIDDEN + k, (x * norm).to(tl.bfloat16), mask=k < HIDDEN)
    tile = tl.arange(0, TILES)
    squares = tl.where(tile == 0, tl.sum(x * x, 0), 0.0)
    tl.store(squares_ptr + row * TILES + tile, squares)


@triton.jit
def finish(
    x_ptr, squares_ptr, norm_ptr, hidden_ptr, position_ptr,
    row_slot_ptr, row_position_ptr, count_ptr,
    HIDDEN: tl.constexpr, PADDED: tl.constexpr, TILES: tl.constexpr, EPS: tl.constexpr,
    LAST_ONLY: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """One program a row: hidden[slot] = norm(x), and the slot's position moves on.

    Of the rows from `count` on nothing is written; with LAST_ONLY only of row count - 1.
    """
    row = tl.program_id(0)
    wait_for_previous(OVERLAPPED)
    count = tl.load(count_ptr)
    written = row < count
    if LAST_ONLY:
        written = row == count - 1
    if written:
        slot = tl.load(row_slot_ptr + row)
        position = tl.load(row_position_ptr + row)
        k = tl.arange(0, PADDED)
        x = tl.load(x_ptr + row * HIDDEN + k, mask=k < HIDDEN, other=0.0)
        norm = tl.load(norm_ptr + k, mask=k < HIDDEN, other=0.0)
        tile = tl.arange(0, TILES)
        squares = tl.sum(tl.load(squares_ptr + row * TILES + tile), 0)
        scale = 1.0 / tl.sqrt_rn(squares / HIDDEN + EPS)
        tl.store(hidden_ptr + slot * HIDDEN + k, x * scale * norm, mask=k < HIDDEN)
        tl.store(position_ptr + slot, position + 1)


@triton.jit
def project_qkv(
    scaled_ptr, squares_ptr, weight_ptr, bias_ptr, qkv_ptr, flag_ptr,
    ROWS: tl.constexpr, K: tl.constexpr, N: tl.constexpr, TILES: tl.constexpr, EPS: tl.constexpr,
    BIAS: tl.constexpr,
    FEATURES: tl.constexpr, DEPTH: tl.constexpr, TILE_ROWS: tl.constexpr, DOT: tl.constexpr,
    STAGES: tl.constexpr, EARLY: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """qkv (ROWS, N) float32 = norm(x) weight^T + bias; weight: (N, K). Grid: tiles of N, rows."""
    tile = tl.program_id(0)
    features = tile * FEATURES + tl.arange(0, FEATURES)
    rows = tl.program_id(1) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    row_mask = rows < ROWS
    if not EARLY:
        wait_for_previous(OVERLAPPED)
    sums = rows_times_weight(
        scaled_ptr, weight_ptr, rows, row_mask, features,
        K, FEATURES, DEPTH, TILE_ROWS, DOT, STAGES, OVERLAPPED and EARLY,
    )  # fmt: skip
    if (tile == 0) & (tl.program_id(1) == 0):
        tl.store(flag_ptr, 0)  # of the router: all who read it have ended, its writer is to come
    sums = sums * inverse_rms(squares_ptr, rows % ROWS, K, TILES, EPS)[None, :]
    if BIAS:
        sums += tl.load(bias_ptr + features)[:, None]
    tl.store(qkv_ptr + rows[None, :] * N + features[:, None], sums, mask=row_mask[None, :])


@triton.jit
def project_residual(
    input_ptr, weight_ptr, expert_ptr, active_ptr, flag_ptr, partial_ptr, counter_ptr,
    x_ptr, scaled_ptr, squares_ptr, norm_ptr,
    ROWS: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    SHARED: tl.constexpr, ROUTED: tl.constexpr, TILES: tl.constexpr,
    FEATURES: tl.constexpr, DEPTH: tl.constexpr, TILE_ROWS: tl.constexpr, DOT: tl.constexpr,
    SPLITS: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """x += sum over experts of input_e weight_e^T, and what the next norm needs of it.

    input: (experts in use, ROWS, K) bfloat16, the SHARED ones first; weight: (experts, N, K), the
    ROUTED ones first; expert: the numbers of those in use; active: how many of the routed they
    are. The output projection of attention is one shared expert. Inputs of all experts in use, one
    after the other, are cut into SPLITS equal parts (without DOT: one expert each); the last
    program of a tile to arrive adds the parts, in their order.
    """
    tile = tl.program_id(0)
    split = tl.program_id(1)
    features = tile * FEATURES + tl.arange(0, FEATURES)
    rows = tl.program_id(2) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    row_mask = rows < ROWS
    if DOT:
        wait_for_previous(OVERLAPPED)
        STEPS: tl.constexpr = K // DEPTH
        experts = SHARED
        if ROUTED > 0:
            experts += tl.load(active_ptr)
        first = split * experts * STEPS // SPLITS
        last = (split + 1) * experts * STEPS // SPLITS
        depth = tl.arange(0, DEPTH)
        weight_ptrs = weight_ptr + features[:, None] * K + depth[None, :]
        input_ptrs = input_ptr + rows[None, :] * K + depth[:, None]
        sums = tl.zeros([FEATURES, TILE_ROWS], tl.float32)
        for step in tl.range(first, last, num_stages=STAGES):
            place = step // STEPS
            k = step % STEPS * DEPTH
            expert = place + ROUTED
            if ROUTED > 0:
                expert = tl.load(expert_ptr + place)
            weight = tl.load(weight_ptrs + expert.to(tl.int64) * (N * K) + k)
            value = tl.load(input_ptrs + place * (ROWS * K) + k, row_mask[None, :], 0.0)
            sums = dot(weight, value, sums)
    else:
        if not EARLY:
            wait_for_previous(OVERLAPPED)
        expert = split + ROUTED
        if ROUTED > 0:
            if split >= SHARED:
                # The choice was made long before the kernel that made it ends.
                while tl.atomic_add(flag_ptr, 0, sem="acquire", scope="gpu") == 0:
                    pass
                expert = tl.load(expert_ptr + split)
        sums = rows_times_weight(
            input_ptr + split * K, weight_ptr + expert.to(tl.int64) * (N * K), rows, row_mask,
            features, K, FEATURES, DEPTH, TILE_ROWS, DOT, STAGES, OVERLAPPED and EARLY,
        )  # fmt: skip
    at = rows[None, :] * N + features[:, None]
    mask = row_mask[None, :] & (features >= 0)[:, None]
    last_to_arrive = True
    if SPLITS > 1:
        tl.store(partial_ptr + split * (ROWS * N) + at, sums, mask=mask)
        tl.debug_barrier()
        counter = counter_ptr + tl.program_id(2) * (N // FEATURES) + tile
        arrived = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
        last_to_arrive = arrived == SPLITS - 1
        if last_to_arrive:
            tl.store(counter, 0)
    if last_to_arrive:
        if SPLITS > 1:
            sums = tl.zeros_like(sums)
            for part in tl.static_range(SPLITS):
                part_ptrs = partial_ptr + part * (ROWS * N) + at
                sums += tl.load(part_ptrs, mask=mask, other=0.0, cache_modifier=".cg")
        x = tl.load(x_ptr + at, mask=mask, other=0.0) + sums
        tl.store(x_ptr + at, x, mask=mask)
        norm = tl.load(norm_ptr + features)
        tl.store(scaled_ptr + at, (x * norm[:, None]).to(tl.bfloat16), mask=mask)
        tl.store(squares_ptr + rows * TILES + tile, tl.sum(x * x, 0), mask=row_mask)
