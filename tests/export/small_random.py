"""The config of a tiny random Ming-omni-tts: noise with the level and length of speech."""

from __future__ import annotations

from typing import Any

SEED = 1895
#: Chosen so that a short text stops after a few seconds.
STOP_BIAS = 0.0


def backbone(hidden: int, layers: int, intermediate: int) -> dict[str, Any]:
    """A Qwen2 config of one half of the audio tokenizer."""
    return {
        "model_type": "qwen2",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": intermediate,
        "vocab_size": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "use_sliding_window": False,
    }


CONFIG: dict[str, Any] = {
    "architectures": ["BailingMMNativeForConditionalGeneration"],
    "model_type": "dense",
    "ming_trt_note": "random weights: this is noise, not words",
    "torch_dtype": "bfloat16",
    "llm_config": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 320,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
    },
    "audio_tokenizer_config": {
        "sample_rate": 44100,
        "patch_size": 4,
        "semantic_module_kwargs": None,
        "enc_kwargs": {
            "input_dim": 882,
            "hop_size": 882,
            "latent_dim": 16,
            "backbone": backbone(32, 2, 64),
        },
        "dec_kwargs": {"output_dim": 882, "latent_dim": 16, "backbone": backbone(64, 2, 128)},
    },
    "ditar_config": {
        "hidden_size": 64,
        "depth": 2,
        "num_heads": 4,
        "mlp_ratio": 4.0,
        "patch_size": 4,
        "history_patch_size": 32,
    },
    "aggregator_config": {"hidden_size": 64, "depth": 2, "num_heads": 4, "mlp_ratio": 4.0},
}
