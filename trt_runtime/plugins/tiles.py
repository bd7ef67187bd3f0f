"""Tiles of the kernels by the number of rows that a launch has: the one table of what was tuned.

Chosen by the time of a whole step on one H200 (benchmarks/results/talker-step-h200.json has what
they give); on another GPU they are correct, and perhaps not the fastest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_WEIGHT_BYTES = 2


@dataclass(frozen=True)
class Tile:
    """One program makes `features` outputs, reading `depth` inputs of each at a time.

    `stages` loads are in flight; `warps` of 32 threads work together; `splits` programs share the
    inputs of one output. `early`: loads its weights before it waits for the kernel before it,
    which pays where few programs fill the GPU.
    """

    features: int
    depth: int
    warps: int
    stages: int = 0
    splits: int = 1
    early: bool = False

    def fitted(self, features: int, depth: int, rows: int, shared_memory: int, dot: bool) -> Tile:
        """This tile for a weight (features, depth) and a GPU of other size.

        Where it does not divide the weight: the largest powers of two that do. Where the loads in
        flight, with those of `rows` rows, need more than `shared_memory` bytes: fewer of them.
        Without `dot` a program reads all inputs of its outputs at once, into registers.
        """
        features = dividing(self.features, features)
        if not dot:
            return replace(self, features=features, depth=1 << (depth - 1).bit_length())
        depth = dividing(self.depth, depth)
        most = shared_memory // (_WEIGHT_BYTES * depth * (features + rows))
        return replace(self, features=features, depth=depth, stages=max(1, min(self.stages, most)))


@dataclass(frozen=True)
class Tiles:
    """Of one number of rows: projections by name, and attention.

    `rows`: rows of a tile. `dot`: matrix units; otherwise one row is multiplied and summed.
    `queries`: rows of one slot that a program of attention takes together; `keys`: keys that it
    reads at a time; `key_splits`: programs that share the keys of a row. `overlapped`: the kernels
    that start while the one before them ends, where the GPU can do that. `group_rows`: rows of a
    tile where rows are sorted by expert, 0 where every expert in use takes all rows.
    """

    rows: int
    dot: bool
    qkv: Tile
    out: Tile
    gate_up: Tile
    down: Tile
    queries: int = 1
    keys: int = 128
    key_splits: int = 4
    attention_warps: int = 4
    overlapped: tuple[str, ...] = ()
    group_rows: int = 0


def dividing(tile: int, whole: int) -> int:
    """The largest power of two up to `tile`, itself one, that divides `whole`."""
    return min(tile, whole & -whole)


ALL = ("append", "qkv", "attend", "out", "gate_up", "down", "finish")
#: With experts their products fill the memory; a kernel that starts under them only disturbs.
AROUND_EXPERTS = ("append", "qkv", "attend", "out")

_EXPERTS_ONE = Tiles(
    rows=1, dot=False,
    qkv=Tile(8, 2048, 4, early=True), out=Tile(4, 2048, 4, early=True),
    gate_up=Tile(16, 2048, 4), down=Tile(4, 2048, 2), overlapped=(*AROUND_EXPERTS, "down"),
)  # fmt: skip
_EXPERTS_FEW = Tiles(
    rows=16, dot=True,
    qkv=Tile(64, 128, 4, 5), out=Tile(32, 256, 4, 5, splits=4),
    gate_up=Tile(64, 64, 4, 6), down=Tile(64, 128, 4, 7, splits=6), overlapped=AROUND_EXPERTS,
)  # fmt: skip
_EXPERTS_TWO = replace(_EXPERTS_FEW, gate_up=Tile(128, 64, 4, 6))
_EXPERTS_CHUNK = Tiles(
    rows=64, dot=True,
    qkv=Tile(64, 64, 4, 4), out=Tile(64, 64, 4, 4),
    gate_up=Tile(128, 64, 4, 4), down=Tile(128, 64, 8, 4),
    queries=16, keys=64, key_splits=1, group_rows=64,
)  # fmt: skip
_EXPERTS_SHORT_CHUNK = replace(
    _EXPERTS_CHUNK,
    qkv=Tile(32, 128, 4, 4), out=Tile(64, 128, 4, 4, splits=2),
    gate_up=Tile(64, 64, 4, 5), down=Tile(64, 64, 4, 5), group_rows=32,
)  # fmt: skip
_DENSE_ONE = Tiles(
    rows=1, dot=False,
    qkv=Tile(4, 1024, 4, early=True), out=Tile(4, 1024, 4, early=True),
    gate_up=Tile(16, 1024, 4), down=Tile(64, 256, 8, early=True), overlapped=ALL,
)  # fmt: skip
_DENSE_FEW = Tiles(
    rows=16, dot=True,
    qkv=Tile(16, 128, 2, 6), out=Tile(32, 128, 4, 4, splits=2),
    gate_up=Tile(64, 128, 4, 5), down=Tile(64, 128, 4, 6, splits=4), attention_warps=8,
    overlapped=ALL,
)  # fmt: skip
_DENSE_CHUNK = Tiles(
    rows=64, dot=True,
    qkv=Tile(16, 128, 4, 5), out=Tile(16, 128, 4, 5),
    gate_up=Tile(64, 64, 4, 5), down=Tile(64, 64, 4, 5, splits=8),
    queries=16, keys=64, key_splits=1, overlapped=ALL,
)  # fmt: skip


def tiles_of(rows: int, *, prefill: bool, routed: bool) -> Tiles:
    """The tiles of a launch of `rows` rows: of as many slots, or with `prefill` of one slot.

    `routed`: of a talker with experts.
    """
    if prefill and rows >= 64:
        if not routed:
            return _DENSE_CHUNK
        return _EXPERTS_CHUNK if rows > 64 else _EXPERTS_SHORT_CHUNK
    if prefill:
        few = _EXPERTS_FEW if routed else _DENSE_FEW
        return replace(few, queries=16, keys=64, key_splits=1, attention_warps=4)
    if routed:
        return {1: _EXPERTS_ONE, 2: _EXPERTS_TWO}.get(rows, _EXPERTS_FEW)
    return _DENSE_ONE if rows == 1 else _DENSE_FEW
