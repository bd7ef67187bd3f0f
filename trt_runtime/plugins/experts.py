"""The feed-forward half up to its products: the router's choice, and gate and up of the experts.

One launch does both. Its first programs are the router's; those of the shared experts, which need
no choice, follow and read their weights meanwhile; those of the routed experts wait for the choice.
Programs start in the order of their numbers, so what is waited for is always running.
"""

from __future__ import annotations

import triton
import triton.language as tl

from trt_runtime.plugins.arithmetic import inverse_rms, rows_times_weight, wait_for_previous


@triton.jit
def _router_logits(
    x_ptr, squares_ptr, norm_ptr, router_ptr, logits_ptr, row, experts,
    K: tl.constexpr, ROUTED: tl.constexpr, TILES: tl.constexpr, EPS: tl.constexpr,
    EXPERTS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """logits[row, experts] in float32, of the float32 stream; router: (ROUTED, K) bfloat16."""
    depth = tl.arange(0, DEPTH)
    mask = experts < ROUTED
    weight_ptrs = router_ptr + experts[:, None] * K + depth[None, :]
    products = tl.zeros([EXPERTS, DEPTH], tl.float32)
    for k in tl.static_range(0, K, DEPTH):
        weight = tl.load(weight_ptrs + k, mask=mask[:, None], other=0.0).to(tl.float32)
        x = tl.load(x_ptr + row * K + k + depth) * tl.load(norm_ptr + k + depth)
        products += weight * x[None, :]
    scale = inverse_rms(squares_ptr, row + tl.arange(0, 1), K, TILES, EPS)
    tl.store(logits_ptr + row * ROUTED + experts, tl.sum(products, 1) * scale, mask=mask)


@triton.jit
def _choose(
    logits_ptr, count, expert_ptr, active_ptr, share_ptr,
    ROWS: tl.constexpr, ROUTED: tl.constexpr, PADDED: tl.constexpr, CHOSEN: tl.constexpr,
    NORMALIZED: tl.constexpr,
):  # fmt: skip
    """The experts that some row below `count` chose, ascending, and each row's share of each.

    expert: (ROUTED,) int32; active: how many; share: (ROUTED, ROWS) float32, 0 where not chosen.
    """
    rows = tl.arange(0, ROWS)
    experts = tl.arange(0, PADDED)
    present = (experts < ROUTED)[None, :]
    logits = tl.load(
        logits_ptr + rows[:, None] * ROUTED + experts[None, :],
        mask=present & (rows >= 0)[:, None], other=-float("inf"), cache_modifier=".cg",
    )  # fmt: skip
    powers = tl.exp(logits - tl.max(logits, 1)[:, None])
    probabilities = powers / tl.sum(powers, 1)[:, None]
    left = tl.where(present, probabilities, -1.0)
    for _ in tl.static_range(CHOSEN):
        best = tl.argmax(left, 1)
        left = tl.where(experts[None, :] == best[:, None], -2.0, left)
    chosen = left < -1.5
    shares = tl.where(chosen, probabilities, 0.0)
    if NORMALIZED:
        shares = shares / tl.sum(shares, 1)[:, None]
    chosen = chosen & (rows < count)[:, None]
    shares = tl.where(chosen, shares, 0.0)
    active = tl.max(chosen.to(tl.int32), 0)
    place = tl.cumsum(active, 0) - 1
    in_use = active > 0
    tl.store(expert_ptr + place, experts, mask=in_use)
    tl.store(
        share_ptr + place[None, :] * ROWS + rows[:, None], shares,
        mask=in_use[None, :] & (rows >= 0)[:, None],
    )  # fmt: skip
    tl.store(active_ptr, tl.sum(active, 0))


@triton.jit
def gate_up(
    x_ptr, scaled_ptr, squares_ptr, norm_ptr, router_ptr, logits_ptr, count_ptr,
    expert_ptr, active_ptr, share_ptr, counter_ptr, flag_ptr,
    weight_ptr, inner_ptr,
    ROWS: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, TILES: tl.constexpr,
    EPS: tl.constexpr, SHARED: tl.constexpr, ROUTED: tl.constexpr, PADDED: tl.constexpr,
    CHOSEN: tl.constexpr, NORMALIZED: tl.constexpr,
    ROUTER_EXPERTS: tl.constexpr, ROUTER_DEPTH: tl.constexpr,
    FEATURES: tl.constexpr, DEPTH: tl.constexpr, TILE_ROWS: tl.constexpr, DOT: tl.constexpr,
    STAGES: tl.constexpr, EARLY: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """inner (experts in use, ROWS, WIDTH) bfloat16 = silu(gate) * up * share of the row.

    weight: (experts, 2 WIDTH, K), rows of gate and up in turn, the ROUTED experts first; in inner
    the SHARED ones come first. expert, active and share are what `_choose` writes, for the same
    launch and for the one that follows; expert begins after the SHARED ones' numbers.
    """
    ROUTER_TILES: tl.constexpr = PADDED // ROUTER_EXPERTS
    ROUTERS: tl.constexpr = ROUTER_TILES * ROWS if ROUTED > 0 else 0
    ROW_TILES: tl.constexpr = (ROWS + TILE_ROWS - 1) // TILE_ROWS
    TILES_OF_EXPERT: tl.constexpr = 2 * WIDTH // FEATURES * ROW_TILES
    program = tl.program_id(0)
    if not EARLY:
        wait_for_previous(OVERLAPPED)
    if program < ROUTERS:
        wait_for_previous(OVERLAPPED and EARLY)
        experts = program % ROUTER_TILES * ROUTER_EXPERTS + tl.arange(0, ROUTER_EXPERTS)
        _router_logits(
            x_ptr, squares_ptr, norm_ptr, router_ptr, logits_ptr, program // ROUTER_TILES, experts,
            K, ROUTED, TILES, EPS, ROUTER_EXPERTS, ROUTER_DEPTH,
        )  # fmt: skip
        tl.debug_barrier()
        arrived = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
        if arrived == ROUTERS - 1:
            tl.store(counter_ptr, 0)
            _choose(
                logits_ptr, tl.load(count_ptr), expert_ptr + SHARED, active_ptr, share_ptr,
                ROWS, ROUTED, PADDED, CHOSEN, NORMALIZED,
            )  # fmt: skip
            tl.debug_barrier()
            tl.atomic_xchg(flag_ptr, 1, sem="release", scope="gpu")
    else:
        place = (program - ROUTERS) // TILES_OF_EXPERT
        tile = (program - ROUTERS) % TILES_OF_EXPERT
        row_tile = tile % ROW_TILES
        tile = tile // ROW_TILES
        used = place < SHARED
        expert = place + ROUTED
        if ROUTED > 0:
            if place >= SHARED:
                wait_for_previous(OVERLAPPED and EARLY)
                while tl.atomic_add(flag_ptr, 0, sem="acquire", scope="gpu") == 0:
                    pass
                used = place - SHARED < tl.load(active_ptr)
                expert = tl.load(expert_ptr + place)
        if used:
            features = tile * FEATURES + tl.arange(0, FEATURES)
            rows = row_tile * TILE_ROWS + tl.arange(0, TILE_ROWS)
            row_mask = rows < ROWS
            sums = rows_times_weight(
                scaled_ptr, weight_ptr + expert.to(tl.int64) * (2 * WIDTH * K), rows, row_mask,
                features, K, FEATURES, DEPTH, TILE_ROWS, DOT, STAGES, OVERLAPPED and EARLY,
            )  # fmt: skip
            sums = sums * inverse_rms(squares_ptr, rows % ROWS, K, TILES, EPS)[None, :]
            pairs = tl.reshape(sums, [FEATURES // 2, 2, TILE_ROWS])
            gate, up = tl.split(tl.permute(pairs, [0, 2, 1]))
            share = tl.full([TILE_ROWS], 1.0, tl.float32)
            if place >= SHARED:
                share = tl.load(share_ptr + (place - SHARED) * ROWS + rows, row_mask, 0.0)
            inner = gate / (1.0 + tl.exp(-gate)) * up * share[None, :]
            # An expert that a row did not choose may give it anything: never let that through.
            inner = tl.where(share[None, :] > 0.0, inner, 0.0)
            column = tile * (FEATURES // 2) + tl.arange(0, FEATURES // 2)
            tl.store(
                inner_ptr + place * (ROWS * WIDTH) + rows[None, :] * WIDTH + column[:, None],
                inner.to(tl.bfloat16), mask=row_mask[None, :],
            )  # fmt: skip
