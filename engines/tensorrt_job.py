"""What the process that builds an engine is told, as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class EngineJob:
    """One engine to build.

    `graph` is the prepared ONNX file, its weights beside it; `engine` where the engine goes.
    `profiles` are (slots, tokens) of each optimisation profile. `types` is the precision plan: by
    name of a node the type that it must have in the parsed network; `casts` names the casts that
    there may be; `layers` how many native layers of each kind there must be. `sources` gives by
    node the exporter's line that made it.
    """

    target: str
    component: str
    graph: str
    engine: str
    profiles: tuple[tuple[int, int], ...]
    types: Mapping[str, str]
    casts: tuple[str, ...] = ()
    layers: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    compute_capability: tuple[str, ...] = ()
    ampere_and_later: bool = False
    version_compatible: bool = False
    weight_streaming: bool = False
    timing_cache: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EngineJob:
        data: dict[str, Any] = json.loads(text)
        data["profiles"] = tuple((slots, tokens) for slots, tokens in data["profiles"])
        for name in ("casts", "compute_capability"):
            data[name] = tuple(data[name])
        return cls(**data)
