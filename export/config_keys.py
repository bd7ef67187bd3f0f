"""Keys of a config.json that we know: those that are read, and those that cannot change a sample.

A key outside these tables is not an error, but the preflight names it: it may ask for arithmetic
that this project does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Known keys of a JSON object; each value is the same for a nested object, None for anything else.
KnownKeys = Mapping[str, Any]

#: Our own key: a line that everything spoken with this checkpoint carries as a warning.
NOTE = "ming_trt_note"


def _leaves(*names: str) -> dict[str, Any]:
    return {name: None for text in names for name in text.split()}


#: What transformers writes into any config: training, generation and bookkeeping.
_BOOKKEEPING = _leaves(
    "_name_or_path architectures auto_map dtype torch_dtype transformers_version model_type",
    "initializer_range use_cache pad_token_id bos_token_id eos_token_id attention_dropout",
    "embedding_dropout output_dropout _attn_implementation_autoset return_dict output_attentions",
    "output_hidden_states tie_word_embeddings torchscript use_bfloat16 gradient_checkpointing",
)

#: Read by sizes.transformer_sizes. max_position_embeddings bounds nothing: positions are computed.
_QWEN2 = _BOOKKEEPING | _leaves(
    "hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim",
    "intermediate_size vocab_size hidden_act rms_norm_eps rope_theta rope_scaling",
    "rope_parameters",
    "max_position_embeddings use_sliding_window sliding_window max_window_layers layer_types",
    "_attn_implementation",
)

_FLOW_TRANSFORMER = _leaves(
    "hidden_size depth num_heads mlp_ratio dropout qk_norm pe_attn_head attn_mask_enabled",
)

MING_OMNI_TTS: KnownKeys = _BOOKKEEPING | {
    NOTE: None,
    "llm_config": _QWEN2,
    "audio_tokenizer_config": _BOOKKEEPING
    | _leaves("sample_rate patch_size init_method semantic_module_kwargs lambda_semantic")
    | {
        "enc_kwargs": _leaves("input_dim hop_size latent_dim") | {"backbone": _QWEN2},
        "dec_kwargs": _leaves("output_dim latent_dim") | {"backbone": _QWEN2},
    },
    "ditar_config": _FLOW_TRANSFORMER
    | _leaves("patch_size history_patch_size cfg_dropout_prob in_channels"),
    "aggregator_config": _FLOW_TRANSFORMER | _leaves("in_channels"),
}

#: Read by moe_sizes. Image and video tokens, and what only training or other inputs use, are not.
_BAILING_MOE = _BOOKKEEPING | _leaves(
    "hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim",
    "intermediate_size moe_intermediate_size vocab_size hidden_act rms_norm_eps rope_theta",
    "rope_scaling max_position_embeddings num_experts num_experts_per_tok num_shared_experts",
    "norm_topk_prob use_grouped_gemm first_k_dense_replace use_bias use_qkv_bias",
    "use_sliding_window sliding_window",
    "max_window_layers multi_gate norm_head norm_softmax output_router_logits",
    "image_patch_token image_start_token image_end_token video_patch_token video_start_token",
    "video_end_token audio_patch_token audio_start_token audio_end_token use_qk_norm qk_norm",
    "n_group topk_group score_function routed_scaling_factor moe_router_enable_expert_bias",
    "partial_rotary_factor spatial_merge_size tokens_per_second",
)

MING_OMNI_TTS_MOE: KnownKeys = {**MING_OMNI_TTS, "llm_config": _BAILING_MOE}
