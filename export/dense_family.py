"""The tables of Ming-omni-tts dense: which tensor becomes which parameter, which are not read."""

from __future__ import annotations

from collections.abc import Iterator

from export.audio_tokenizer import audio_components, audio_unused
from export.parameters import (
    Parameter,
    UnusedTensor,
    copied,
    flow_blocks,
    flow_final,
    linear,
    qwen2_stack,
)
from export.sizes import TIME_FEATURES, ModelSizes

_FLOW, _AGGREGATOR = "flowloss.cfm.model.", "linear_proj_audio."
HEAD = "model.lm_head.weight"

_TIED = "the head is the table of embeddings (tie_word_embeddings)"


def dense_components(sizes: ModelSizes) -> tuple[Parameter, ...]:
    """Every parameter of the dense family, in the order in which components are written."""
    return (
        *_embeddings(sizes),
        *qwen2_stack("talker", "talker", "model.model.", sizes.talker),
        *_language_head(sizes),
        *flow(sizes),
        *advance(sizes),
        *audio_components(sizes.audio),
    )


def dense_unused(sizes: ModelSizes) -> tuple[UnusedTensor, ...]:
    """Every tensor of the released layout that nothing reads."""
    talker = sizes.talker
    tied = (UnusedTensor(HEAD, (talker.vocab_size, talker.hidden), _TIED),)
    return (*(tied if sizes.tied_embeddings else ()), *audio_unused(sizes.audio))


def _embeddings(sizes: ModelSizes) -> Iterator[Parameter]:
    talker = sizes.talker
    yield copied(
        "prompt_embedding",
        "prompt_embedding.table",
        "model.model.embed_tokens.weight",
        (talker.vocab_size, talker.hidden),
    )
    yield from speaker_projection(sizes)


def speaker_projection(sizes: ModelSizes) -> Iterator[Parameter]:
    yield from linear(
        "speaker_projection",
        "speaker_projection.",
        "spk_head",
        sizes.speaker_dim,
        sizes.talker.hidden,
    )


def flow(sizes: ModelSizes) -> Iterator[Parameter]:
    latent, hidden = sizes.audio.latent_dim, sizes.flow.hidden
    time = f"{_FLOW}t_embedder.time_mlp."
    condition = f"{_FLOW}c_embedder.cond_embedder"
    yield from linear("flow", "flow.time_in_", f"{time}0", TIME_FEATURES, hidden)
    yield from linear("flow", "flow.time_out_", f"{time}2", hidden, hidden)
    yield from linear("flow", "flow.latent_", f"{_FLOW}x_embedder", latent, hidden)
    yield from linear("flow", "flow.condition_", condition, sizes.talker.hidden, hidden)
    yield from flow_blocks("flow", "flow", _FLOW, sizes.flow)
    yield from flow_final("flow", "flow", _FLOW, hidden, latent)


def advance(sizes: ModelSizes) -> Iterator[Parameter]:
    aggregator, component = sizes.aggregator, "flow_advance"
    yield copied(
        component,
        "aggregator.class_token",
        f"{_AGGREGATOR}word_embedder.weight",
        (1, aggregator.hidden),
    )
    yield from linear(
        component,
        "aggregator.latent_",
        f"{_AGGREGATOR}x_embedder",
        sizes.audio.latent_dim,
        aggregator.hidden,
    )
    yield from flow_blocks(component, "aggregator", _AGGREGATOR, aggregator)
    yield from flow_final(
        component, "aggregator", _AGGREGATOR, aggregator.hidden, sizes.talker.hidden
    )
    yield from linear(component, "stop_head.", "stop_head", sizes.talker.hidden, 2)


def _language_head(sizes: ModelSizes) -> Iterator[Parameter]:
    """Nothing where it is tied: its graph then uses the table of embeddings."""
    if not sizes.tied_embeddings:
        talker = sizes.talker
        shape = (talker.vocab_size, talker.hidden)
        yield copied("language_head", "language_head.table", HEAD, shape)
