"""What was assumed of the released Ming-omni-tts dense files before they could be read.

A table of statements, each compared with the checkpoint at hand. A contradiction is information,
not failure: every size comes from the config, and what cannot be handled is an error elsewhere. But
it says by name where documents, defaults and benchmarks of this project rest on something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from export.config_section import ConfigSection
from export.safetensors_header import TensorInfo
from export.sizes import ModelSizes, TransformerSizes, attention_rule

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """What the preflight knows of a checkpoint; `sizes` is None where the config gives none."""

    config: Mapping[str, Any]
    sizes: ModelSizes | None
    tensors: Mapping[str, TensorInfo]
    token_ids: Mapping[str, int | None]


@dataclass(frozen=True)
class Assumption:
    """One statement: what was assumed of `subject`, and what the checkpoint says."""

    subject: str
    assumed: Any
    found: Any

    @property
    def verdict(self) -> str:
        if self.found == UNKNOWN:
            return f"not known: assumed {self.assumed}"
        if self.found == self.assumed:
            return "as assumed"
        return f"CONTRADICTED: assumed {self.assumed}, found {self.found}"


@dataclass(frozen=True)
class _Row:
    subject: str
    assumed: Any
    find: Callable[[Finding], Any]


def _size(get: Callable[[ModelSizes], Any]) -> Callable[[Finding], Any]:
    return lambda finding: UNKNOWN if finding.sizes is None else get(finding.sizes)


def _config(*path: str) -> Callable[[Finding], Any]:
    def find(finding: Finding) -> Any:
        value: Any = finding.config
        for key in path:
            if not isinstance(value, Mapping) or key not in value:
                return "not given"
            value = value[key]
        return value

    return find


def _stored(name: str) -> Callable[[Finding], str]:
    return lambda finding: "stored" if name in finding.tensors else "not stored"


def _dtype(name: str) -> Callable[[Finding], str]:
    return lambda finding: finding.tensors[name].dtype if name in finding.tensors else "not stored"


def _count(prefix: str) -> Callable[[Finding], int]:
    return lambda finding: sum(name.startswith(prefix) for name in finding.tensors)


def _shape(name: str) -> Callable[[Finding], Any]:
    return lambda finding: (
        list(finding.tensors[name].shape) if name in finding.tensors else "not stored"
    )


def _token(text: str) -> Callable[[Finding], Any]:
    return lambda finding: (
        UNKNOWN if text not in finding.token_ids else finding.token_ids[text] or "no such token"
    )


def _stack(sizes: TransformerSizes) -> str:
    return (
        f"{sizes.hidden} wide, {sizes.layers} layers, {sizes.heads} heads, {sizes.kv_heads} key "
        f"heads, {sizes.intermediate} intermediate"
    )


def _windows(sizes: TransformerSizes) -> str:
    """Where the layers' windows are, not how long: no length was ever reported."""
    windowed = sum(past is not None for past in sizes.window)
    if not windowed:
        return "no layer"
    return "every layer" if windowed == sizes.layers else f"{windowed} of {sizes.layers} layers"


def _rule(finding: Finding) -> str:
    section = ConfigSection(finding.config)
    for key in ("audio_tokenizer_config", "dec_kwargs", "backbone"):
        section = section.section(key)
    return attention_rule(section)


_FLOW, _AGGREGATOR = "flowloss.cfm.model.", "linear_proj_audio."
_ENCODER = "audio_tokenizer_config", "enc_kwargs"
_QWEN2_05B = "896 wide, 24 layers, 14 heads, 2 key heads, 4864 intermediate"

