"""Inputs of a graph by its tensors' names, shapes and dtypes: numbers that a loop could give it.

Random integers would be positions past the cache and counts that no call has. Needs the graph's
tensors alone; with its geometry, counts are those of a whole call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from trt_runtime.contract import TensorSpec
from trt_runtime.geometry import Geometry
from trt_runtime.noise import Stream, normal

#: Slots that graphs with a free axis are given; one alone would hide a mix-up of rows.
SLOTS = 2
#: Numbers that are never negative: times, and what is multiplied as a scale.
_POSITIVE = ("time", "time_step", "guidance", "noise_scale", "window_overlap")
#: Token ids that every vocabulary has.
_FEW_TOKENS = 16

#: What an integer input is in the middle of a request, by name; each has a least value.
_MIDDLE: Mapping[str, Callable[[Geometry], int]] = {
    "position": lambda g: g.prefill_chunks[0],
    "latents_before": lambda g: g.patch,
    "valid": lambda g: g.patch,
    "valid_frames": lambda g: g.encoder_latents * g.frames_per_latent,
    "is_last": lambda g: 0,
}
_FIRST_CALL = {"position": 0, "latents_before": 0, "valid": 1, "valid_frames": 1, "is_last": 1}


def graph_inputs(
    tensors: Iterable[TensorSpec],
    geometry: Geometry | None = None,
    *,
    slots: int = SLOTS,
    seed: int = 0,
    first_call: bool = False,
) -> dict[str, np.ndarray]:
    """An array for each of `tensors`, by name; the same for the same seed on every machine.

    `first_call`: the first of a request, which holds the least that a call may, and is the last
    too. So it is without a geometry, which would say what else there may be.
    """
    g = None if first_call else geometry
    found: dict[str, np.ndarray] = {}
    for index, tensor in enumerate(tensors):
        spec = tensor.sized(slots)
        if spec.name == "token_ids":
            most = geometry.vocab_size if geometry is not None else _FEW_TOKENS
            drawn = np.abs(normal(seed, index, Stream.POSTERIOR, spec.shape))
            found[spec.name] = (drawn * 1e6).astype(np.int64) % most
        elif "float" in spec.dtype:
            drawn = normal(seed, index, Stream.POSTERIOR, spec.shape)
            drawn = np.abs(drawn) if spec.name in _POSITIVE else drawn
            found[spec.name] = drawn.astype(spec.dtype)
        else:
            found[spec.name] = np.full(spec.shape, _whole(spec.name, g), spec.dtype)
            if spec.name == "position":
                # Slots are where they are: each a little further than the last.
                found[spec.name] += np.arange(len(found[spec.name]))
    return found


def _whole(name: str, geometry: Geometry | None) -> int:
    if geometry is not None and name in _MIDDLE:
        return _MIDDLE[name](geometry)
    return _FIRST_CALL.get(name, 0)
