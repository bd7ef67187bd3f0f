"""How the kernels want a talker's weights: which tensors, and how a bundle's parameters make them.

A linear weight is (out, in), so that one output feature is one contiguous row. The SwiGLU that all
rows share is cut into experts of the routed width and appended to the routed ones; rows of gate
and up alternate, as the bundle has them of routed experts. One layer at a time, on NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trt_runtime.plugins.sizes import TalkerSizes

FLOAT32, BFLOAT16 = "float32", "bfloat16"
FINAL_NORM = "norm"


@dataclass(frozen=True)
class KernelTensor:
    """One tensor of the kernels. `sources`: the bundle's parameters that it is made of."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    sources: tuple[str, ...]


def kernel_tensors(sizes: TalkerSizes) -> Iterator[KernelTensor]:
    """Every tensor that the kernels want, layer by layer, the final norm last."""
    hidden, width = sizes.hidden, sizes.expert_width
    experts = sizes.routed_experts + sizes.shared_experts
    routed = sizes.experts is not None
    for layer in range(sizes.layers):
        at = f"talker.layers.{layer}."

        def row(
            name: str, shape: tuple[int, ...], dtype: str, *sources: str, at: str = at
        ) -> KernelTensor:
            return KernelTensor(
                at.removeprefix("talker.") + name, shape, dtype, tuple(at + s for s in sources)
            )

        yield row("attention_norm", (hidden,), FLOAT32, "attention_norm")
        yield row("qkv", (sizes.qkv_width, hidden), BFLOAT16, "qkv_weight")
        if sizes.qkv_bias:
            yield row("qkv_bias", (sizes.qkv_width,), FLOAT32, "qkv_bias")
        yield row("out", (hidden, sizes.query_width), BFLOAT16, "out_weight")
        yield row("mlp_norm", (hidden,), FLOAT32, "mlp_norm")
        if routed:
            yield row("router", (sizes.routed_experts, hidden), BFLOAT16, "router_weight")
        yield row(
            "gate_up", (experts, 2 * width, hidden), BFLOAT16,
            *(["experts_gate_up"] if routed else []), "gate_up_weight",
        )  # fmt: skip
        yield row(
            "down", (experts, hidden, width), BFLOAT16,
            *(["experts_down"] if routed else []), "down_weight",
        )  # fmt: skip
    yield KernelTensor(FINAL_NORM, (hidden,), FLOAT32, ("talker.norm",))


def kernel_array(
    sizes: TalkerSizes, tensor: KernelTensor, parameters: Mapping[str, np.ndarray]
) -> np.ndarray:
    """The tensor out of its sources: float32, or bfloat16 of ml_dtypes. A new, contiguous array.

    parameters: at least `tensor.sources`, in float32 or in bfloat16, as the bundle shapes them.
    """
    kind = tensor.name.rsplit(".", 1)[-1]
    out = np.empty(tensor.shape, _dtype(tensor.dtype))
    *routed, last = (parameters[source] for source in tensor.sources)
    if kind == "gate_up":
        _append_gate_up(out, sizes, last)
    elif kind == "down":
        shared = last.reshape(sizes.shared_experts, sizes.expert_width, sizes.hidden)
        out[sizes.routed_experts :] = shared.transpose(0, 2, 1)
    else:
        out[:] = last.T  # of a vector: itself
    if routed:
        out[: sizes.routed_experts] = routed[0]
    return out


def _append_gate_up(out: np.ndarray, sizes: TalkerSizes, shared: np.ndarray) -> None:
    """shared: (hidden, 2 * intermediate), all of the gate and then all of the up projection."""
    for place, half in enumerate(np.split(shared, 2, axis=-1)):
        rows = half.T.reshape(sizes.shared_experts, sizes.expert_width, sizes.hidden)
        out[sizes.routed_experts :, place::2] = rows


def _dtype(name: str) -> Any:
    if name == FLOAT32:
        return np.float32
    import ml_dtypes  # of engine builders: the light runtime is installed without it

    return ml_dtypes.bfloat16
