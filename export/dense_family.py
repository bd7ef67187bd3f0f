"""The tables of Ming-omni-tts dense: which tensor becomes which parameter, which are not read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from export.parameters import (
    Parameter,
    UnusedTensor,
    copied,
    flow_blocks,
    flow_final,
    linear,
    qwen2_stack,
)
from export.sizes import TIME_FEATURES, AudioSizes, ModelSizes, TransformerSizes

#: Layers that the reference runs of the audio encoder and of its aggregator, whatever the config
#: says: building the aggregator overwrites the layer count on the config that both share.
ENCODER_LAYERS_RUN = 4

_FLOW, _AGGREGATOR = "flowloss.cfm.model.", "linear_proj_audio."
_DECODER, _ENCODER = "audio.decoder.", "audio.encoder."

_LATER = "encodes reference waves; exported when cloned voices are (not in this version)"
_NO_TOKENS = "waves and latents are fed as embeddings"
_NO_SAMPLING = "the loop reads hidden states, no token is sampled"
_NO_NORM = "stored, but the reference's encoder does not apply it"
_NOT_RUN = f"the reference runs only the encoder's first {ENCODER_LAYERS_RUN} layers"


def dense_components(sizes: ModelSizes) -> tuple[Parameter, ...]:
    """Every parameter of the dense family, in the order in which components are written."""
    return (
        *_embeddings(sizes),
        *qwen2_stack("talker", "talker", "model.model.", sizes.talker),
        *_flow(sizes),
        *_advance(sizes),
        *_audio_decoder(sizes.audio),
    )


def dense_unused(sizes: ModelSizes) -> tuple[UnusedTensor, ...]:
    """Every tensor of the released layout that this version does not read."""
    talker = sizes.talker
    return (
        UnusedTensor("model.lm_head.weight", (talker.vocab_size, talker.hidden), _NO_SAMPLING),
        _token_table(f"{_DECODER}decoder.", sizes.audio.decoder),
        *_encoder(sizes.audio),
    )


def _embeddings(sizes: ModelSizes) -> Iterator[Parameter]:
    talker = sizes.talker
    yield copied(
        "prompt_embedding",
        "prompt_embedding.table",
        "model.model.embed_tokens.weight",
        (talker.vocab_size, talker.hidden),
    )
    yield from linear(
        "speaker_projection",
        "speaker_projection.",
        "spk_head",
        sizes.speaker_dim,
        talker.hidden,
    )


def _flow(sizes: ModelSizes) -> Iterator[Parameter]:
    flow, latent, hidden = sizes.flow, sizes.audio.latent_dim, sizes.flow.hidden
    time = f"{_FLOW}t_embedder.time_mlp."
    condition = f"{_FLOW}c_embedder.cond_embedder"
    yield from linear("flow", "flow.time_in_", f"{time}0", TIME_FEATURES, hidden)
    yield from linear("flow", "flow.time_out_", f"{time}2", hidden, hidden)
    yield from linear("flow", "flow.latent_", f"{_FLOW}x_embedder", latent, hidden)
    yield from linear("flow", "flow.condition_", condition, sizes.talker.hidden, hidden)
    yield from flow_blocks("flow", "flow", _FLOW, flow)
    yield from flow_final("flow", "flow", _FLOW, hidden, latent)


def _advance(sizes: ModelSizes) -> Iterator[Parameter]:
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


def _audio_decoder(audio: AudioSizes) -> Iterator[Parameter]:
    component, hidden = "audio_decoder", audio.decoder.hidden
    yield from linear(
        component, "audio_decoder.latent_", f"{_DECODER}fc1", audio.latent_dim, hidden
    )
    yield from qwen2_stack(component, "audio_decoder", f"{_DECODER}decoder.", audio.decoder)
    yield from linear(
        component, "audio_decoder.head_", f"{_DECODER}head.out", hidden, audio.n_fft + 2
    )
    yield copied(component, "audio_decoder.window", f"{_DECODER}head.istft.window", (audio.n_fft,))


def _token_table(prefix: str, sizes: TransformerSizes) -> UnusedTensor:
    shape = (sizes.vocab_size, sizes.hidden)
    return UnusedTensor(f"{prefix}embed_tokens.weight", shape, _NO_TOKENS)


def _encoder(audio: AudioSizes) -> Iterator[UnusedTensor]:
    sizes, hidden = audio.encoder, audio.encoder.hidden
    shapes = {
        "fc1.weight": (hidden, audio.encoder_input),
        "fc2.weight": (hidden, hidden),
        "fc2.bias": (hidden,),
        "fc3.weight": (2 * audio.latent_dim, hidden),
        "fc3.bias": (2 * audio.latent_dim,),
    }
    if audio.latent_aggregator:
        shapes["cls_embed"] = (1, 1, hidden)
    for name, shape in shapes.items():
        yield UnusedTensor(_ENCODER + name, shape, _LATER)
    for name in ("norm.weight", "norm.bias"):
        yield UnusedTensor(_ENCODER + name, (hidden,), _NO_NORM)
    run = ENCODER_LAYERS_RUN if audio.latent_aggregator else sizes.layers
    yield from _encoder_stack(f"{_ENCODER}encoder.", sizes, sizes.layers, run)
    if audio.latent_aggregator:
        yield from _encoder_stack(f"{_ENCODER}aggregator.", sizes, ENCODER_LAYERS_RUN, run)


def _encoder_stack(
    prefix: str, sizes: TransformerSizes, layers: int, run: int
) -> Iterator[UnusedTensor]:
    yield _token_table(prefix, sizes)
    # The same rows as a stack that is read, so that both always name the same tensors.
    deep = replace(sizes, layers=layers)
    for parameter in qwen2_stack("audio_encoder", "", prefix, deep):
        for name, shape in zip(parameter.sources, parameter.source_shapes, strict=True):
            parts = name.removeprefix(prefix).split(".")
            beyond = parts[0] == "layers" and int(parts[1]) >= run
            yield UnusedTensor(name, shape, _NOT_RUN if beyond else _LATER)
