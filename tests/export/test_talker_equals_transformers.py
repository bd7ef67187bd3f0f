"""The exported talker against transformers' own Qwen2, on random weights of several sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2Model

from export.config_section import ConfigSection
from export.modules.talker import Talker
from export.parameters import qwen2_stack
from export.sizes import TransformerSizes, transformer_sizes
from tests.goldens import assert_close

SIZES: dict[str, dict[str, Any]] = {
    "one head a group": {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4},
    "groups of two": {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4},
    "one key head": {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 1},
    "groups of seven, as released": {
        "hidden_size": 112,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "rope_theta": 1000000.0,
    },
    "sliding window in later layers": {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "use_sliding_window": True,
        "sliding_window": 7,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "_attn_implementation": "sdpa",
    },
}


def models(name: str) -> tuple[Qwen2Model, Talker, TransformerSizes]:
    values = SIZES[name] | {
        "num_hidden_layers": 3,
        "intermediate_size": 80,
        "vocab_size": 50,
        "rms_norm_eps": 1e-6,
    }
    config = Qwen2Config(**{k: v for k, v in values.items() if not k.startswith("_")})
    config._attn_implementation = "sdpa"
    generator = torch.Generator().manual_seed(len(name))
    reference = Qwen2Model(config).eval()
    for key, parameter in reference.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        # Norms near 1, everything else large enough that attention is far from uniform.
        parameter.data = 1 + 0.1 * noise if "norm" in key else 0.3 * noise
    sizes = transformer_sizes(ConfigSection(values))
    ours = Talker(sizes, 64).eval()
    named = dict(reference.named_parameters())
    own = dict(ours.named_parameters())
    for row in qwen2_stack("talker", "talker", "", sizes):
        parts = [named[source] for source in row.sources]
        parts = [part.T if part.ndim == 2 else part for part in parts]
        own[row.name.removeprefix("talker.")].data.copy_(torch.cat(parts, -1))
    return reference, ours, sizes


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("pieces", [[40], [16, 16, 8], [1] * 12])
@torch.no_grad()
def test_hidden_states(name: str, pieces: list[int]) -> None:
    """Prefill whole, in chunks, and token by token: every hidden state after the final norm."""
    reference, ours, sizes = models(name)
    generator = torch.Generator().manual_seed(1)
    embeddings = torch.randn(1, sum(pieces), sizes.hidden, generator=generator)
    expected = reference(inputs_embeds=embeddings).last_hidden_state
    shape = (1, sizes.kv_heads, 64, sizes.head_dim)
    caches = [torch.zeros(shape) for _ in range(2 * sizes.layers)]
    found, start = [], 0
    for count in pieces:
        part = embeddings[:, start : start + count]
        hidden, caches = ours(part, torch.tensor([start]), caches)
        found.append(hidden)
        start += count
    assert_close(torch.cat(found, 1).numpy(), expected.numpy(), name)


def test_the_window_matters() -> None:
    """The windowed case would fail if the window were ignored."""
    name = "sliding window in later layers"
    _, _, sizes = models(name)
    assert sizes.window == (None, 6, 6)
