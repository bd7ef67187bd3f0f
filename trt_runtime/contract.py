"""Names, shapes and dtypes of the graphs: the one agreement between exporter, builders and runtime.

Everything is a pure function of :class:`trt_runtime.geometry.Geometry`. Shapes are static but for
one axis: what runs once a step takes any number of slots, the requests that step together. A target
fixes that axis for its buckets (CUDA graphs, TensorRT profiles) or leaves it free (ONNX Runtime on
CPU, which then packs each weight once). What varies from step to step is a tensor input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trt_runtime.geometry import Geometry

PROMPT_EMBEDDING = "prompt_embedding"
#: A component, whose graphs are named by their tokens.
TALKER = "talker"
SPEAKER_PROJECTION = "speaker_projection"
FLOW_STEP = "flow_step"
FLOW_ADVANCE = "flow_advance"
TAIL = "tail"
AUDIO_DECODER = "audio_decoder"
AUDIO_ENCODER = "audio_encoder"
LANGUAGE_HEAD = "language_head"

#: Numbers a CAM++ speaker embedding has, and mel bands that it is made of. Fixed by that model.
SPEAKER_DIM = 192
SPEAKER_FEATURES = 80

#: Graphs that a request may need but plain speech does not: loaded when they are first asked for.
ON_DEMAND = (AUDIO_ENCODER, LANGUAGE_HEAD)

#: Appended to the name of a state input to give the output that replaces it.
NEXT = "_next"


def talker_graph_name(tokens: int) -> str:
    """Name of the talker graph that takes `tokens` embeddings at once (1 is the decode step)."""
    return f"talker_{tokens}"


#: The name, in graphs and manifests, of the axis that is free.
SLOTS = "slots"


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a graph.

    With `by_slot` the first axis has an entry a slot, and `shape` is that of one slot.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    by_slot: bool = False

    def sized(self, slots: int) -> TensorSpec:
        """The tensor for so many slots; itself where it has no such axis."""
        if not self.by_slot:
            return self
        return TensorSpec(self.name, self.dtype, (slots, *self.shape[1:]))

    def check_rows(self, part: TensorSpec, first: int) -> None:
        """Raises ValueError unless `part` is rows of this sized tensor, from row `first` on."""
        length, *rest = part.shape
        fits = (self.dtype, self.shape[1:]) == (part.dtype, tuple(rest))
        if not fits or first + length > self.shape[0]:
            raise ValueError(f"buffer {self} does not fit {part} from row {first}")

    @property
    def axes(self) -> list[int | str]:
        """The shape as graphs and manifests write it, with :data:`SLOTS` for the free axis."""
        return [SLOTS, *self.shape[1:]] if self.by_slot else list(self.shape)

    @classmethod
    def of_axes(cls, name: str, dtype: str, axes: Sequence[int | str]) -> TensorSpec:
        """The reverse of `axes`; ValueError where a name is not that of the free first axis."""
        by_slot = bool(axes) and axes[0] == SLOTS
        sizes = [1, *axes[1:]] if by_slot else list(axes)
        if not all(isinstance(size, int) for size in sizes):
            raise ValueError(
                f"{name} has an axis that is neither a size nor {SLOTS!r} before others"
            )
        return cls(name, dtype, tuple(int(size) for size in sizes), by_slot)


def _slots(name: str, *shape: int) -> TensorSpec:
    """A float32 tensor with a row of `shape` a slot."""
    return TensorSpec(name, "float32", (1, *shape), by_slot=True)


@dataclass(frozen=True)
class GraphSpec:
    """One graph: its tensors, and which of them are state carried from call to call.

    `state` lists input names; the output of each is the name with :data:`NEXT` appended.
    `in_place` is the part of `state` whose output may share the input's buffer, because the only
    node that reads the input is the one that writes the output.
    """

    name: str
    component: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    state: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()


def prompt_embedding_spec(g: Geometry) -> GraphSpec:
    tokens = g.prefill_chunks[-1]
    return GraphSpec(
        PROMPT_EMBEDDING,
        "prompt_embedding",
        (TensorSpec("token_ids", "int64", (1, tokens)),),
        (TensorSpec("embeddings", "float32", (1, tokens, g.talker_hidden)),),
    )


def speaker_projection_spec(g: Geometry) -> GraphSpec:
    return GraphSpec(
        SPEAKER_PROJECTION,
        "speaker_projection",
        (TensorSpec("speaker_embedding", "float32", (1, g.speaker_dim)),),
        (TensorSpec("projection", "float32", (1, g.talker_hidden)),),
    )


def talker_spec(g: Geometry, tokens: int) -> GraphSpec:
    """`position` is the index of the first token; `hidden` is taken after the final norm.

    One token at a time is the decode step, which takes any number of slots; a prompt is read into
    one slot.
    """
    by_slot = tokens == 1
    caches = tuple(
        _slots(f"{kind}_cache_{layer}", g.talker_kv_heads, g.cache_length, g.talker_head_dim)
        for layer in range(g.talker_layers)
        for kind in ("key", "value")
    )
    inputs = (
        _slots("embeddings", tokens, g.talker_hidden),
        TensorSpec("position", "int64", (1,), by_slot=True),
        *caches,
    )
    outputs = (_slots("hidden", tokens, g.talker_hidden), *_next(caches))
    names = tuple(cache.name for cache in caches)
    return GraphSpec(
        talker_graph_name(tokens),
        TALKER,
        tuple(replace(tensor, by_slot=by_slot) for tensor in inputs),
        tuple(replace(tensor, by_slot=by_slot) for tensor in outputs),
        state=names,
        in_place=names,
    )


def flow_step_spec(g: Geometry) -> GraphSpec:
    """One Euler step under guidance, of slots that are all at the same step of the solver.

    `time_step` is the step's length; `noise_scale` is sigma * sqrt(temperature), zero on the last
    step; `velocity` is the guided velocity c + guidance * (c - u).
    """
    patch = (g.patch, g.latent_dim)
    return GraphSpec(
        FLOW_STEP,
        "flow",
        (
            _slots("latents", *patch),
            TensorSpec("time", "float32", (1,)),
            TensorSpec("time_step", "float32", (1,)),
            _slots("hidden", 1, g.talker_hidden),
            _slots("history", g.history, g.latent_dim),
            _slots("guidance"),
            _slots("diffusion_noise", *patch),
            _slots("noise_scale"),
        ),
        (_slots("latents" + NEXT, *patch), _slots("velocity", *patch)),
        state=("latents",),
    )


def _advance_outputs(g: Geometry) -> tuple[TensorSpec, ...]:
    return (
        _slots("embedding", 1, g.talker_hidden),
        _slots("stop_probability"),
        _slots("history" + NEXT, g.history, g.latent_dim),
    )


def flow_advance_spec(g: Geometry) -> GraphSpec:
    """After the solve: the talker's next input, the stop probability and the shifted history."""
    return GraphSpec(
        FLOW_ADVANCE,
        "flow_advance",
        (
            _slots("patch", g.patch, g.latent_dim),
            _slots("hidden", 1, g.talker_hidden),
            _slots("history", g.history, g.latent_dim),
        ),
        _advance_outputs(g),
        state=("history",),
    )


