"""The table of graphs: which torch modules make each graph of the contract, and in what order.

Each row wraps components in a module whose `forward` takes and returns the tensors of the graph's
`contract.GraphSpec`, in its order. Attribute names give the parameters the names of the family
tables (`talker.layers.0.qkv_weight`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from export.graph_weights import weight_components
from export.modules.audio_decoder import AudioDecoder
from export.modules.audio_encoder import AudioEncoder
from export.modules.flow import Aggregator, Flow, StopHead, euler_step
from export.modules.layers import parameter
from export.modules.talker import Talker
from export.sizes import ModelSizes
from export.tail_graph import compose_tail
from trt_runtime.contract import (
    AUDIO_DECODER,
    AUDIO_ENCODER,
    FLOW_ADVANCE,
    FLOW_STEP,
    LANGUAGE_HEAD,
    PROMPT_EMBEDDING,
    SPEAKER_PROJECTION,
    TAIL,
    GraphSpec,
    graph_specs,
)
from trt_runtime.geometry import Geometry
from trt_runtime.time_grid import time_grid


class PromptEmbeddingGraph(nn.Module):
    def __init__(self, sizes: ModelSizes, geometry: Geometry) -> None:
        super().__init__()
        self.prompt_embedding = nn.Module()
        self.prompt_embedding.table = parameter(geometry.vocab_size, geometry.talker_hidden)

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids: (1, T) int64 to embeddings (1, T, talker_hidden)."""
        return nn.functional.embedding(token_ids, cast(Tensor, self.prompt_embedding.table))


class SpeakerProjectionGraph(nn.Module):
    def __init__(self, sizes: ModelSizes, geometry: Geometry) -> None:
        super().__init__()
        self.speaker_projection = nn.Module()
        self.speaker_projection.weight = parameter(geometry.speaker_dim, geometry.talker_hidden)
        self.speaker_projection.bias = parameter(geometry.talker_hidden)

    def forward(self, speaker_embedding: Tensor) -> Tensor:
        """speaker_embedding: (1, speaker_dim) to a talker embedding (1, talker_hidden)."""
        weight, bias = self.speaker_projection.weight, self.speaker_projection.bias
        return speaker_embedding @ cast(Tensor, weight) + cast(Tensor, bias)


