"""What several kernels do alike: waiting, products with tiles of a weight, norms."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

#: Triton's interpreter (TRITON_INTERPRET=1) has neither bfloat16 products nor inline assembly.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def dot(a, b, sums):
    """sums + a b of bfloat16 tiles, in float32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), sums)
    else:
        return tl.dot(a, b, sums)


@triton.jit
def wait_for_previous(OVERLAPPED: tl.constexpr):
    """Returns when all that earlier kernels wrote is there; then the next kernel may be launched.

    With OVERLAPPED (compute capability 9.0 and later) a kernel starts while the one before it ends
    (programmatic dependent launch). Until here it may touch nothing but weights.
    """
    if OVERLAPPED and not INTERPRETED:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def rows_times_weight(
    x_ptr, weight_ptr, rows, row_mask, features,
    K: tl.constexpr, FEATURES: tl.constexpr, DEPTH: tl.constexpr, ROWS: tl.constexpr,
    DOT: tl.constexpr, STAGES: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """(FEATURES, ROWS) float32: `rows` (ROWS,) of x (., K) times `features` of weight (., K).

    Without DOT there is one row, multiplied and summed: matrix units would wait for 15 others. All
    its weights are then on their way, into registers, before x is waited for. DEPTH covers K.
    """
    depth = tl.arange(0, DEPTH)
    weight_ptrs = weight_ptr + features[:, None] * K + depth[None, :]
    if DOT:
        wait_for_previous(WAIT)
        sums = tl.zeros([FEATURES, ROWS], tl.float32)
        x_ptrs = x_ptr + rows[None, :] * K + depth[:, None]
        for k in tl.range(0, K, DEPTH, num_stages=STAGES):
            weight = tl.load(weight_ptrs + k)
            x = tl.load(x_ptrs + k, mask=row_mask[None, :], other=0.0)
            sums = dot(weight, x, sums)
    else:
        if DEPTH == K:
            weight = tl.load(weight_ptrs)
            wait_for_previous(WAIT)
            x = tl.load(x_ptr + depth)
        else:
            weight = tl.load(weight_ptrs, mask=(depth < K)[None, :], other=0.0)
            wait_for_previous(WAIT)
            x = tl.load(x_ptr + depth, mask=depth < K, other=0.0)
        sums = tl.sum(weight.to(tl.float32) * x.to(tl.float32)[None, :], 1)[:, None]
    return sums


@triton.jit
def inverse_rms(squares_ptr, rows, HIDDEN: tl.constexpr, TILES: tl.constexpr, EPS: tl.constexpr):
    """1 / sqrt(mean(x^2) + eps) of each row, (ROWS,) float32, from the sums of its tiles.

    squares: (., TILES), TILES a power of two.
    """
    tiles = tl.arange(0, TILES)
    squares = tl.load(squares_ptr + rows[:, None] * TILES + tiles[None, :])
    return 1.0 / tl.sqrt_rn(tl.sum(squares, 1) / HIDDEN + EPS)
