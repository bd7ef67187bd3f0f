"""One pass of some rows through all layers: its buffers, and the kernels in their order.

A decode step has rows of several slots, a chunk of a prefill has rows of one slot at positions one
after the other; all but attention is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from trt_runtime.plugins import attention, experts, projection
from trt_runtime.plugins.groups import Groups
from trt_runtime.plugins.sizes import TalkerSizes
from trt_runtime.plugins.tiles import Tile, Tiles, dividing, tiles_of

#: Programs of the router take this many experts of a row, and read the row this far at a time.
_ROUTER_EXPERTS, _ROUTER_DEPTH = 4, 2048
#: About as many programs of attention as a large GPU runs at a time.
_PROGRAMS = 128


@dataclass(frozen=True)
class Caches:
    """What slots own. `keys`, `values`: (layers, slots, kv_heads, length, head_dim) bfloat16;
    `positions`: (slots,) int32; `hidden`: (slots, 1, hidden) float32.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class Rows:
    """What a pass reads. `inputs`: (rows, hidden) float32; `slots`, `positions`: (rows,) int32;
    `count`: (1,) int32, the rows that are there. Of the others nothing is written anywhere.
    """

    inputs: Tensor
    slots: Tensor
    positions: Tensor
    count: Tensor


@dataclass(frozen=True)
class Machine:
    """What decides how kernels are launched. `shared_memory`: bytes that a program can have;
    `can_overlap`: a kernel may start while the one before it ends, on Hopper and later.
    """

    shared_memory: int
    can_overlap: bool

    @classmethod
    def of(cls, device: torch.device) -> Machine:
        if device.type != "cuda":
            return cls(shared_memory=1 << 20, can_overlap=False)
        found = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
        return cls(found["max_shared_mem"], torch.cuda.get_device_capability(device) >= (9, 0))


