"""Tiles of the kernels by the number of rows that a launch has: the one table of what was tuned.

Measured on one H200 (benchmarks/results/talker-step-h200.json); on another GPU these are correct
and perhaps not the fastest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Tile:
    """One program makes `features` outputs, reading `depth` inputs of each at a time.

    `splits` programs share the inputs of one output; `stages` loads are in flight; `warps` of 32
    threads work together.
    """

    features: int
    depth: int
    warps: int
    stages: int
    splits: int = 1

    def fitted(self, features: int, depth: int, dot: bool) -> Tile:
        """This tile for matrices that it does not divide: the largest powers of two that do.

        Without `dot` a program reads all inputs of its outputs at once.
        """
        return replace(
            self,
            features=_dividing(self.features, features),
            depth=_dividing(self.depth, depth) if dot else 1 << (depth - 1).bit_length(),
        )


@dataclass(frozen=True)
class Tiles:
    """Of one number of rows: projections by name, and attention.

    `rows`: rows of a tile. `dot`: matrix units; otherwise one row is multiplied and summed.
    `queries`: rows of one slot that a program of attention takes together; `keys`: keys that it
    reads at a time; `key_splits`: programs that share the keys of a row.
    """

    rows: int
    dot: bool
    qkv: Tile
    out: Tile
    gate_up: Tile
    down: Tile
    queries: int
    keys: int
    key_splits: int
    attention_warps: int = 4


def _dividing(tile: int, whole: int) -> int:
    return min(tile, whole & -whole)


_ONE = Tiles(
    rows=1, dot=False,
    qkv=Tile(4, 2048, 4, 0), out=Tile(4, 2048, 4, 0),
    gate_up=Tile(16, 2048, 4, 0), down=Tile(16, 2048, 8, 0),
    queries=1, keys=128, key_splits=4,
)  # fmt: skip
_FEW = Tiles(
    rows=16, dot=True,
    qkv=Tile(16, 256, 4, 5), out=Tile(16, 256, 4, 5),
    gate_up=Tile(64, 128, 4, 5), down=Tile(64, 128, 4, 5, splits=16),
    queries=1, keys=64, key_splits=8,
)  # fmt: skip
_CHUNK = Tiles(
    rows=64, dot=True,
    qkv=Tile(64, 64, 4, 4), out=Tile(64, 64, 4, 4),
    gate_up=Tile(128, 64, 8, 4), down=Tile(128, 64, 8, 4, splits=8),
    queries=16, keys=64, key_splits=1,
)  # fmt: skip


def tiles_of(rows: int, prefill: bool) -> Tiles:
    """The tiles of a launch of `rows` rows: of as many slots, or with `prefill` of one slot."""
    if not prefill and rows == 1:
        return _ONE
    if not prefill:
        return _FEW
    return _CHUNK
