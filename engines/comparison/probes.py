"""The components as functions of their inputs, at the level of what the loop asks of a backend.

Folders of different targets hold different graphs; the loop's talker, tail and decoders are what
all of them have. A probe makes its own state, so that equal inputs give equal outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from engines.comparison.inputs import GUIDANCE, NOISE_SCALE, Feed, Inputs
from engines.comparison.sides import Side
from trt_runtime.audio_decoder import AudioDecoder
from trt_runtime.audio_encoder import encode_wave
from trt_runtime.backends.interface import Talker
from trt_runtime.contract import (
    AUDIO_DECODER,
    AUDIO_ENCODER,
    FLOW_ADVANCE,
    LANGUAGE_HEAD,
    PROMPT_EMBEDDING,
    SPEAKER_PROJECTION,
    TALKER,
)
from trt_runtime.prompt_embedding import embed_tokens
from trt_runtime.tail import Tail, make_tail

Outputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Probe:
    """A component: what it is given of the walk over A, and what it gives.

    `component` is its name in manifests, `graph` what both sides must have ("" where all have it);
    `unrolled`: only where a side runs the tail as one graph.
    """

    name: str
    component: str
    inputs: tuple[str, ...]
    run: Callable[[Side, Feed], Outputs]
    graph: str = ""
    unrolled: bool = False

    def missing(self, sides: tuple[Side, Side]) -> str:
        """Why the sides cannot be compared by it; "" where they can."""
        if self.unrolled and not any(side.unrolled for side in sides):
            return "neither side runs the tail as one graph"
        without = [s.name for s in sides if self.graph and not s.backend.has(self.graph)]
        return f"{' and '.join(without)} has no graph {self.graph}" if without else ""


def walk(side: Side, inputs: Inputs) -> dict[str, np.ndarray]:
    """What every probe may be given: the inputs, and A's own values on the way through the loop.

    prompts: (slots, tokens, talker_hidden); lengths: (slots,) int64, of the prompts; cut: (calls,)
    int64, of prompts that a prefill call of each size holds; of each step and slot hidden and
    embeddings (1, talker_hidden), history (history, latent_dim), patches (patch, latent_dim).
    """
    ids = inputs.token_ids
    prompts = np.stack([embed_tokens(side.backend, side.geometry, row) for row in ids])
    lengths = np.maximum(1, ids.shape[1] - 3 * np.arange(len(ids), dtype=np.int64))
    talker = _prefilled(side, prompts, lengths)
    tail = make_tail(side.backend, side.geometry, talker.hidden, talker.embedding, len(ids))
    for slot in range(len(ids)):
        tail.start(slot, guidance=GUIDANCE, noise_scale=NOISE_SCALE)
    rows: dict[str, list[np.ndarray]] = {
        name: [] for name in ("hidden", "history", "patches", "embeddings")
    }
    for step in range(inputs.steps):
        if step:
            talker.decode(len(ids))
        rows["hidden"].append(talker.hidden.read().copy())
        rows["history"].append(tail.history.read().copy())
        tail.run(inputs.initial_noise[step], inputs.diffusion_noise[step])
        rows["patches"].append(tail.patch.read().copy())
        rows["embeddings"].append(talker.embedding.read().copy())
    return {
        "token_ids": ids,
        "speaker_embedding": inputs.speaker_embedding,
        "wave": inputs.wave,
        "initial_noise": inputs.initial_noise,
        "diffusion_noise": inputs.diffusion_noise,
        "prompts": prompts,
        "lengths": lengths,
        "cut": np.array([min(size, ids.shape[1]) for size in inputs.chunks], np.int64),
    } | {name: np.stack(values) for name, values in rows.items()}


def _prefilled(side: Side, prompts: np.ndarray, lengths: np.ndarray) -> Talker:
    talker = side.backend.talker(len(prompts))
    for slot, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        talker.prefill(prompt[: int(length)], slot)
    return talker


def _prompt_embedding(side: Side, feed: Feed) -> Outputs:
    rows = [embed_tokens(side.backend, side.geometry, row) for row in feed["token_ids"]]
    return {"embeddings": np.stack(rows)}


def _speaker_projection(side: Side, feed: Feed) -> Outputs:
    bound = side.backend.bind(SPEAKER_PROJECTION, {})
    bound.buffers["speaker_embedding"].write(feed["speaker_embedding"][None])
    bound.run()
    return {"projection": bound.buffers["projection"].read().copy()}


def _talker_prefill(side: Side, feed: Feed) -> Outputs:
    """The last hidden state of prompts that end in the middle of chunks of every size."""
    prompts, lengths = feed["prompts"], feed["lengths"]
    rows = [_prefilled(side, prompts, lengths).hidden.read().copy()]
    # A prompt of one call a chunk size: an error of a size is not hidden by the others.
    for size in feed["cut"]:
        short = np.full(len(prompts), size, np.int64)
        rows.append(_prefilled(side, prompts, short).hidden.read().copy())
    return {"hidden": np.stack(rows)}


def _talker_decode(side: Side, feed: Feed) -> Outputs:
    talker = _prefilled(side, feed["prompts"], feed["lengths"])
    rows = []
    for embeddings in feed["embeddings"]:
        talker.embedding.write(embeddings)
        talker.decode(len(embeddings))
        rows.append(talker.hidden.read().copy())
    return {"hidden": np.stack(rows)}


def _tail_steps(side: Side, feed: Feed, read: Callable[[Tail, Talker], Outputs]) -> Outputs:
    """What `read` finds after each step of the tail on A's hidden states and history."""
    steps, slots = feed["hidden"].shape[:2]
    talker = side.backend.talker(slots)
    tail = make_tail(side.backend, side.geometry, talker.hidden, talker.embedding, slots)
    rows: list[Outputs] = []
    for step in range(steps):
        talker.hidden.write(feed["hidden"][step])
        for slot in range(slots):
            tail.start(
                slot,
                guidance=GUIDANCE,
                noise_scale=NOISE_SCALE,
                history=feed["history"][step, slot],
            )
        tail.run(feed["initial_noise"][step], feed["diffusion_noise"][step])
        rows.append({name: values.copy() for name, values in read(tail, talker).items()})
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _flow(side: Side, feed: Feed) -> Outputs:
    return _tail_steps(side, feed, lambda tail, talker: {"patch": tail.patch.read()})


