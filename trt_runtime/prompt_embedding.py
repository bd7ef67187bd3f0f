"""A prompt's token ids, speakers and reference patches as the talker's input embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trt_runtime.backends.interface import Backend
from trt_runtime.contract import (
    FLOW_ADVANCE,
    PROMPT_EMBEDDING,
    SPEAKER_PROJECTION,
)
from trt_runtime.errors import FolderError, NumericError
from trt_runtime.geometry import Geometry
from trt_runtime.prompt import Prompt


@dataclass(frozen=True, eq=False)
class SpokenContext:
    """What of the voices goes into every prompt of a request, computed once.

    speakers: (speakers, talker_hidden), patches: (patches, talker_hidden), history: (history,
    latent_dim), all float32. The history is that of the first step: the last latents of the
    references, zeros before them.
    """

    speakers: NDArray[np.float32]
    patches: NDArray[np.float32]
    history: NDArray[np.float32]


def embed_tokens(
    backend: Backend, geometry: Geometry, token_ids: NDArray[np.int64]
) -> NDArray[np.float32]:
    """token_ids: (tokens,) int64 to embeddings (tokens, talker_hidden) float32."""
    bound = backend.bind(PROMPT_EMBEDDING, {})
    size = geometry.prefill_chunks[-1]
    rows = []
    for start in range(0, len(token_ids), size):
        part = token_ids[start : start + size]
        bound.buffers["token_ids"].write(np.pad(part, (0, size - len(part)))[None])
        bound.run()
        rows.append(bound.buffers["embeddings"].read()[0, : len(part)].copy())
    return np.concatenate(rows)


def embed_context(
    backend: Backend,
    geometry: Geometry,
    speakers: Sequence[NDArray[np.float32] | None],
    latents: NDArray[np.float32],
) -> SpokenContext:
    """speakers: (speaker_dim,) each, or None for the zero speaker; latents: (n, latent_dim).

    The zero speaker is zeros after the projection, whose bias does not act. Raises FolderError
    where the engines lack a graph that this takes, NumericError where a row is not finite.
    """
    g = geometry
    history = np.zeros((g.history, g.latent_dim), np.float32)
    kept = latents[-g.history :]
    if len(kept):
        history[-len(kept) :] = kept
    context = SpokenContext(
        _speaker_rows(backend, g, speakers), _patch_rows(backend, g, latents), history
    )
    for name, rows in (("speaker_projection", context.speakers), ("aggregator", context.patches)):
        if not np.isfinite(rows).all():
            raise NumericError(
                f"{name} produced NaN or infinity",
                expected="finite numbers",
                do="check the reference or voice, and the checkpoint (python -m export --check)",
            )
    return context


def embed_prompt(
    backend: Backend, geometry: Geometry, prompt: Prompt, context: SpokenContext
) -> NDArray[np.float32]:
    """(tokens, talker_hidden) float32: token embeddings, the context's rows in their slots."""
    rows = embed_tokens(backend, geometry, prompt.ids)
    rows[list(prompt.speaker_slots)] = context.speakers
    rows[list(prompt.patch_slots)] = context.patches
    return rows


def _speaker_rows(
    backend: Backend, g: Geometry, speakers: Sequence[NDArray[np.float32] | None]
) -> NDArray[np.float32]:
    rows = np.zeros((len(speakers), g.talker_hidden), np.float32)
    if any(embedding is not None for embedding in speakers):
        _require(backend, SPEAKER_PROJECTION)
        bound = backend.bind(SPEAKER_PROJECTION, {})
        for row, embedding in zip(rows, speakers, strict=True):
            if embedding is not None:
                bound.buffers["speaker_embedding"].write(embedding[None])
                bound.run()
                row[:] = bound.buffers["projection"].read()[0]
    return rows


def _patch_rows(backend: Backend, g: Geometry, latents: NDArray[np.float32]) -> NDArray[np.float32]:
    rows = np.zeros((len(latents) // g.patch, g.talker_hidden), np.float32)
    if len(rows):
        _require(backend, FLOW_ADVANCE)
        bound = backend.bind(FLOW_ADVANCE, {})
        for row, patch in zip(rows, latents.reshape(-1, g.patch, g.latent_dim), strict=True):
            bound.buffers["patch"].write(patch[None])
            bound.run()
            row[:] = bound.buffers["embedding"].read()[0, 0]
    return rows


def _require(backend: Backend, graph: str) -> None:
    if not backend.has(graph):
        raise FolderError(
            f"These engines lack the graph {graph}, which cloned voices need",
            expected="a folder with every graph of its bundle",
            do="build the engines again from the checkpoint",
        )
