"""A talker's sizes as our kernels take them; what they cannot run is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trt_runtime.errors import UserError
from trt_runtime.transformer_sizes import TransformerSizes

if TYPE_CHECKING:
    from trt_runtime.plugins.sizes import TalkerSizes


def kernel_sizes(sizes: TransformerSizes | None) -> TalkerSizes:
    """Raises UserError for a talker that is unknown, has a sliding window or does not fit."""
    from trt_runtime.plugins.sizes import TalkerSizes

    if sizes is None:
        raise UserError(
            "The folder does not say the sizes of its talker, which the kernels need",
            expected="sizes under components.talker of its manifest",
            do="export the checkpoint again with this version",
        )
    windows = [layer for layer, past in enumerate(sizes.window) if past is not None]
    if windows:
        raise UserError(
            "The talker's kernels cannot run layers with a sliding window",
            expected="layers that see every position",
            found=f"a window in layer {windows[0]}"
            + (f" and {len(windows) - 1} others" if windows[1:] else ""),
            do="build this talker for another target: --target cpu",
        )
    return TalkerSizes(
        hidden=sizes.hidden,
        layers=sizes.layers,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        intermediate=sizes.intermediate,
        rope_theta=sizes.rope_theta,
        rms_eps=sizes.rms_eps,
        qkv_bias=sizes.qkv_bias,
        experts=sizes.experts,
    )