def _tail(side: Side, feed: Feed) -> Outputs:
    return _tail_steps(
        side,
        feed,
        lambda tail, talker: {
            "embedding": talker.embedding.read(),
            "stop_probability": tail.stop_probability.read(),
            "history": tail.history.read(),
        },
    )


def _advance(side: Side, feed: Feed, name: str) -> Outputs:
    """One tensor of `flow_advance` for A's patches, hidden states and history."""
    steps, slots = feed["hidden"].shape[:2]
    bound = side.backend.bind(FLOW_ADVANCE, {}, slots=slots)
    rows = []
    for step in range(steps):
        bound.buffers["patch"].write(feed["patches"][step])
        bound.buffers["hidden"].write(feed["hidden"][step])
        bound.buffers["history"].write(feed["history"][step])
        bound.run()
        rows.append(bound.buffers[name].read().copy())
    return {name: np.stack(rows)}


def _audio_decoder(side: Side, feed: Feed) -> Outputs:
    """Audio of each slot's patches, call by call; of odd slots the last patch is not whole.

    (slots, samples), zeros after the end of the shorter ones.
    """
    steps, slots, patch, _ = feed["patches"].shape
    waves = []
    for slot in range(slots):
        decoder = AudioDecoder(side.backend, side.geometry)
        parts = []
        for step in range(steps):
            last = step == steps - 1
            count = max(1, patch - 1) if last and slot % 2 else patch
            parts.append(decoder.decode(feed["patches"][step, slot, :count], last=last))
        waves.append(np.concatenate(parts))
    longest = max(map(len, waves))
    return {"audio": np.stack([np.pad(wave, (0, longest - len(wave))) for wave in waves])}


def _audio_encoder(side: Side, feed: Feed) -> Outputs:
    mean, std = encode_wave(side.backend, side.geometry, feed["wave"])
    return {"mean": mean, "std": std}


def _language_head(side: Side, feed: Feed) -> Outputs:
    bound = side.backend.bind(LANGUAGE_HEAD, {})
    rows = []
    for hidden in feed["hidden"][:, 0]:
        bound.buffers["hidden"].write(hidden[None])
        bound.run()
        rows.append(bound.buffers["logits"].read().copy())
    return {"logits": np.concatenate(rows)}


_PROMPT = ("prompts", "lengths")
_TAIL = ("hidden", "history", "initial_noise", "diffusion_noise")
_ADVANCE = ("patches", "hidden", "history")
_TABLE = (
    Probe("prompt_embedding", PROMPT_EMBEDDING, ("token_ids",), _prompt_embedding),
    Probe(
        "speaker_projection", SPEAKER_PROJECTION, ("speaker_embedding",), _speaker_projection,
        graph=SPEAKER_PROJECTION,
    ),
    Probe("talker_prefill", TALKER, (*_PROMPT, "cut"), _talker_prefill),
    Probe("talker_decode", TALKER, (*_PROMPT, "embeddings"), _talker_decode),
    Probe("flow", "flow", _TAIL, _flow),
    Probe(
        "aggregator", FLOW_ADVANCE, _ADVANCE, lambda s, f: _advance(s, f, "embedding"),
        graph=FLOW_ADVANCE,
    ),
    Probe(
        "stop_head", FLOW_ADVANCE, _ADVANCE, lambda s, f: _advance(s, f, "stop_probability"),
        graph=FLOW_ADVANCE,
    ),
    Probe(
        "history", FLOW_ADVANCE, _ADVANCE, lambda s, f: _advance(s, f, "history"),
        graph=FLOW_ADVANCE,
    ),
    Probe("tail", "flow", _TAIL, _tail, unrolled=True),
    Probe("audio_decoder", AUDIO_DECODER, ("patches",), _audio_decoder),
    Probe("audio_encoder", AUDIO_ENCODER, ("wave",), _audio_encoder, graph=AUDIO_ENCODER),
    Probe("language_head", LANGUAGE_HEAD, ("hidden",), _language_head, graph=LANGUAGE_HEAD),
)  # fmt: skip
PROBES: Mapping[str, Probe] = {probe.name: probe for probe in _TABLE}
