"""What several kernels do alike: products with tiles of a weight, norms, loads ahead of need."""

from __future__ import annotations

import triton
import triton.language as tl

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
def rows_times_weight(
    x_ptr, weight_ptr, rows, row_mask, features,
    K: tl.constexpr, FEATURES: tl.constexpr, DEPTH: tl.constexpr, ROWS: tl.constexpr,
    DOT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """(FEATURES, ROWS) float32: `rows` (ROWS,) of x (., K) times `features` of weight (., K).

    Without DOT there is one row, multiplied and summed: matrix units would wait for 15 others.
    """
    depth = tl.arange(0, DEPTH)
    weight_ptrs = weight_ptr + features[:, None] * K + depth[None, :]
    if DOT:
        sums = tl.zeros([FEATURES, ROWS], tl.float32)
        x_ptrs = x_ptr + rows[None, :] * K + depth[:, None]
        for k in tl.range(0, K, DEPTH, num_stages=STAGES):
            weight = tl.load(weight_ptrs + k)
            x = tl.load(x_ptrs + k, mask=row_mask[None, :], other=0.0)
            sums = dot(weight, x, sums)
    else:
        products = tl.zeros([FEATURES, DEPTH], tl.float32)
        x_ptrs = x_ptr + depth
        for k in tl.range(0, K, DEPTH, num_stages=STAGES):
            weight = tl.load(weight_ptrs + k)
            x = tl.load(x_ptrs + k)
            products += weight.to(tl.float32) * x.to(tl.float32)[None, :]
        sums = tl.sum(products, 1)[:, None]
    return sums


@triton.jit
def inverse_rms(squares_ptr, rows, HIDDEN: tl.constexpr, TILES: tl.constexpr, EPS: tl.constexpr):
    """1 / sqrt(mean(x^2) + eps) of each row, (ROWS,) float32, from the sums of its tiles.

    squares: (., TILES), TILES a power of two.
    """
    tiles = tl.arange(0, TILES)
    squares = tl.load(squares_ptr + rows[:, None] * TILES + tiles[None, :])
    return 1.0 / tl.sqrt_rn(tl.sum(squares, 1) / HIDDEN + EPS)


@triton.jit
def load_ahead(
    ptr, program, BYTES: tl.constexpr, PROGRAMS: tl.constexpr, THREADS: tl.constexpr
):  # fmt: skip
    """Asks for this program's share of BYTES at ptr to come into L2. Nobody waits for it.

    The next kernel reads them while this one leaves the memory idle.
    """
    if BYTES > 0 and not INTERPRETED:
        PIECE: tl.constexpr = 2048
        EACH: tl.constexpr = (BYTES // PIECE + PROGRAMS - 1) // PROGRAMS
        thread = tl.arange(0, THREADS)
        for first in tl.static_range(0, EACH, THREADS):
            piece = program * EACH + first + thread
            wanted = (first + thread < EACH) & (piece < BYTES // PIECE)
            address = (ptr.to(tl.int64) + piece.to(tl.int64) * PIECE)
            tl.inline_asm_elementwise(
                "{ .reg .pred p; setp.ne.b32 p, $2, 0; "
                "@p cp.async.bulk.prefetch.L2.global [$1], 2048; mov.b32 $0, 0; }",
                "=r,l,r", [address, wanted.to(tl.int32)],
                dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