class TalkerGraph(nn.Module):
    def __init__(self, sizes: ModelSizes, geometry: Geometry) -> None:
        super().__init__()
        self.talker = Talker(sizes.talker, geometry.cache_length)

    def forward(self, embeddings: Tensor, position: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        """embeddings: (slots, T, talker_hidden), position: (slots,) to hidden alike, and caches."""
        hidden, new_caches = self.talker(embeddings, position, caches)
        return hidden, *new_caches


def _flow(sizes: ModelSizes, geometry: Geometry) -> Flow:
    return Flow(sizes.flow, geometry.latent_dim, geometry.talker_hidden)


class FlowStepGraph(nn.Module):
    def __init__(self, sizes: ModelSizes, geometry: Geometry) -> None:
        super().__init__()
        self.flow = _flow(sizes, geometry)

    def forward(
        self,
        latents: Tensor,
        time: Tensor,
        time_step: Tensor,
        hidden: Tensor,
        history: Tensor,
        guidance: Tensor,
        diffusion_noise: Tensor,
        noise_scale: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """latents and noise: (slots, patch, latent_dim), to latents a step on and the velocity."""
        velocity = self.flow.velocity(latents, time, hidden, history, guidance)
        return euler_step(latents, velocity, time_step, diffusion_noise, noise_scale), velocity


class FlowAdvanceGraph(nn.Module):
    def __init__(self, sizes: ModelSizes, geometry: Geometry) -> None:
        super().__init__()
        self.aggregator = Aggregator(sizes.aggregator, geometry.latent_dim, geometry.talker_hidden)
        self.stop_head = StopHead(geometry.talker_hidden)

    def forward(self, patch: Tensor, hidden: Tensor, history: Tensor) -> tuple[Tensor, ...]:
        """patch: (slots, patch, latent_dim) to (slots, 1, talker_hidden), stop, shifted history."""
        shifted = torch.cat((history, patch), dim=1)[:, -history.shape[1] :]
        return self.aggregator(patch), self.stop_head(hidden), shifted


class TailGraph(FlowAdvanceGraph):
    def __init__(self, sizes: ModelSizes, geometry: Geometry) -> None:
        super().__init__(sizes, geometry)
        self.flow = _flow(sizes, geometry)
        self.grid = time_grid(geometry.solver_steps)

    def forward(  # type: ignore[override]
        self,
        hidden: Tensor,
        history: Tensor,
        initial_noise: Tensor,
        diffusion_noise: Tensor,
        guidance: Tensor,
        noise_scale: Tensor,
    ) -> tuple[Tensor, ...]:
        """hidden: (slots, 1, talker_hidden) to (slots, patch, latent_dim), then as the parent."""
        latents = initial_noise
        last = len(self.grid) - 2
        for step in range(last + 1):
            time = torch.from_numpy(self.grid[step : step + 1])
            time_step = torch.from_numpy(
                self.grid[step + 1 : step + 2] - self.grid[step : step + 1]
            )
            velocity = self.flow.velocity(latents, time, hidden, history, guidance)
            if step < last:
                latents = euler_step(
                    latents, velocity, time_step, diffusion_noise[:, step], noise_scale
                )
            else:
                # The reference reads its result before the last step's noise.
                latents = latents + time_step * velocity
        return latents, *super().forward(latents, hidden, history)


class AudioDecoderGraph(nn.Module):
    def __init__(self, sizes: ModelSizes, geometry: Geometry) -> None:
        super().__init__()
        self.audio_decoder = AudioDecoder(sizes.audio.decoder, geometry)

    def forward(
        self,
        latents: Tensor,
        latents_before: Tensor,
        valid: Tensor,
        is_last: Tensor,
        *state: Tensor,
    ) -> tuple[Tensor, ...]:
        """latents: (1, patch, latent_dim) to audio (1, samples) and state: see AudioDecoder."""
        return self.audio_decoder.decode(latents, latents_before, valid, is_last, *state)


class AudioEncoderGraph(nn.Module):
    def __init__(self, sizes: ModelSizes, geometry: Geometry) -> None:
        super().__init__()
        self.audio_encoder = AudioEncoder(sizes.audio, geometry)

    def forward(
        self, wave: Tensor, latents_before: Tensor, valid_frames: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        """wave: (1, samples) to the posterior of its latents and caches: see AudioEncoder."""
        return cast(
            tuple[Tensor, ...], self.audio_encoder(wave, latents_before, valid_frames, *caches)
        )


class LanguageHeadGraph(nn.Module):
    """The head's table: its own, or the embeddings' where the two are tied."""

    def __init__(self, sizes: ModelSizes, geometry: Geometry) -> None:
        super().__init__()
        part = nn.Module()
        part.table = parameter(geometry.vocab_size, geometry.talker_hidden)
        self.add_module("prompt_embedding" if sizes.tied_embeddings else "language_head", part)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (1, 1, talker_hidden) to logits (1, vocab_size)."""
        (table,) = self.parameters()
        # The table on the left: no runtime then keeps a transposed copy of the largest tensor.
        return (table @ hidden[0].transpose(0, 1)).transpose(0, 1)


@dataclass(frozen=True)
class GraphSource:
    """A graph to export: its contract, its module, and the components whose weights it uses.

    The module is traced, or, with `compose`, only what the graph is held to: `compose` then makes
    it of graphs that come before it and lie in the bundle's folder.
    """

    spec: GraphSpec
    make: Callable[[ModelSizes, Geometry], nn.Module]
    components: tuple[str, ...]
    compose: Callable[[GraphSpec, Geometry, Path], ir.Model] | None = None


#: By graph name, or by component for a family of buckets.
_MODULES: Mapping[str, Callable[[ModelSizes, Geometry], nn.Module]] = {
    PROMPT_EMBEDDING: PromptEmbeddingGraph,
    SPEAKER_PROJECTION: SpeakerProjectionGraph,
    "talker": TalkerGraph,
    FLOW_STEP: FlowStepGraph,
    FLOW_ADVANCE: FlowAdvanceGraph,
    TAIL: TailGraph,
    AUDIO_DECODER: AudioDecoderGraph,
    AUDIO_ENCODER: AudioEncoderGraph,
    LANGUAGE_HEAD: LanguageHeadGraph,
}
#: Graphs that are not traced.
_COMPOSED = {TAIL: compose_tail}


def graph_sources(geometry: Geometry) -> list[GraphSource]:
    """Every graph of a bundle, in the contract's order."""
    return [
        GraphSource(
            spec,
            _MODULES[name if name in _MODULES else spec.component],
            weight_components(spec),
            _COMPOSED.get(name),
        )
        for name, spec in graph_specs(geometry).items()
    ]


#: Slots with which a graph that takes any number is traced: one would be taken for a constant.
TRACED_SLOTS = 2


def example_inputs(spec: GraphSpec, geometry: Geometry) -> list[tuple[Tensor, ...]]:
    """Points at which a graph is tried, each with inputs of the contract's shapes, seeded.

    The first is in the middle of what each input may be, with :data:`TRACED_SLOTS`. A graph with
    slots, a position, a count or a flag has a second: the first call of a request, with the least
    that it may hold, and one slot.
    """
    middle = {
        "position": geometry.prefill_chunks[0],
        "latents_before": geometry.patch,
        "valid": geometry.patch,
        "valid_frames": geometry.encoder_latents * geometry.frames_per_latent,
        "is_last": False,
    }
    first_call = {
        "position": 0,
        "latents_before": 0,
        "valid": 1,
        "valid_frames": 1,
        "is_last": True,
    }
    points = [(middle, TRACED_SLOTS)]
    if any(tensor.by_slot or tensor.name in first_call for tensor in spec.inputs):
        points.append((first_call, 1))
    return [
        _inputs(spec, geometry, point, slots, index) for index, (point, slots) in enumerate(points)
    ]


def _inputs(
    spec: GraphSpec, geometry: Geometry, point: Mapping[str, int], slots: int, index: int
) -> tuple[Tensor, ...]:
    generator = np.random.Generator(np.random.Philox(key=sum(spec.name.encode()) + index))
    inputs = []
    for tensor in (given.sized(slots) for given in spec.inputs):
        array: np.ndarray
        if tensor.name == "token_ids":
            array = generator.integers(0, geometry.vocab_size, tensor.shape, dtype=np.int64)
        elif tensor.dtype in ("int64", "bool"):
            array = np.full(tensor.shape, point[tensor.name], tensor.dtype)
            if tensor.name == "position":
                # Slots are where they are: each a little further than the last.
                array += np.arange(len(array))
        else:
            array = generator.standard_normal(tensor.shape).astype(np.float32)
            if tensor.name in ("time", "time_step", "guidance", "noise_scale", "window_overlap"):
                array = np.abs(array)
        inputs.append(torch.from_numpy(array))
    return tuple(inputs)
