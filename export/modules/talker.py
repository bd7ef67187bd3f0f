"""The talker: a causal transformer whose slots are at positions of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from export.modules.attention import cached_attention
from export.modules.experts import layer_of
from export.modules.layers import constant, rms_norm
from export.modules.transformer import CausalTransformer, TransformerLayer
from export.sizes import TransformerSizes


class Talker(CausalTransformer):
    """Dense or of experts, as the sizes say; every cache is of `cache_length`, none is a ring."""

    def __init__(self, sizes: TransformerSizes, cache_length: int) -> None:
        super().__init__(sizes, [cache_length] * sizes.layers, layer_of)

    def forward(
        self, x: Tensor, position: Tensor, caches: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """x: (slots, T, hidden), slot s at the positions from position[s] on, (slots,) int64.

        caches: key and value of layer 0, of layer 1, …, each (slots, kv_heads, cache_length,
        head_dim). Returns the hidden states after the final norm and the caches.
        """
        s = self.sizes
        frequencies = constant(self.inverse_frequencies)
        new_caches: list[Tensor] = []
        for index, module in enumerate(self.layers):
            layer = cast(TransformerLayer, module)
            length, window = self.cache_lengths[index], s.window[index]
            attended, *written = cached_attention(
                layer.queries_keys_values(x),
                position,
                frequencies,
                *caches[2 * index : 2 * index + 2],
                s.heads,
                s.kv_heads,
                length if window is None else window,
            )
            x = layer.after_attention(x, attended)
            new_caches += written
        return rms_norm(x, self.norm, s.rms_eps), new_caches
