"""Precisions that engines can be built in: a row a component, and what of it stays float32.

`mixed` is the one to choose (docs/tensorrt.md has what was measured); the other two give every
component the same type. In a mixed precision products of matrices, and what only moves, scales or
adds their results, are in the low type. Norms, the residual stream, softmax and the other
nonlinearities, the time embedding, the solver, and the first and last layers stay float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from trt_runtime.contract import (
    AUDIO_DECODER,
    AUDIO_ENCODER,
    FLOW_ADVANCE,
    LANGUAGE_HEAD,
    TAIL,
    TALKER,
)
from trt_runtime.errors import UserError

FLOAT32 = "float32"
MIXED = "mixed"
MIXED_BF16 = "mixed-bf16"
MIXED_FP16 = "mixed-fp16"

#: By precision: the type of products, in ONNX's and numpy's name.
LOW_TYPES: Mapping[str, str] = {MIXED_BF16: "bfloat16", MIXED_FP16: "float16"}

#: Parameters whose products stay float32, by patterns of their names: first and last layers, which
#: are small and whose error nothing averages out, the time embedding, whose angles reach 1000, the
#: router, whose choice is discrete, the stop head, whose decision is, and what becomes the phases
#: of the ISTFT head.
KEPT_FLOAT32 = (
    "flow.time_*", "flow.latent_*", "flow.condition_*", "flow.final_*",
    "aggregator.latent_*", "aggregator.final_*",
    "stop_head.*",
    "*.router_weight",
    "audio_decoder.latent_*", "audio_decoder.head_*",
    "audio_encoder.wave_*", "audio_encoder.frame_weight", "audio_encoder.latent_weight",
    "speaker_projection.*",
)  # fmt: skip

#: Operators that are in the low type where all they read is: no rounding beyond that of a product.
FOLLOWERS = frozenset(
    {
        "Add", "Concat", "Expand", "Identity", "Mul", "Reshape", "Slice", "Split", "Squeeze", "Sub",
        "Transpose", "Unsqueeze",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Precision:
    """A precision of `--precision`: by component :data:`FLOAT32` or a key of :data:`LOW_TYPES`.

    A component without a row is float32.
    """

    name: str
    description: str
    components: Mapping[str, str] = field(default_factory=dict)

    def of(self, component: str) -> str:
        return self.components.get(component, FLOAT32)

    def plan(self) -> dict[str, object]:
        """All that decides the types of a graph, for a build's key."""
        kept, followers = list(KEPT_FLOAT32), sorted(FOLLOWERS)
        return {"components": dict(self.components), "kept": kept, "followers": followers}

    def low_type(self, component: str) -> str | None:
        """The type of the component's products; None where all of it is float32."""
        return LOW_TYPES.get(self.of(component))


#: Components with enough products to gain: the speaker projection is one product a request, and a
#: prompt's table is looked up, exact in any precision.
_HEAVY = (TALKER, TAIL, FLOW_ADVANCE, AUDIO_DECODER, AUDIO_ENCODER, LANGUAGE_HEAD)

PRECISIONS: Mapping[str, Precision] = {
    row.name: row
    for row in (
        Precision(FLOAT32, "every component in float32, without TF32"),
        Precision(
            MIXED,
            "the mixed precision to choose: what was measured best, bfloat16 for the talker",
            # float16 has three bits more, bfloat16 the range that a language model's states need.
            dict.fromkeys(_HEAVY, MIXED_FP16) | dict.fromkeys((TALKER, LANGUAGE_HEAD), MIXED_BF16),
        ),
        Precision(
            MIXED_BF16,
            "products in bfloat16, norms, residuals and solver in float32",
            dict.fromkeys(_HEAVY, MIXED_BF16),
        ),
        Precision(
            MIXED_FP16,
            "products in float16, norms, residuals and solver in float32",
            dict.fromkeys(_HEAVY, MIXED_FP16),
        ),
    )
}


def find_precision(name: str) -> Precision:
    """The row of this name; UserError listing the names where there is none."""
    try:
        return PRECISIONS[name]
    except KeyError:
        raise UserError(
            f"There is no precision {name!r}",
            expected=" or ".join(PRECISIONS),
            found=repr(name),
            do="choose one of the precisions that build-engines --help shows",
        ) from None


def kept_float32(parameter: str) -> bool:
    """Whether products with this parameter stay float32 in every mixed precision."""
    return any(fnmatchcase(parameter, pattern) for pattern in KEPT_FLOAT32)