class Step:
    """Enqueues a pass of a fixed number of rows, a power of two. Allocates in its constructor only.

    cosine, sine: (cache length, head_dim) float32, the sine with the signs of the rotation.
    """

    def __init__(
        self, sizes: TalkerSizes, weights: Mapping[str, Tensor], caches: Caches, rows: Rows,
        cosine: Tensor, sine: Tensor, *, prefill: bool,
    ) -> None:  # fmt: skip
        self.sizes, self.weights, self.caches, self.rows = sizes, weights, caches, rows
        self.cosine, self.sine, self.prefill = cosine, sine, prefill
        count = self.count = rows.slots.shape[0]
        tiles = self.tiles = tiles_of(count, prefill=prefill, routed=sizes.experts is not None)
        width = sizes.expert_width
        self.machine = Machine.of(caches.keys.device)

        def fitted(tile: Tile, features: int, depth: int) -> Tile:
            return tile.fitted(features, depth, tiles.rows, self.machine.shared_memory, tiles.dot)

        self.qkv_tile = fitted(tiles.qkv, sizes.qkv_width, sizes.hidden)
        self.out_tile = fitted(tiles.out, sizes.hidden, sizes.query_width)
        self.gate_up_tile = fitted(tiles.gate_up, 2 * width, sizes.hidden)
        self.down_tile = fitted(tiles.down, sizes.hidden, width)
        self.key_splits = tiles.key_splits
        if not prefill:
            self.key_splits = _key_splits(sizes, tiles, count, caches.keys.shape[3])
        #: How many sums of squares a row has: one a tile of its last projection, padded.
        self.out_tiles = triton.next_power_of_2(sizes.hidden // self.out_tile.features)
        self.down_tiles = triton.next_power_of_2(sizes.hidden // self.down_tile.features)
        routed, chosen = sizes.routed_experts, 0
        if sizes.experts is not None:
            chosen = sizes.experts.chosen
        #: Experts that the rows can choose between them.
        self.most_active = min(routed, count * chosen)
        if not tiles.dot:  # a program then reads one expert, and one row chooses a fixed number
            self.out_tile = replace(self.out_tile, splits=1)
            self.down_tile = replace(self.down_tile, splits=sizes.shared_experts + chosen)
        self._allocate()

    def _allocate(self) -> None:
        sizes, count, device = self.sizes, self.count, self.caches.keys.device
        splits = max(self.out_tile.splits, self.down_tile.splits)

        def floats(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=device)

        def halves(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.bfloat16, device=device)

        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.x, self.scaled = floats(count, sizes.hidden), halves(count, sizes.hidden)
        self.out_squares = floats(count, self.out_tiles)
        self.down_squares = floats(count, self.down_tiles)
        self.qkv = floats(count, sizes.qkv_width)
        self.attended = halves(count, sizes.query_width)
        self.parts = floats(self.key_splits, count, sizes.query_width)
        self.greatest = floats(self.key_splits, count, sizes.heads)
        self.totals = floats(self.key_splits, count, sizes.heads)
        in_use = 0 if self.tiles.group_rows else sizes.shared_experts + self.most_active
        self.inner = halves(in_use, count, sizes.expert_width)
        self.partial = floats(splits, count, sizes.hidden)
        #: A prefill's experts, where rows are sorted by expert.
        self.groups: Groups | None = None
        if self.tiles.group_rows:
            self.groups = Groups(
                sizes, self.weights, self.rows.count, self.tiles, self.machine.shared_memory,
                self.x, self.scaled, self.out_squares, self.down_squares,
            )  # fmt: skip
        self.counters = whole(max(count * sizes.kv_heads, sizes.hidden * count, 1))
        routed = max(sizes.routed_experts, 1)
        self.logits, self.shares = floats(count, routed), floats(routed, count)
        self.active, self.flag = whole(1), whole(1)
        self.expert = whole(sizes.shared_experts + routed)
        shared = torch.arange(sizes.shared_experts, dtype=torch.int32)
        self.expert[: sizes.shared_experts] = shared.to(device) + sizes.routed_experts

    def enqueue(self) -> None:
        """Launches all kernels on the current stream. The host waits for nothing."""
        self.begin()
        for layer in range(self.sizes.layers):
            self.layer(layer)
        self.finish()

    def layer(self, layer: int) -> None:
        for kernel in ("qkv", "attend", "out"):
            self.one(layer, kernel)
        if self.groups is not None:
            self.groups.enqueue(layer, self._norm_after(layer))
            return
        for kernel in ("gate_up", "down"):
            self.one(layer, kernel)

    def _norm_after(self, layer: int) -> Tensor:
        following = layer + 1 < self.sizes.layers
        return self.weights[f"layers.{layer + 1}.attention_norm" if following else "norm"]

    def one(self, layer: int, kernel: str) -> None:
        """Launches one kernel of a layer, by its name."""
        sizes, at = self.sizes, f"layers.{layer}."
        if kernel == "qkv":
            self._project_qkv(at)
        elif kernel == "attend":
            self._attend(layer)
        elif kernel == "out":
            self._project_residual(
                "out", self.attended, self.weights[at + "out"], self.out_tile, self.out_squares,
                self.weights[at + "mlp_norm"], shared=1, routed=0,
            )  # fmt: skip
        elif kernel == "gate_up":
            self._gate_up(at)
        else:
            self._project_residual(
                "down", self.inner, self.weights[at + "down"], self.down_tile, self.down_squares,
                self._norm_after(layer),
                shared=sizes.shared_experts, routed=sizes.routed_experts,
            )  # fmt: skip

    def begin(self) -> None:
        projection.begin[(self.count,)](
            self.rows.inputs, self.x, self.scaled, self.down_squares,
            self.weights["layers.0.attention_norm"], HIDDEN=self.sizes.hidden,
            PADDED=triton.next_power_of_2(self.sizes.hidden), TILES=self.down_tiles,
        )  # fmt: skip

    def finish(self) -> None:
        sizes, rows, caches = self.sizes, self.rows, self.caches
        projection.finish[(self.count,)](
            self.x, self.down_squares, self.weights["norm"], caches.hidden, caches.positions,
            rows.slots, rows.positions, rows.count, HIDDEN=sizes.hidden,
            PADDED=triton.next_power_of_2(sizes.hidden), TILES=self.down_tiles, EPS=sizes.rms_eps,
            LAST_ONLY=self.prefill, **self._launch("finish"),
        )  # fmt: skip

    def _launch(self, kernel: str) -> dict[str, bool]:
        overlapped = self.machine.can_overlap and bool(self.tiles.overlapped)
        return {
            "OVERLAPPED": overlapped, "launch_pdl": overlapped and kernel in self.tiles.overlapped,
        }  # fmt: skip

    def _row_tiles(self) -> int:
        return triton.cdiv(self.count, self.tiles.rows)

    def _options(self, tile: Tile, kernel: str) -> dict[str, int | bool]:
        return {
            "ROWS": self.count, "FEATURES": tile.features, "DEPTH": tile.depth,
            "TILE_ROWS": self.tiles.rows, "DOT": self.tiles.dot, "STAGES": tile.stages,
            "num_warps": tile.warps, "EARLY": tile.early, **self._launch(kernel),
        }  # fmt: skip

    def _project_qkv(self, at: str) -> None:
        sizes, tile = self.sizes, self.qkv_tile
        bias = self.weights[at + "qkv_bias"] if sizes.qkv_bias else self.qkv
        projection.project_qkv[(sizes.qkv_width // tile.features, self._row_tiles())](
            self.scaled, self.down_squares, self.weights[at + "qkv"], bias, self.qkv,
            self.flag,
            K=sizes.hidden, N=sizes.qkv_width, TILES=self.down_tiles, EPS=sizes.rms_eps,
            BIAS=sizes.qkv_bias, **self._options(tile, "qkv"),
        )  # fmt: skip

    def _attend(self, layer: int) -> None:
        sizes, rows, tiles = self.sizes, self.rows, self.tiles
        keys, values = self.caches.keys[layer], self.caches.values[layer]
        shape = {
            "HEADS": sizes.heads, "KV_HEADS": sizes.kv_heads, "HEAD_DIM": sizes.head_dim,
        }  # fmt: skip
        common = (
            self.qkv, self.cosine, self.sine, keys, values, rows.slots, rows.positions, rows.count,
            keys.shape[2],
        )  # fmt: skip
        if self.prefill:
            attention.append[(self.count, sizes.kv_heads)](
                *common, **shape, num_warps=1, **self._launch("append")
            )
        queries = min(tiles.queries, self.count)
        group = triton.next_power_of_2(sizes.heads // sizes.kv_heads)
        attention.attend[(self.key_splits, sizes.kv_heads, self.count // queries)](
            *common, self.parts, self.greatest, self.totals, self.counters, self.attended,
            **shape, GROUP=max(group, 16 // queries), QUERIES=queries, KEYS=tiles.keys,
            SPLITS=self.key_splits, APPENDED=self.prefill, ROWS=self.count,
            num_warps=tiles.attention_warps, **self._launch("attend"),
        )  # fmt: skip

    def _project_residual(
        self, kernel: str, inputs: Tensor, weight: Tensor, tile: Tile, squares: Tensor,
        norm: Tensor, *, shared: int, routed: int,
    ) -> None:  # fmt: skip
        hidden = self.sizes.hidden
        grid = (hidden // tile.features, tile.splits, self._row_tiles())
        projection.project_residual[grid](
            inputs, weight, self.expert, self.active, self.flag, self.partial, self.counters,
            self.x, self.scaled, squares, norm,
            K=inputs.shape[-1], N=hidden, SHARED=shared, ROUTED=routed, TILES=squares.shape[1],
            SPLITS=tile.splits, **self._options(tile, kernel),
        )  # fmt: skip

    def _gate_up(self, at: str) -> None:
        sizes, tile = self.sizes, self.gate_up_tile
        width, routed = sizes.expert_width, sizes.routed_experts
        padded = triton.next_power_of_2(max(routed, _ROUTER_EXPERTS))
        experts_chosen, normalized, routers = 0, False, 0
        router = self.scaled
        if sizes.experts is not None:
            experts_chosen, normalized = sizes.experts.chosen, sizes.experts.normalized
            router = self.weights[at + "router"]
            routers = padded // _ROUTER_EXPERTS * self.count
        depth = dividing(_ROUTER_DEPTH, sizes.hidden)
        of_expert = 2 * width // tile.features * self._row_tiles()
        programs = routers + (sizes.shared_experts + self.most_active) * of_expert
        experts.gate_up[(programs,)](
            self.x, self.scaled, self.out_squares, self.weights[at + "mlp_norm"], router,
            self.logits, self.rows.count, self.expert, self.active, self.shares, self.counters,
            self.flag, self.weights[at + "gate_up"], self.inner,
            K=sizes.hidden, WIDTH=width, TILES=self.out_tiles, EPS=sizes.rms_eps,
            SHARED=sizes.shared_experts, ROUTED=routed, PADDED=padded, CHOSEN=experts_chosen,
            NORMALIZED=normalized, ROUTER_EXPERTS=_ROUTER_EXPERTS, ROUTER_DEPTH=depth,
            **self._options(tile, "gate_up"),
        )  # fmt: skip


def _key_splits(sizes: TalkerSizes, tiles: Tiles, rows: int, cache_length: int) -> int:
    """Programs that share a row's keys: more for a longer cache, while they find a place."""
    splits = tiles.key_splits
    while splits * 256 < cache_length and splits * rows * sizes.kv_heads < _PROGRAMS:
        splits *= 2
    return splits
