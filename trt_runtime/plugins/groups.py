"""The feed-forward half of many rows: the kernels of :mod:`grouped`, with their buffers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
from torch import Tensor

from trt_runtime.plugins import grouped
from trt_runtime.plugins.sizes import TalkerSizes
from trt_runtime.plugins.tiles import Tile, Tiles, dividing

#: The router reads a row this far at a time, the search for an expert's pairs goes this far.
_ROUTER_DEPTH, _PAIRS = 128, 256


class Groups:
    """Enqueues router, experts and their sum for all rows. Allocates in its constructor only.

    x, scaled: (rows, hidden), the residual stream and what the norm's reader takes of it;
    squares: of each row the tiles' sums that the router's norm reads, next_squares: for the next.
    """

    def __init__(
        self, sizes: TalkerSizes, weights: Mapping[str, Tensor], count: Tensor, tiles: Tiles,
        shared_memory: int, x: Tensor, scaled: Tensor, squares: Tensor, next_squares: Tensor,
    ) -> None:  # fmt: skip
        assert sizes.experts is not None
        self.sizes, self.experts, self.weights = sizes, sizes.experts, weights
        self.count, self.tiles, self.shared_memory = count, tiles, shared_memory
        self.x, self.scaled, self.squares, self.next_squares = x, scaled, squares, next_squares
        rows, device = x.shape[0], x.device
        chosen, shared = sizes.experts.chosen, sizes.shared_experts
        pairs = rows * (chosen + shared)
        self.chosen = torch.zeros(rows, chosen, dtype=torch.int32, device=device)
        self.shares = torch.ones(pairs, dtype=torch.float32, device=device)
        self.pair = torch.zeros(
            sizes.routed_experts + shared, rows, dtype=torch.int32, device=device
        )
        of_shared = torch.arange(rows * chosen, pairs, dtype=torch.int32, device=device)
        self.pair[sizes.routed_experts :] = of_shared.view(shared, rows)
        self.size = torch.full((self.pair.shape[0],), rows, dtype=torch.int32, device=device)
        self.inner = torch.zeros(pairs, sizes.expert_width, dtype=torch.bfloat16, device=device)
        self.output = torch.zeros(pairs, sizes.hidden, dtype=torch.float32, device=device)

    def enqueue(self, layer: int, norm_after: Tensor) -> None:
        sizes, experts, at = self.sizes, self.experts, f"layers.{layer}."
        rows, hidden, width = self.x.shape[0], sizes.hidden, sizes.expert_width
        depth = dividing(_ROUTER_DEPTH, hidden)
        grouped.route[(rows,)](
            self.x, self.squares, self.weights[at + "mlp_norm"], self.weights[at + "router"],
            self.chosen, self.shares,
            K=hidden, ROUTED=experts.count, PADDED=triton.next_power_of_2(experts.count),
            CHOSEN=experts.chosen, NORMALIZED=experts.normalized, TILES=self.squares.shape[1],
            EPS=sizes.rms_eps, DEPTH=depth, num_warps=8,
        )  # fmt: skip
        grouped.group[(experts.count,)](
            self.chosen, self.count, self.pair, self.size,
            ROWS=rows, CHOSEN=experts.chosen, STEP=_PAIRS,
        )  # fmt: skip
        self._multiply(
            self.tiles.gate_up, self.scaled, self.weights[at + "gate_up"], self.inner,
            hidden, 2 * width, swiglu=True,
        )  # fmt: skip
        self._multiply(
            self.tiles.down, self.inner, self.weights[at + "down"], self.output,
            width, hidden, swiglu=False,
        )  # fmt: skip
        grouped.join[(rows,)](
            self.output, self.x, self.scaled, self.next_squares, norm_after, self.count,
            ROWS=rows, HIDDEN=hidden, PADDED=triton.next_power_of_2(hidden),
            CHOSEN=experts.chosen, SHARED=sizes.shared_experts, TILES=self.next_squares.shape[1],
        )  # fmt: skip

    def _multiply(
        self, tile: Tile, inputs: Tensor, weight: Tensor, output: Tensor,
        depth: int, features: int, *, swiglu: bool,
    ) -> None:  # fmt: skip
        rows, group_rows = self.x.shape[0], self.tiles.group_rows
        tile = tile.fitted(features, depth, group_rows, self.shared_memory, dot=True)
        grid = (features // tile.features, self.pair.shape[0], triton.cdiv(rows, group_rows))
        grouped.multiply[grid](
            inputs, self.squares, weight, self.pair, self.size, self.shares, output,
            ROWS=rows, K=depth, N=features, CHOSEN=self.experts.chosen, SWIGLU=swiglu,
            TILES=self.squares.shape[1], EPS=self.sizes.rms_eps, FEATURES=tile.features,
            DEPTH=tile.depth, TILE_ROWS=group_rows, STAGES=tile.stages, num_warps=tile.warps,
        )  # fmt: skip
