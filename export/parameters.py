"""How the parameters of our torch modules are made of a checkpoint's tensors.

Rows of a table, built by one function for each kind of block, so that another family with other
prefixes is other calls of the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from export.sizes import FlowTransformerSizes, ModelSizes, TransformerSizes

#: The parameter is the one source as stored.
COPY = "copy"
#: A linear weight (out, in) as the right-hand side of a product: (in, out).
TRANSPOSE = "transpose"
#: Linear weights with the same input, each transposed, side by side: (in, sum of out).
TRANSPOSE_CONCAT = "transpose_concat"
#: Tensors one after the other: vectors joined, or matrices stacked.
CONCAT = "concat"
#: Matrices, or stacks of them, of pairs, their rows in turns, pair after pair:
#: (matrices, 2 rows, columns).
INTERLEAVE = "interleave"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Parameter:
    """One parameter `name` of `component`, with `shape`, made from `sources` by `transform`."""

    component: str
    name: str
    shape: Shape
    sources: tuple[str, ...]
    source_shapes: tuple[Shape, ...]
    transform: str

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """One way in which checkpoints of a family store their weights; each gives the same bundle.

    `name` says it to people. `components(sizes)` is its table: the same parameters in the same
    order as in every layout of the family, made of other tensors.
    """

    name: str
    components: Callable[[ModelSizes], tuple[Parameter, ...]]


@dataclass(frozen=True)
class UnusedTensor:
    """A tensor that a checkpoint may hold and that this version does not read, and why."""

    name: str
    shape: Shape
    reason: str


def copied(component: str, name: str, source: str, shape: Shape) -> Parameter:
    return Parameter(component, name, shape, (source,), (shape,), COPY)


def linear_weight(component: str, name: str, inputs: int, *sources: tuple[str, int]) -> Parameter:
    """(inputs, sum of outputs) from linear weights given as (tensor name, outputs)."""
    return Parameter(
        component,
        name,
        (inputs, sum(outputs for _, outputs in sources)),
        tuple(source for source, _ in sources),
        tuple((outputs, inputs) for _, outputs in sources),
        TRANSPOSE if len(sources) == 1 else TRANSPOSE_CONCAT,
    )


def linear_bias(component: str, name: str, *sources: tuple[str, int]) -> Parameter:
    """(sum of outputs,) from the biases of the same linear layers."""
    return Parameter(
        component,
        name,
        (sum(outputs for _, outputs in sources),),
        tuple(source for source, _ in sources),
        tuple((outputs,) for _, outputs in sources),
        COPY if len(sources) == 1 else CONCAT,
    )


def linear(
    component: str, ours: str, theirs: str, inputs: int, outputs: int
) -> Iterator[Parameter]:
    """`{ours}weight` (inputs, outputs) and `{ours}bias` (outputs,) of the linear layer `theirs`."""
    yield linear_weight(component, f"{ours}weight", inputs, (f"{theirs}.weight", outputs))
    yield linear_bias(component, f"{ours}bias", (f"{theirs}.bias", outputs))


def qwen2_stack(
    component: str, ours: str, theirs: str, sizes: TransformerSizes
) -> Iterator[Parameter]:
    """The layers and the final norm of a Qwen2 stack whose tensors begin with `theirs`.

    qkv_weight (hidden, (heads + 2 kv_heads) head_dim) holds queries, keys, values in this order;
    gate_up_weight (hidden, 2 intermediate) the gate, then the up projection.
    """
    hidden, intermediate = sizes.hidden, sizes.intermediate
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    for layer in range(sizes.layers):
        at, source = f"{ours}.layers.{layer}.", f"{theirs}layers.{layer}."
        attention, mlp = f"{source}self_attn.", f"{source}mlp."
        projections = tuple(
            (f"{attention}{name}_proj", width)
            for name, width in (("q", queries), ("k", keys), ("v", keys))
        )
        yield copied(component, f"{at}attention_norm", f"{source}input_layernorm.weight", (hidden,))
        yield linear_weight(
            component, f"{at}qkv_weight", hidden, *((f"{p}.weight", w) for p, w in projections)
        )
        yield linear_bias(component, f"{at}qkv_bias", *((f"{p}.bias", w) for p, w in projections))
        yield linear_weight(
            component, f"{at}out_weight", queries, (f"{attention}o_proj.weight", hidden)
        )
        yield copied(
            component, f"{at}mlp_norm", f"{source}post_attention_layernorm.weight", (hidden,)
        )
        yield linear_weight(
            component,
            f"{at}gate_up_weight",
            hidden,
            (f"{mlp}gate_proj.weight", intermediate),
            (f"{mlp}up_proj.weight", intermediate),
        )
        yield linear_weight(
            component, f"{at}down_weight", intermediate, (f"{mlp}down_proj.weight", hidden)
        )
    yield copied(component, f"{ours}.norm", f"{theirs}norm.weight", (hidden,))


def flow_blocks(
    component: str, ours: str, theirs: str, sizes: FlowTransformerSizes
) -> Iterator[Parameter]:
    """Rotary frequencies and blocks of a flow transformer whose tensors begin with `theirs`."""
    hidden, feed_forward = sizes.hidden, sizes.feed_forward
    yield copied(
        component,
        f"{ours}.inverse_frequencies",
        f"{theirs}rotary_embed.inv_freq",
        (sizes.head_dim // 2,),
    )
    for block in range(sizes.depth):
        at, source = f"{ours}.blocks.{block}.", f"{theirs}blocks.{block}."
        projections = tuple((f"{source}attn.to_{name}", hidden) for name in "qkv")
        yield copied(component, f"{at}attention_norm", f"{source}norm1.weight", (hidden,))
        yield linear_weight(
            component, f"{at}qkv_weight", hidden, *((f"{p}.weight", w) for p, w in projections)
        )
        yield linear_bias(component, f"{at}qkv_bias", *((f"{p}.bias", w) for p, w in projections))
        yield from linear(component, f"{at}out_", f"{source}attn.to_out.0", hidden, hidden)
        yield copied(component, f"{at}mlp_norm", f"{source}norm2.weight", (hidden,))
        yield from linear(component, f"{at}up_", f"{source}mlp.ff.0.0", hidden, feed_forward)
        yield from linear(component, f"{at}down_", f"{source}mlp.ff.2", feed_forward, hidden)


def flow_final(
    component: str, ours: str, theirs: str, hidden: int, outputs: int
) -> Iterator[Parameter]:
    """The final norm and linear layer of a flow transformer."""
    yield copied(
        component, f"{ours}.final_norm", f"{theirs}final_layer.norm_final.weight", (hidden,)
    )
    yield from linear(component, f"{ours}.final_", f"{theirs}final_layer.linear", hidden, outputs)
