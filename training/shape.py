"""The sizes of the demonstration voice: the config.json that it is trained and stored with."""

from __future__ import annotations

from typing import Any

from export.families import family_of
from export.geometry import ExportOptions, geometry_of
from export.sizes import ModelSizes
from trt_runtime.geometry import Geometry

NOTE = (
    "the embedded default is a demonstration voice of 7.3 million parameters, trained on flite's "
    "synthetic speech: it is not Ming's weights and does not show their quality"
)
#: Utterances of at most some 14 s are trained on. What is exported may be longer.
TRAINING_OPTIONS: dict[str, Any] = {
    "cache_length": 512,
    "max_steps": 200,
    "prefill_chunks": (16, 64),
}


def _backbone(hidden: int, layers: int, intermediate: int, window: int) -> dict[str, Any]:
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
        "use_sliding_window": True,
        "sliding_window": window,
        "max_window_layers": 0,
    }


def config(patch: int, history: int, latent_dim: int = 24) -> dict[str, Any]:
    """config.json of a voice that makes `patch` latents a step and looks back on `history`."""
    return {
        "architectures": ["BailingMMNativeForConditionalGeneration"],
        "model_type": "dense",
        "ming_trt_note": NOTE,
        "torch_dtype": "bfloat16",
        "llm_config": {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": 256,
            "num_hidden_layers": 5,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 320,
            "vocab_size": 320,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-06,
            "rope_theta": 10000.0,
            "max_position_embeddings": 32768,
            "use_sliding_window": False,
            "tie_word_embeddings": True,
        },
        "audio_tokenizer_config": {
            "sample_rate": 16000,
            "patch_size": 4,
            "semantic_module_kwargs": None,
            "enc_kwargs": {
                "input_dim": 320,
                "hop_size": 320,
                "latent_dim": latent_dim,
                "backbone": _backbone(128, 2, 256, 32),
            },
            "dec_kwargs": {
                "output_dim": 320,
                "latent_dim": latent_dim,
                "backbone": _backbone(256, 4, 512, 32),
            },
        },
        "ditar_config": {
            "hidden_size": 192,
            "depth": 3,
            "num_heads": 4,
            "mlp_ratio": 2.0,
            "patch_size": patch,
            "history_patch_size": history,
        },
        "aggregator_config": {"hidden_size": 128, "depth": 2, "num_heads": 4, "mlp_ratio": 2.0},
    }


def sizes_of(patch: int, history: int) -> tuple[ModelSizes, Geometry]:
    """The sizes of :func:`config`, and a geometry of them with :data:`TRAINING_OPTIONS`."""
    chosen = config(patch, history)
    sizes = family_of(chosen).sizes(chosen)
    return sizes, geometry_of(sizes, ExportOptions(**TRAINING_OPTIONS))
