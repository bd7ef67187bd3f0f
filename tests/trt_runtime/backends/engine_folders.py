"""Engine folders as build-engines makes them for TensorRT, of engines that only tests can run.

A serialised engine is a line of JSON behind a magic word: which graphs of which bundle it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trt_runtime.contract import TALKER, TensorSpec
from trt_runtime.manifest import (
    ENGINES,
    MANIFEST,
    SPEAKER_ENCODER,
    TOKENIZER,
    GraphEntry,
    Manifest,
    read_manifest,
    sha256_of,
)

MAGIC = b"fake engine "
VERSION = "1.7.1.116"
#: Left out of a folder: the unrolled tail does what they do.
LOOPED = ("flow_step", "flow_advance")
_Slots = tuple[int, ...]


def engine_entry(entry: GraphEntry, cache_dtype: str, in_place: bool) -> GraphEntry:
    """The bundle's graph as an engine's: caches of another dtype, perhaps none in place."""

    def tensors(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return tuple(replace(t, dtype=cache_dtype) if "cache" in t.name else t for t in specs)

    return replace(
        entry, inputs=tensors(entry.inputs), outputs=tensors(entry.outputs), initializers={},
        file=f"{entry.component}.engine", in_place=entry.in_place if in_place else (),
    )  # fmt: skip


def write_folder(
    bundle: Path,
    folder: Path,
    *,
    target: str = "tensorrt-rtx",
    slots: _Slots = (1, 2, 4),
    in_place: bool = True,
    cache_dtype: str = "float32",
    leaves_out: tuple[str, ...] = LOOPED,
    machine: dict[str, Any] | None = None,
) -> Path:
    """An engine folder as build-engines makes one, of fake engines."""
    manifest = read_manifest(bundle)
    folder.mkdir()
    graphs = {
        name: engine_entry(entry, cache_dtype, in_place)
        for name, entry in manifest.graphs.items()
        if name not in leaves_out
    }
    components = {}
    for component in dict.fromkeys(entry.component for entry in graphs.values()):
        own = [entry for entry in graphs.values() if entry.component == component]
        by_slot = any(t.by_slot for entry in own for t in entry.inputs)
        profiles = [(count, 1) for count in (slots if by_slot else (1,))]
        if component == TALKER:
            profiles += [(1, chunk) for chunk in manifest.geometry.prefill_chunks]
        row = manifest.components.get(component) or next(iter(manifest.components.values()))
        components[component] = replace(row, backend="tensorrt", profiles=tuple(profiles))
        described = {
            "component": component, "bundle": str(bundle), "profiles": profiles,
            "in_place": in_place, "cache_dtype": cache_dtype,
        }  # fmt: skip
        (folder / own[0].file).write_bytes(MAGIC + json.dumps(described).encode())
    for name in (TOKENIZER, SPEAKER_ENCODER):
        if (bundle / name).is_file():
            (folder / name).write_bytes((bundle / name).read_bytes())
    files = {p.name: (p.stat().st_size, sha256_of(p)) for p in sorted(folder.iterdir())}
    written = Manifest(
        ENGINES, manifest.family, manifest.geometry, graphs, files, manifest.source,
        target=target, machine=machine or {}, precision={}, components=components,
        build={"source": "CHECKPOINT", "options": {"slots": list(slots)}},
        producer=manifest.producer,
    )  # fmt: skip
    (folder / MANIFEST).write_text(written.to_json(), encoding="utf-8")
    return folder