_ROWS: tuple[_Row, ...] = (
    _Row("latents a step", 4, _size(lambda s: s.patch)),
    _Row("latents of history", 32, _size(lambda s: s.history)),
    _Row("latent channels", 64, _size(lambda s: s.audio.latent_dim)),
    _Row("decoder frames a latent", 4, _size(lambda s: s.audio.frames_per_latent)),
    _Row("samples a decoder frame", 882, _size(lambda s: s.audio.hop_length)),
    _Row("samples an encoder frame", 882, _size(lambda s: s.audio.encoder_hop)),
    _Row("encoder hop_size", 882, _config(*_ENCODER, "hop_size")),
    _Row("sample rate", 44100, _size(lambda s: s.audio.sample_rate)),
    _Row("semantic module", None, _config("audio_tokenizer_config", "semantic_module_kwargs")),
    _Row("talker", _QWEN2_05B, _size(lambda s: _stack(s.talker))),
    _Row("talker vocabulary", 151936, _size(lambda s: s.talker.vocab_size)),
    _Row("talker rope_theta", 1e6, _size(lambda s: s.talker.rope_theta)),
    _Row("talker rms_norm_eps", 1e-6, _size(lambda s: s.talker.rms_eps)),
    _Row("talker sliding windows", "no layer", _size(lambda s: _windows(s.talker))),
    _Row("tie_word_embeddings", True, _config("llm_config", "tie_word_embeddings")),
    _Row("model.lm_head.weight", "stored", _stored("model.lm_head.weight")),
    _Row("DiT width", 1024, _size(lambda s: s.flow.hidden)),
    _Row("DiT depth", 8, _size(lambda s: s.flow.depth)),
    _Row("DiT heads", 16, _size(lambda s: s.flow.heads)),
    _Row("DiT feed-forward width", 4096, _size(lambda s: s.flow.feed_forward)),
    _Row("DiT tensors", 124, _count(_FLOW)),
    _Row("DiT inv_freq", "stored", _stored(f"{_FLOW}rotary_embed.inv_freq")),
    _Row("dtype of DiT inv_freq", "float32", _dtype(f"{_FLOW}rotary_embed.inv_freq")),
    _Row("aggregator width", 1024, _size(lambda s: s.aggregator.hidden)),
    _Row("aggregator depth", 8, _size(lambda s: s.aggregator.depth)),
    _Row("aggregator heads", 16, _size(lambda s: s.aggregator.heads)),
    _Row("aggregator inv_freq", "stored", _stored(f"{_AGGREGATOR}rotary_embed.inv_freq")),
    _Row("audio decoder", _QWEN2_05B, _size(lambda s: _stack(s.audio.decoder))),
    _Row("audio encoder", _QWEN2_05B, _size(lambda s: _stack(s.audio.encoder))),
    _Row("audio decoder vocab_size", 1, _size(lambda s: s.audio.decoder.vocab_size)),
    _Row(
        "audio decoder sliding windows", "every layer", _size(lambda s: _windows(s.audio.decoder))
    ),
    _Row("audio decoder attention rule", "flash_attention_2", _rule),
    _Row("ISTFT window", "stored", _stored("audio.decoder.head.istft.window")),
    _Row("dtype of the ISTFT window", "float32", _dtype("audio.decoder.head.istft.window")),
    _Row("dtype of the weights", "bfloat16", _dtype("model.model.norm.weight")),
    _Row("speaker projection", [896, 192], _shape("spk_head.weight")),
    *(
        _Row(f"id of {text}", token_id, _token(text))
        for text, token_id in (
            ("<|endoftext|>", 151643),
            ("<|im_start|>", 151644),
            ("<|im_end|>", 151645),
            ("<|vision_start|>", 151652),
            ("<text_eos>", 151669),
            ("<end_of_audio>", 151704),
            ("<audioPatch>", 151705),
            ("<audio>", 151706),
            ("</audio>", 151707),
        )
    ),
)

#: Tokens whose ids the table speaks of.
TOKENS = tuple(row.subject.removeprefix("id of ") for row in _ROWS if row.subject.startswith("id "))


def compare_assumptions(finding: Finding) -> tuple[Assumption, ...]:
    """Every row of the table next to what the checkpoint says."""
    return tuple(Assumption(row.subject, row.assumed, _found(row, finding)) for row in _ROWS)


def _found(row: _Row, finding: Finding) -> Any:
    try:
        return row.find(finding)
    except ValueError:  # a UserError too: the config is damaged there, which is reported elsewhere
        return UNKNOWN