def tail_spec(g: Geometry) -> GraphSpec:
    """The whole tail of a step in one call: every solver step, aggregator, stop head, history."""
    patch = (g.patch, g.latent_dim)
    return GraphSpec(
        TAIL,
        "tail",
        (
            _slots("hidden", 1, g.talker_hidden),
            _slots("history", g.history, g.latent_dim),
            _slots("initial_noise", *patch),
            _slots("diffusion_noise", g.solver_steps - 1, *patch),
            _slots("guidance"),
            _slots("noise_scale"),
        ),
        (_slots("patch", *patch), *_advance_outputs(g)),
        state=("history",),
    )


def audio_decoder_spec(g: Geometry) -> GraphSpec:
    """One patch of latents to audio, with everything that outlives the call as state.

    `latents_before` counts the latents of earlier calls; of this call's latents the first `valid`
    count, and the caller repeats the last of those in the rest. `is_last` also renders the frames
    that otherwise wait for the next latent, and the window's tail. Sample 0 of `audio` lies
    `lookahead_frames` frames before this call's first latent; the caller keeps the part that is
    final (:mod:`trt_runtime.audio_decoder`).
    """
    caches = tuple(
        TensorSpec(
            f"{kind}_cache_{layer}", "float32", (1, g.decoder_kv_heads, length, g.decoder_head_dim)
        )
        for layer, length in enumerate(g.decoder_cache_lengths)
        for kind in ("key", "value")
    )
    carried = (
        TensorSpec("previous_latent", "float32", (1, 1, g.decoder_hidden)),
        TensorSpec("audio_overlap", "float32", (1, g.overlap)),
        TensorSpec("window_overlap", "float32", (1, g.overlap)),
    )
    return GraphSpec(
        AUDIO_DECODER,
        "audio_decoder",
        (
            TensorSpec("latents", "float32", (1, g.patch, g.latent_dim)),
            TensorSpec("latents_before", "int64", (1,)),
            TensorSpec("valid", "int64", (1,)),
            TensorSpec("is_last", "bool", (1,)),
            *carried,
            *caches,
        ),
        (
            TensorSpec("audio", "float32", (1, g.decoder_frames * g.hop_length + g.overlap)),
            *_next(carried),
            *_next(caches),
        ),
        state=tuple(t.name for t in (*carried, *caches)),
        in_place=tuple(t.name for t in caches),
    )


