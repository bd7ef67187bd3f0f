"""The sizes of a Ming-omni-tts whose talker is a Bailing mixture of experts.

Features of that architecture that the family's reference does not run (dense first layers, grouped
or biased routing, normalised queries) are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from export.config_section import ConfigSection
from export.sizes import (
    LARGEST_VOCABULARY,
    LARGEST_WIDTH,
    MOST_LAYERS,
    ExpertSizes,
    ModelSizes,
    TransformerSizes,
    head_sizes,
    sizes_around,
)

_MOST = 4096

#: Keys that change the arithmetic, with the values under which they do not.
_REFUSED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("hidden_act", (None, "silu"), "silu"),
    ("first_k_dense_replace", (None, 0), "0 (layers without experts are not implemented)"),
    ("use_bias", (None, False), "false (biases are not implemented)"),
    ("use_qkv_bias", (None, False), "false (biases are not implemented)"),
    ("use_qk_norm", (None, False), "false (normalised queries are not implemented)"),
    ("qk_norm", (None, False), "false (normalised queries are not implemented)"),
    ("use_sliding_window", (None, False), "false (windows are not implemented)"),
    ("n_group", (None, 0, 1), "null (groups of experts are not implemented)"),
    ("topk_group", (None, 0, 1), "null (groups of experts are not implemented)"),
    ("score_function", (None, "softmax"), "softmax"),
    ("routed_scaling_factor", (None, 1, 1.0), "1"),
    ("moe_router_enable_expert_bias", (None, False), "false (biased routing is not implemented)"),
    ("partial_rotary_factor", (None, 1, 1.0), "1 (rotary positions of half a head)"),
)


def read_moe_sizes(config: Mapping[str, Any]) -> ModelSizes:
    """As `sizes.read_sizes`, for the mixture of experts."""
    talker = _talker(ConfigSection(config).section("llm_config"))
    # Speech reads hidden states alone: the head, tied or not, stays in the checkpoint.
    return sizes_around(config, talker, tied_embeddings=True)


def _talker(section: ConfigSection) -> TransformerSizes:
    for key, allowed, expected in _REFUSED:
        section.require(key, allowed, expected)
    hidden = section.integer("hidden_size", most=LARGEST_WIDTH)
    heads, kv_heads, head_dim = head_sizes(section, hidden)
    count = section.integer("num_experts", most=_MOST)
    chosen = section.integer("num_experts_per_tok", most=_MOST)
    if chosen > count:
        raise section.error("num_experts_per_tok", f"at most num_experts ({count})")
    width = section.integer("moe_intermediate_size", most=8 * LARGEST_WIDTH)
    layers = section.integer("num_hidden_layers", most=MOST_LAYERS)
    return TransformerSizes(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=width * section.integer("num_shared_experts", most=_MOST),
        rope_theta=_rope_theta(section, head_dim),
        rms_eps=section.number("rms_norm_eps", above=0, most=1.0, default=1e-5),
        vocab_size=section.integer("vocab_size", most=LARGEST_VOCABULARY),
        window=(None,) * layers,
        qkv_bias=False,
        experts=ExpertSizes(count, chosen, width, section.flag("norm_topk_prob", default=True)),
    )


def _rope_theta(section: ConfigSection, head_dim: int) -> float:
    """The base of the rotary angles.

    Positions of three dimensions (time, height, width) are one and the same in speech, so that
    sections of a head give what a whole head gives.
    """
    scaling = section.values.get("rope_scaling")
    if scaling is not None:
        inner = section.section("rope_scaling")
        inner.require("factor", (None, 1, 1.0), "null (scaled positions are not implemented)")
        kind = "type" if "type" in inner.values else "rope_type"
        inner.require(kind, (None, "default", "3D", "mrope"), "3D, default or null")
        sections = inner.values.get("mrope_section")
        if sections is not None and (
            not isinstance(sections, list)
            or not all(type(size) is int and size >= 0 for size in sections)
            or sum(sections) != head_dim // 2
        ):
            raise inner.error("mrope_section", f"sizes that sum to {head_dim // 2}")
    return section.number("rope_theta", above=0, most=1e12, default=10000.0)
