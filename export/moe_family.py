"""The tables of Ming-omni-tts with a mixture of experts: Bailing's names of the talker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from export.audio_tokenizer import audio_components, audio_unused
from export.dense_family import HEAD, advance, flow, speaker_projection
from export.parameters import (
    CONCAT,
    INTERLEAVE,
    Layout,
    Parameter,
    Shape,
    UnusedTensor,
    copied,
    linear_weight,
)
from export.sizes import ModelSizes

_TALKER = "model.model."


@dataclass(frozen=True)
class ExpertTensors:
    """How the experts' weights of a layer are stored: `stacked` in one tensor a projection, or not.

    Stacked is what upstream's BailingMoeGroupedMLP saves, under `use_grouped_gemm`: the number of
    experts then comes first in the shape.
    """

    stacked: bool

    def names(self, mlp: str, projection: str, count: int) -> tuple[str, ...]:
        each = [""] if self.stacked else [f"{expert}." for expert in range(count)]
        return tuple(f"{mlp}experts.{expert}{projection}_proj.weight" for expert in each)

    def shape(self, count: int, rows: int, columns: int) -> Shape:
        return (count, rows, columns) if self.stacked else (rows, columns)


def moe_components(sizes: ModelSizes, tensors: ExpertTensors) -> tuple[Parameter, ...]:
    """Every parameter of the family, in the order in which components are written."""
    talker = sizes.talker
    return (
        copied(
            "prompt_embedding",
            "prompt_embedding.table",
            f"{_TALKER}word_embeddings.weight",
            (talker.vocab_size, talker.hidden),
        ),
        *speaker_projection(sizes),
        *_stack(sizes, tensors),
        *flow(sizes),
        *advance(sizes),
        *audio_components(sizes.audio),
    )


MOE_LAYOUTS = (
    Layout("one tensor an expert", partial(moe_components, tensors=ExpertTensors(stacked=False))),
    Layout("stacked experts", partial(moe_components, tensors=ExpertTensors(stacked=True))),
)


def moe_unused(sizes: ModelSizes) -> tuple[UnusedTensor, ...]:
    """Every tensor of the released layout that nothing reads."""
    talker, experts = sizes.talker, sizes.talker.experts
    assert experts is not None
    gates = (
        UnusedTensor(
            f"{_TALKER}layers.{layer}.mlp.{kind}_gate.weight",
            (experts.count, talker.hidden),
            f"routes tokens of {kind} input, which speech does not have",
        )
        for layer in range(talker.layers)
        for kind in ("image", "audio")
    )
    head = UnusedTensor(
        HEAD, (talker.vocab_size, talker.hidden), "speech reads hidden states, not words"
    )
    return (head, *gates, *audio_unused(sizes.audio))


def _stack(sizes: ModelSizes, tensors: ExpertTensors) -> Iterator[Parameter]:
    """The talker: fused rows of queries, keys, values; router, experts, shared expert."""
    talker, experts = sizes.talker, sizes.talker.experts
    assert experts is not None
    hidden, width, shared = talker.hidden, experts.intermediate, talker.intermediate
    queries, keys = talker.heads * talker.head_dim, talker.kv_heads * talker.head_dim
    for layer in range(talker.layers):
        at, source = f"talker.layers.{layer}.", f"{_TALKER}layers.{layer}."
        attention, mlp = f"{source}attention.", f"{source}mlp."
        fused = (f"{attention}query_key_value.weight", queries + 2 * keys)
        gates, ups, downs = (
            tensors.names(mlp, name, experts.count) for name in ("gate", "up", "down")
        )
        pairs = tuple(name for pair in zip(gates, ups, strict=True) for name in pair)
        wide = tensors.shape(experts.count, width, hidden)
        tall = tensors.shape(experts.count, hidden, width)
        norm = f"{source}input_layernorm.weight"
        yield copied("talker", f"{at}attention_norm", norm, (hidden,))
        yield linear_weight("talker", f"{at}qkv_weight", hidden, fused)
        yield linear_weight(
            "talker", f"{at}out_weight", queries, (f"{attention}dense.weight", hidden)
        )
        norm = f"{source}post_attention_layernorm.weight"
        yield copied("talker", f"{at}mlp_norm", norm, (hidden,))
        yield linear_weight(
            "talker", f"{at}router_weight", hidden, (f"{mlp}gate.weight", experts.count)
        )
        yield Parameter(
            "talker", f"{at}experts_gate_up", (experts.count, 2 * width, hidden),
            pairs, (wide,) * len(pairs), INTERLEAVE,
        )  # fmt: skip
        yield Parameter(
            "talker", f"{at}experts_down", (experts.count, hidden, width),
            downs, (tall,) * len(downs), CONCAT,
        )  # fmt: skip
        yield linear_weight(
            "talker", f"{at}gate_up_weight", hidden,
            *((f"{mlp}shared_experts.{name}_proj.weight", shared) for name in ("gate", "up")),
        )  # fmt: skip
        yield linear_weight(
            "talker", f"{at}down_weight", shared,
            (f"{mlp}shared_experts.down_proj.weight", hidden),
        )  # fmt: skip
    yield copied("talker", "talker.norm", f"{_TALKER}norm.weight", (hidden,))
