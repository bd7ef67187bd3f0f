"""The sizes of a causal transformer that no tensor's shape tells, as a manifest carries them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ExpertSizes:
    """The routed experts of each layer: `chosen` of `count` for a row, each `intermediate` wide.

    `normalized` says whether the weights of the chosen are divided by their sum.
    """

    count: int
    chosen: int
    intermediate: int
    normalized: bool


@dataclass(frozen=True)
class TransformerSizes:
    """A causal Qwen2 stack, or one with experts.

    `window` has one entry a layer: the number of past positions that a query sees besides itself,
    None for all of them. `qkv_bias` says whether queries, keys and values have biases. With
    `experts`, `intermediate` is the width of the expert that all rows share.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rope_theta: float
    rms_eps: float
    vocab_size: int
    window: tuple[int | None, ...]
    qkv_bias: bool = True
    experts: ExpertSizes | None = None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "window": list(self.window)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TransformerSizes:
        """Raises KeyError, TypeError or ValueError where a field is missing or not of its kind."""
        layers, window = _whole(data, "layers"), data["window"]
        if not isinstance(window, list) or len(window) != layers:
            raise ValueError(f"window is no list of an entry for each of {layers} layers")
        experts = data["experts"]
        return cls(
            hidden=_whole(data, "hidden"),
            layers=layers,
            heads=_whole(data, "heads"),
            kv_heads=_whole(data, "kv_heads"),
            head_dim=_whole(data, "head_dim"),
            intermediate=_whole(data, "intermediate"),
            rope_theta=_positive(data, "rope_theta"),
            rms_eps=_positive(data, "rms_eps"),
            vocab_size=_whole(data, "vocab_size"),
            window=tuple(
                None if entry is None else _whole({"window": entry}, "window", least=0)
                for entry in window
            ),
            qkv_bias=_flag(data, "qkv_bias"),
            experts=None
            if experts is None
            else ExpertSizes(
                _whole(experts, "count"),
                _whole(experts, "chosen"),
                _whole(experts, "intermediate"),
                _flag(experts, "normalized"),
            ),
        )


#: No talker is wider, nor has more words.
_MOST = 1 << 22


def _whole(data: Mapping[str, Any], name: str, least: int = 1) -> int:
    value = data[name]
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not least <= value <= _MOST:
        raise TypeError(f"{name} is {value!r}, not a whole number from {least} to {_MOST}")
    return int(value)


def _positive(data: Mapping[str, Any], name: str) -> float:
    value = data[name]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (math.isfinite(value) and value > 0):
        raise TypeError(f"{name} is {value!r}, not a number above 0")
    return float(value)


def _flag(data: Mapping[str, Any], name: str) -> bool:
    value = data[name]
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, neither true nor false")
    return value
