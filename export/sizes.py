"""The sizes of a model, read from its config.json. No size comes from code.

A missing key has the default of Qwen2Config in transformers 4.52.4, with which the reference reads
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export.config_section import ConfigSection
from trt_runtime.contract import SPEAKER_DIM

# Part of what a manifest carries, and of what this module reads.
from trt_runtime.transformer_sizes import ExpertSizes as ExpertSizes
from trt_runtime.transformer_sizes import TransformerSizes as TransformerSizes

#: Width of the flow's sinusoidal time embedding. Fixed by the architecture; no config says it.
TIME_FEATURES = 256

#: Layers that the reference runs of the audio encoder, at most, and that its aggregator has,
#: whatever the config says: building the aggregator overwrites the layer count on the config object
#: that both share.
ENCODER_LAYERS_RUN = 4

LARGEST_WIDTH = 1 << 18
MOST_LAYERS = 1024
LARGEST_VOCABULARY = 1 << 24
_LONGEST_WINDOW = 1 << 31


@dataclass(frozen=True)
class FlowTransformerSizes:
    """A bidirectional transformer of the flow: the DiT or the aggregator."""

    hidden: int
    depth: int
    heads: int
    feed_forward: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True)
class AudioSizes:
    """The audio tokenizer: `hop_length` samples a frame, `frames_per_latent` frames a latent.

    `encoder` is the encoder's stack of frames as stored, `encoder_hop` the samples of its frames.
    `latent_aggregator` is its stack that gathers frames to latents (patch_size -1 has none), and
    `encoder_layers_run` says how many layers of `encoder` the reference runs.
    """

    sample_rate: int
    hop_length: int
    n_fft: int
    frames_per_latent: int
    latent_dim: int
    encoder: TransformerSizes
    decoder: TransformerSizes
    encoder_hop: int
    encoder_layers_run: int
    latent_aggregator: TransformerSizes | None


@dataclass(frozen=True)
class ModelSizes:
    """All sizes of a model: `patch` latents a step, `history` latents of context.

    `tied_embeddings` says whether the language-model head is the table of token embeddings.
    """

    talker: TransformerSizes
    flow: FlowTransformerSizes
    aggregator: FlowTransformerSizes
    audio: AudioSizes
    patch: int
    history: int
    tied_embeddings: bool
    speaker_dim: int = SPEAKER_DIM


def read_sizes(config: Mapping[str, Any]) -> ModelSizes:
    """The sizes of a Ming-omni-tts config (sections llm_config, audio_tokenizer_config, ...).

    Raises UserError naming the key where a value is missing, impossible or asks for arithmetic that
    this project does not implement.
    """
    talker = ConfigSection(config).section("llm_config")
    tied = talker.flag("tie_word_embeddings", default=False)
    return sizes_around(config, transformer_sizes(talker), tied_embeddings=tied)


def sizes_around(
    config: Mapping[str, Any], talker: TransformerSizes, *, tied_embeddings: bool
) -> ModelSizes:
    """The sizes of a config whose talker has those given: what every family has alike."""
    root = ConfigSection(config)
    flow_section = root.section("ditar_config")
    patch = flow_section.integer("patch_size", most=1024)
    return ModelSizes(
        talker=talker,
        flow=flow_sizes(flow_section),
        aggregator=flow_sizes(root.section("aggregator_config")),
        audio=audio_sizes(root.section("audio_tokenizer_config")),
        patch=patch,
        history=flow_section.integer("history_patch_size", most=1 << 16, default=patch),
        tied_embeddings=tied_embeddings,
    )


def transformer_sizes(section: ConfigSection, *, run: int | None = None) -> TransformerSizes:
    """The sizes of a Qwen2 config section; with `run`, of a stack of so many layers."""
    section.require("hidden_act", (None, "silu"), "silu")
    hidden = section.integer("hidden_size", most=LARGEST_WIDTH)
    heads, kv_heads, head_dim = head_sizes(section, hidden)
    layers = run or section.integer("num_hidden_layers", most=MOST_LAYERS)
    return TransformerSizes(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=section.integer("intermediate_size", most=8 * LARGEST_WIDTH),
        rope_theta=_rope_theta(section),
        rms_eps=section.number("rms_norm_eps", above=0, most=1.0, default=1e-6),
        vocab_size=section.integer("vocab_size", most=LARGEST_VOCABULARY, default=151936),
        window=_windows(section, layers, every=run is None),
    )


def head_sizes(section: ConfigSection, hidden: int) -> tuple[int, int, int]:
    """Heads of queries, heads of keys and values, and the width of each."""
    heads = section.integer("num_attention_heads", most=4096)
    kv_heads = section.integer("num_key_value_heads", most=4096, default=heads)
    if heads % kv_heads:
        raise section.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    if section.values.get("head_dim") is None:
        if hidden % heads:
            raise section.error("num_attention_heads", f"a divisor of hidden_size ({hidden})")
        head_dim = hidden // heads
    else:
        head_dim = section.integer("head_dim", most=8192)
    if head_dim % 2:
        key = "num_attention_heads" if section.values.get("head_dim") is None else "head_dim"
        raise section.error(key, f"an even width of a head for rotary positions, not {head_dim}")
    return heads, kv_heads, head_dim


def _rope_theta(section: ConfigSection) -> float:
    """The base of the rotary angles; scaled positions are refused by name.

    Later versions of transformers write rope_parameters where 4.52.4 wrote rope_theta and
    rope_scaling.
    """
    where = section
    for key in ("rope_scaling", "rope_parameters"):
        scaling = section.values.get(key)
        if scaling is None:
            continue
        if not isinstance(scaling, dict):
            raise section.error(key, "null or a JSON object")
        if scaling.get("rope_type", scaling.get("type")) not in (None, "default"):
            raise section.error(key, "null or the type default (scaled positions differ)")
        if scaling.get("rope_theta") is not None and section.values.get("rope_theta") is None:
            where = section.section(key)
    return where.number("rope_theta", above=0, most=1e12, default=10000.0)


def attention_rule(section: ConfigSection) -> str:
    """The attention implementation whose window rule the config asks for."""
    rule = section.values.get("_attn_implementation")
    if rule is None:
        return "flash_attention_2"
    if rule not in ("sdpa", "eager", "flash_attention_2"):
        raise section.error("_attn_implementation", "sdpa, eager or flash_attention_2")
    return str(rule)


def _windows(section: ConfigSection, layers: int, *, every: bool) -> tuple[int | None, ...]:
    """Past positions that each layer sees, by the rules of transformers 4.52.4.

    `every`: the section's `layer_types` must name each of the layers, and not others besides.

    FlashAttention-2 counts `sliding_window` positions besides the query's own and begins at layer
    max_window_layers; sdpa and eager count the query's own and window every layer. `layer_types`,
    which later versions write, names the layers instead.
    """
    counts_itself = attention_rule(section) != "flash_attention_2"
    listed = section.values.get("layer_types")
    if listed is not None and (
        not isinstance(listed, list)
        or (len(listed) != layers if every else len(listed) < layers)
        or not all(kind in ("sliding_attention", "full_attention") for kind in listed)
    ):
        raise section.error(
            "layer_types", f"sliding_attention or full_attention for each of {layers} layers"
        )
    if not section.flag("use_sliding_window", default=False):
        return (None,) * layers
    if "sliding_window" in section.values and section.values["sliding_window"] is None:
        return (None,) * layers
    width = section.integer("sliding_window", most=_LONGEST_WINDOW, default=4096)
    past = width - 1 if counts_itself else width
    if listed is not None:
        return tuple(past if kind == "sliding_attention" else None for kind in listed[:layers])
    first = section.integer("max_window_layers", least=0, most=1 << 20, default=28)
    return tuple(past if counts_itself or layer >= first else None for layer in range(layers))


def flow_sizes(section: ConfigSection) -> FlowTransformerSizes:
    """The sizes of ditar_config or aggregator_config."""
    section.require("qk_norm", (None, False), "null (normalised queries are not implemented)")
    section.require(
        "pe_attn_head", (None,), "null (positions in some heads only are not implemented)"
    )
    section.require("attn_mask_enabled", (None, False), "false (masks are not implemented)")
    hidden = section.integer("hidden_size", most=LARGEST_WIDTH)
    heads = section.integer("num_heads", most=4096)
    if hidden % heads or (hidden // heads) % 2:
        raise section.error("num_heads", f"a divisor of hidden_size ({hidden}) with even quotient")
    ratio = section.number("mlp_ratio", above=0, most=64, default=4.0)
    feed_forward = int(hidden * ratio)
    if feed_forward < 1:
        raise section.error("mlp_ratio", f"a ratio of hidden_size ({hidden}) that gives a width")
    return FlowTransformerSizes(
        hidden=hidden,
        depth=section.integer("depth", most=MOST_LAYERS),
        heads=heads,
        feed_forward=feed_forward,
    )


def audio_sizes(section: ConfigSection) -> AudioSizes:
    """The sizes of audio_tokenizer_config."""
    encoder, decoder = section.section("enc_kwargs"), section.section("dec_kwargs")
    hop = decoder.integer("output_dim", most=1 << 16, least=2)
    if hop % 2:
        # The "same" padding trims 1.5 hops; an odd hop makes the reference emit a sample too many.
        raise decoder.error("output_dim", "an even number of samples")
    frames = section.integer("patch_size", most=1024, least=-1)
    if frames == 0:
        raise section.error("patch_size", "a whole number from 1 to 1024, or -1 for none")
    samples = encoder.integer("input_dim", most=1 << 16)
    # The encoder cuts the wave into pieces of hop_size and multiplies each by input_dim weights.
    if encoder.integer("hop_size", most=1 << 16, default=samples) != samples:
        raise encoder.error("hop_size", f"{encoder.dotted('input_dim')} ({samples})")
    backbone = encoder.section("backbone")
    frame_stack = transformer_sizes(backbone)
    latent_dim = decoder.integer("latent_dim", most=LARGEST_WIDTH)
    if encoder.integer("latent_dim", most=LARGEST_WIDTH) != latent_dim:
        raise encoder.error("latent_dim", f"{decoder.dotted('latent_dim')} ({latent_dim})")
    return AudioSizes(
        sample_rate=section.integer("sample_rate", most=1 << 20),
        hop_length=hop,
        n_fft=4 * hop,
        frames_per_latent=max(frames, 1),
        latent_dim=latent_dim,
        encoder=frame_stack,
        decoder=transformer_sizes(decoder.section("backbone")),
        encoder_hop=samples,
        encoder_layers_run=frame_stack.layers
        if frames == -1
        else min(frame_stack.layers, ENCODER_LAYERS_RUN),
        latent_aggregator=None
        if frames == -1
        else transformer_sizes(backbone, run=ENCODER_LAYERS_RUN),
    )