def audio_encoder_spec(g: Geometry) -> GraphSpec:
    """A reference wave to the posterior of its latents, `encoder_latents` of them a call.

    `latents_before` counts the latents of earlier calls. The first `valid_frames` frames of `wave`
    are the reference's; what the graph makes of the rest of their last latent is what the reference
    implementation makes of padding, and later latents are to be left out. `std` is the standard
    deviation.
    """
    frames = g.encoder_latents * g.frames_per_latent
    caches = tuple(
        TensorSpec(
            f"{stack}_{kind}_cache_{layer}",
            "float32",
            (1, g.encoder_kv_heads, length, g.encoder_head_dim),
        )
        for stack, lengths in (
            ("frame", g.encoder_frame_cache_lengths),
            ("latent", g.encoder_latent_cache_lengths),
        )
        for layer, length in enumerate(lengths)
        for kind in ("key", "value")
    )
    names = tuple(cache.name for cache in caches)
    latents = (1, g.encoder_latents, g.latent_dim)
    return GraphSpec(
        AUDIO_ENCODER,
        "audio_encoder",
        (
            TensorSpec("wave", "float32", (1, frames * g.encoder_hop)),
            TensorSpec("latents_before", "int64", (1,)),
            TensorSpec("valid_frames", "int64", (1,)),
            *caches,
        ),
        (
            TensorSpec("mean", "float32", latents),
            TensorSpec("std", "float32", latents),
            *_next(caches),
        ),
        state=names,
        in_place=names,
    )


def language_head_spec(g: Geometry) -> GraphSpec:
    """The talker as the language model that it was: a hidden state to the logits of tokens."""
    return GraphSpec(
        LANGUAGE_HEAD,
        "language_head",
        (TensorSpec("hidden", "float32", (1, 1, g.talker_hidden)),),
        (TensorSpec("logits", "float32", (1, g.vocab_size)),),
    )


def _next(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    return tuple(replace(t, name=t.name + NEXT) for t in tensors)


def graph_specs(g: Geometry) -> dict[str, GraphSpec]:
    """Every graph of a bundle, in the order in which they are exported and built."""
    specs = (
        prompt_embedding_spec(g),
        speaker_projection_spec(g),
        *(talker_spec(g, tokens) for tokens in (1, *g.prefill_chunks)),
        flow_step_spec(g),
        flow_advance_spec(g),
        tail_spec(g),
        audio_decoder_spec(g),
        audio_encoder_spec(g),
        language_head_spec(g),
    )
    return {spec.name: spec for spec in specs}
