"""Sizes come from the config, and what the config cannot mean is refused by its key."""

from __future__ import annotations

from typing import Any

import pytest

from export.config_section import ConfigSection
from export.sizes import read_sizes, transformer_sizes
from trt_runtime.errors import UserError


def changed(config: dict[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    """`config` with one value replaced, or removed where `value` is Ellipsis."""
    *path, key = dotted.split(".")
    section = config
    for name in path:
        section = section[name]
    if value is ...:
        del section[key]
    else:
        section[key] = value
    return config


def test_reads_every_size(config: dict[str, Any]) -> None:
    sizes = read_sizes(config)
    talker, audio = sizes.talker, sizes.audio
    assert (talker.hidden, talker.layers, talker.heads, talker.kv_heads) == (16, 2, 4, 2)
    assert (talker.head_dim, talker.intermediate, talker.vocab_size) == (4, 24, 300)
    assert (talker.rope_theta, talker.rms_eps) == (1e6, 1e-6)
    assert talker.window == (None, None)
    assert (sizes.flow.hidden, sizes.flow.depth, sizes.flow.heads) == (16, 2, 2)
    assert (sizes.flow.feed_forward, sizes.flow.head_dim) == (32, 8)
    assert sizes.aggregator.feed_forward == 48  # the ratio 4 where the config gives none
    assert (sizes.patch, sizes.history, sizes.speaker_dim) == (4, 8, 192)
    assert (audio.sample_rate, audio.hop_length, audio.n_fft) == (16000, 16, 64)
    assert (audio.frames_per_latent, audio.latent_dim, audio.encoder_hop) == (4, 6, 16)
    assert (audio.encoder.layers, audio.decoder.layers) == (5, 2)


def test_history_is_a_patch_where_the_config_gives_none(config: dict[str, Any]) -> None:
    assert read_sizes(changed(config, "ditar_config.history_patch_size", ...)).history == 4


def test_no_frames_are_gathered_with_patch_size_minus_one(config: dict[str, Any]) -> None:
    audio = read_sizes(changed(config, "audio_tokenizer_config.patch_size", -1)).audio
    assert (audio.frames_per_latent, audio.latent_aggregator) == (1, None)
    assert audio.encoder_layers_run == audio.encoder.layers


def test_head_dim_of_the_config_wins(config: dict[str, Any]) -> None:
    assert read_sizes(changed(config, "llm_config.head_dim", 10)).talker.head_dim == 10


@pytest.mark.parametrize(
    ("dotted", "value"),
    [
        ("llm_config.hidden_size", 0),
        ("llm_config.hidden_size", -16),
        ("llm_config.hidden_size", True),
        ("llm_config.hidden_size", "16"),
        ("llm_config.hidden_size", 16.5),
        ("llm_config.hidden_size", 1 << 40),
        ("llm_config.hidden_size", ...),
        ("llm_config.num_attention_heads", 6),
        ("llm_config.num_attention_heads", 16),  # heads one number wide cannot be rotated
        ("llm_config.num_key_value_heads", 3),
        ("llm_config.head_dim", 7),
        ("llm_config.num_hidden_layers", 0),
        ("llm_config.num_hidden_layers", [2]),
        ("llm_config.intermediate_size", None),
        ("llm_config.vocab_size", 0),
        ("llm_config.rms_norm_eps", 0),
        ("llm_config.rms_norm_eps", float("nan")),
        ("llm_config.rope_theta", -1.0),
        ("llm_config.rope_theta", 10**400),
        ("llm_config.rope_theta", float("inf")),
        ("llm_config.rope_theta", "1e6"),
        ("llm_config.hidden_act", "gelu"),
        ("llm_config.rope_scaling", {"type": "yarn", "factor": 4.0}),
        ("llm_config.rope_scaling", {"rope_type": "linear", "factor": 2.0}),
        ("llm_config.rope_scaling", "yarn"),
        ("llm_config.rope_parameters", {"rope_type": "yarn", "rope_theta": 1e6}),
        ("llm_config.use_sliding_window", "yes"),
        ("llm_config.layer_types", ["full_attention"]),
        ("llm_config.layer_types", ["full_attention", "chunked_attention"]),
        ("llm_config._attn_implementation", "flex_attention"),
        ("ditar_config.patch_size", 0),
        ("ditar_config.history_patch_size", -1),
        ("ditar_config.num_heads", 3),
        ("ditar_config.num_heads", 16),
        ("ditar_config.mlp_ratio", 0),
        ("ditar_config.mlp_ratio", 0.01),
        ("ditar_config.depth", 10**9),
        ("ditar_config.qk_norm", "rms_norm"),
        ("ditar_config.pe_attn_head", 1),
        ("ditar_config.attn_mask_enabled", True),
        ("aggregator_config.hidden_size", None),
        ("audio_tokenizer_config.sample_rate", 0),
        ("audio_tokenizer_config.patch_size", 0),
        ("audio_tokenizer_config.patch_size", -2),
        ("audio_tokenizer_config.enc_kwargs", None),
        ("audio_tokenizer_config.enc_kwargs.latent_dim", 7),
        ("audio_tokenizer_config.dec_kwargs.output_dim", 15),
        ("audio_tokenizer_config.dec_kwargs.backbone", [1]),
    ],
)
def test_refuses_an_impossible_value_by_its_key(
    config: dict[str, Any], dotted: str, value: Any
) -> None:
    with pytest.raises(UserError, match="Expected") as caught:
        read_sizes(changed(config, dotted, value))
    assert dotted in str(caught.value)


@pytest.mark.parametrize("value", [None, {"rope_type": "default"}, {"type": "default"}])
def test_accepts_positions_that_are_not_scaled(config: dict[str, Any], value: Any) -> None:
    read_sizes(changed(config, "llm_config.rope_scaling", value))


def test_reads_rope_theta_where_later_versions_write_it(config: dict[str, Any]) -> None:
    changed(config, "llm_config.rope_theta", ...)
    assert read_sizes(config).talker.rope_theta == 10000.0
    changed(config, "llm_config.rope_parameters", {"rope_type": "default", "rope_theta": 5e5})
    assert read_sizes(config).talker.rope_theta == 5e5


WINDOWED = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2}


@pytest.mark.parametrize(
    ("extra", "window"),
    [
        ({}, (None, None, None, None)),
        ({"sliding_window": 6}, (None, None, None, None)),
        ({"use_sliding_window": False, "sliding_window": 6}, (None, None, None, None)),
        # FlashAttention-2: W positions besides the query's own, from max_window_layers on.
        (WINDOWED, (None, None, 6, 6)),
        (WINDOWED | {"max_window_layers": 0}, (6, 6, 6, 6)),
        (WINDOWED | {"_attn_implementation": "flash_attention_2"}, (None, None, 6, 6)),
        ({"use_sliding_window": True, "max_window_layers": 0}, (4096,) * 4),
        ({"use_sliding_window": True}, (None, None, None, None)),  # from layer 28 on
        (WINDOWED | {"sliding_window": None}, (None, None, None, None)),
        # sdpa and eager: W positions, the query's own included, in every layer.
        (WINDOWED | {"_attn_implementation": "sdpa"}, (5, 5, 5, 5)),
        (WINDOWED | {"_attn_implementation": "eager"}, (5, 5, 5, 5)),
        (WINDOWED | {"_attn_implementation": "sdpa", "sliding_window": 1}, (0, 0, 0, 0)),
        # layer_types names the layers, where it is there.
        (
            WINDOWED | {"layer_types": ["sliding_attention", "full_attention"] * 2},
            (6, None, 6, None),
        ),
        (
            WINDOWED
            | {
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "_attn_implementation": "sdpa",
            },
            (5, None, 5, None),
        ),
    ],
)
def test_window_of_each_layer(extra: dict[str, Any], window: tuple[int | None, ...]) -> None:
    values = {
        "hidden_size": 8,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    assert transformer_sizes(ConfigSection(values | extra)).window == window
