"""Attention of new rows over their slot's cache: rotary embedding, append, softmax, in one kernel.

Half-split rotary embedding over the whole head (Su et al. 2021, arXiv:2104.09864), grouped query
heads, softmax as keys come by (Milakov & Gimelshein 2018, arXiv:1805.02867). The keys of a row are
cut into parts for several programs; the last to arrive joins the parts, in their order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from trt_runtime.plugins.arithmetic import dot, wait_for_previous

#: A score below every score: finite, so that the difference of two of them is 0 and not NaN.
LOWEST = tl.constexpr(-1e30)


@triton.jit
def _rotated(ptrs, swapped_ptrs, cosine, sine, mask):
    """x * cos + (-second half, first half) * sin of float32 heads; `sine` has the signs."""
    value = tl.load(ptrs, mask=mask, other=0.0)
    swapped = tl.load(swapped_ptrs, mask=mask, other=0.0)
    return value * cosine + swapped * sine


@triton.jit
def append(
    qkv_ptr, cosine_ptr, sine_ptr, key_ptr, value_ptr, row_slot_ptr, row_position_ptr, count_ptr,
    cache_length,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Keys and values of rows below `count` into the caches. Grid: rows, KV heads."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    wait_for_previous(OVERLAPPED)
    if row < tl.load(count_ptr):
        d = tl.arange(0, HEAD_DIM)
        swapped = (d + HEAD_DIM // 2) % HEAD_DIM
        slot = tl.load(row_slot_ptr + row).to(tl.int64)
        position = tl.load(row_position_ptr + row)
        cosine = tl.load(cosine_ptr + position * HEAD_DIM + d)
        sine = tl.load(sine_ptr + position * HEAD_DIM + d)
        key = qkv_ptr + row * ((HEADS + 2 * KV_HEADS) * HEAD_DIM) + (HEADS + head) * HEAD_DIM
        at = ((slot * KV_HEADS + head) * cache_length + position) * HEAD_DIM + d
        rotated = _rotated(key + d, key + swapped, cosine, sine, d >= 0)
        tl.store(key_ptr + at, rotated.to(tl.bfloat16))
        tl.store(value_ptr + at, tl.load(key + KV_HEADS * HEAD_DIM + d).to(tl.bfloat16))


@triton.jit
def attend(
    qkv_ptr, cosine_ptr, sine_ptr, key_ptr, value_ptr, row_slot_ptr, row_position_ptr, count_ptr,
    cache_length, partial_ptr, greatest_ptr, total_ptr, counter_ptr, attended_ptr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr,
    APPENDED: tl.constexpr, ROWS: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """attended (rows, HEADS * HEAD_DIM) bfloat16. Grid: parts of the keys, KV heads, tiles of rows.

    qkv: (rows, (HEADS + 2 KV_HEADS) * HEAD_DIM) float32, not rotated; caches: (slots, KV_HEADS,
    cache_length, HEAD_DIM) bfloat16; cosine, sine: (cache_length, HEAD_DIM) float32, the sine with
    the signs of the rotation. QUERIES rows of a program are of one slot, at positions one after the
    other. Without APPENDED there is one row, whose key and value this kernel also writes. GROUP:
    query heads of a KV head, padded so that QUERIES * GROUP is a tile of the matrix units.
    """
    split = tl.program_id(0)
    head = tl.program_id(1)
    first_row = tl.program_id(2) * QUERIES
    count = tl.load(count_ptr)
    wait_for_previous(OVERLAPPED)
    if first_row < count:
        QKV: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD_DIM
        HEADS_OF_KEY: tl.constexpr = HEADS // KV_HEADS
        M: tl.constexpr = QUERIES * GROUP
        SCALE: tl.constexpr = 1.4426950408889634 * HEAD_DIM**-0.5  # powers of two from here on
        m = tl.arange(0, M)
        d = tl.arange(0, HEAD_DIM)
        swapped = (d + HEAD_DIM // 2) % HEAD_DIM
        row = first_row + m // GROUP
        query_head = head * HEADS_OF_KEY + m % GROUP
        valid = (m % GROUP < HEADS_OF_KEY) & (row < count)
        slot = tl.load(row_slot_ptr + first_row).to(tl.int64)
        start = tl.load(row_position_ptr + first_row)
        position = start + m // GROUP
        cache = (slot * KV_HEADS + head) * cache_length * HEAD_DIM
        angle = tl.minimum(position, cache_length - 1)[:, None] * HEAD_DIM + d[None, :]
        cosine = tl.load(cosine_ptr + angle)
        sine = tl.load(sine_ptr + angle)
        base = qkv_ptr + row[:, None] * QKV + query_head[:, None] * HEAD_DIM
        query = _rotated(base + d[None, :], base + swapped[None, :], cosine, sine, valid[:, None])
        query = (query * SCALE).to(tl.bfloat16)
        greatest = tl.full([M], LOWEST, tl.float32)
        total = tl.zeros([M], tl.float32)
        sums = tl.zeros([M, HEAD_DIM], tl.float32)
        if APPENDED:
            keys = tl.minimum(start + QUERIES, start - first_row + count)
            seen = position
        else:
            keys = start  # the new key is not read from the cache
            seen = position - 1
            if split == 0:
                new = qkv_ptr + first_row * QKV + (HEADS + head) * HEAD_DIM
                new_cosine = tl.load(cosine_ptr + start * HEAD_DIM + d)
                new_sine = tl.load(sine_ptr + start * HEAD_DIM + d)
                new_key = _rotated(new + d, new + swapped, new_cosine, new_sine, d >= 0)
                new_key = new_key.to(tl.bfloat16)
                new_value = tl.load(new + KV_HEADS * HEAD_DIM + d).to(tl.bfloat16)
                tl.store(key_ptr + cache + start * HEAD_DIM + d, new_key)
                tl.store(value_ptr + cache + start * HEAD_DIM + d, new_value)
                greatest = tl.sum(query.to(tl.float32) * new_key.to(tl.float32)[None, :], 1)
                total = tl.full([M], 1.0, tl.float32)
                sums += new_value.to(tl.float32)[None, :]
        tiles = (keys + SPLITS * KEYS - 1) // (SPLITS * KEYS)
        first = split * tiles * KEYS
        last = tl.minimum(first + tiles * KEYS, keys)
        n = tl.arange(0, KEYS)
        for at in tl.range(first, last, KEYS, num_stages=2):
            in_cache = (at + n < last)[:, None]
            tile = cache + (at + n)[:, None] * HEAD_DIM + d[None, :]
            key = tl.load(key_ptr + tile, mask=in_cache, other=0.0)
            value = tl.load(value_ptr + tile, mask=in_cache, other=0.0)
            scores = dot(query, tl.trans(key), tl.zeros([M, KEYS], tl.float32))
            visible = (at + n)[None, :] <= tl.minimum(seen, last - 1)[:, None]
            scores = tl.where(visible, scores, LOWEST)
            higher = tl.maximum(greatest, tl.max(scores, 1))
            powers = tl.where(visible, tl.exp2(scores - higher[:, None]), 0.0)
            shrunk = tl.exp2(greatest - higher)
            total = total * shrunk + tl.sum(powers, 1)
            sums = dot(powers.to(tl.bfloat16), value, sums * shrunk[:, None])
            greatest = higher
        out = row[:, None] * (HEADS * HEAD_DIM) + query_head[:, None] * HEAD_DIM + d[None, :]
        if SPLITS == 1:
            tl.store(attended_ptr + out, (sums / total[:, None]).to(tl.bfloat16), valid[:, None])
        else:
            width = ROWS * HEADS
            index = row * HEADS + query_head
            tl.store(partial_ptr + split * width * HEAD_DIM + out, sums, mask=valid[:, None])
            tl.store(greatest_ptr + split * width + index, greatest, mask=valid)
            tl.store(total_ptr + split * width + index, total, mask=valid)
            tl.debug_barrier()
            counter = counter_ptr + tl.program_id(2) * KV_HEADS + head
            arrived = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
            if arrived == SPLITS - 1:
                tl.store(counter, 0)
                parts = tl.arange(0, SPLITS)
                of_parts = tl.load(
                    greatest_ptr + parts[None, :] * width + index[:, None],
                    mask=valid[:, None], other=LOWEST, cache_modifier=".cg",
                )  # fmt: skip
                highest = tl.max(of_parts, 1)
                totals = tl.load(
                    total_ptr + parts[None, :] * width + index[:, None],
                    mask=valid[:, None], other=0.0, cache_modifier=".cg",
                )  # fmt: skip
                whole = tl.sum(totals * tl.exp2(of_parts - highest[:, None]), 1)
                joined = tl.zeros([M, HEAD_DIM], tl.float32)
                for part in tl.static_range(SPLITS):
                    own = tl.load(
                        greatest_ptr + part * width + index,
                        mask=valid, other=LOWEST, cache_modifier=".cg",
                    )  # fmt: skip
                    piece = tl.load(
                        partial_ptr + part * width * HEAD_DIM + out,
                        mask=valid[:, None], other=0.0, cache_modifier=".cg",
                    )  # fmt: skip
                    joined += piece * tl.exp2(own - highest)[:, None]
                joined = joined / tl.where(valid, whole, 1.0)[:, None]
                tl.store(attended_ptr + out, joined.to(tl.bfloat16), mask=valid[:, None])
