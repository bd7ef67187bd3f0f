"""The sizes of a talker, and which of them the kernels can take."""

from __future__ import annotations

from dataclasses import dataclass

from trt_runtime.errors import UserError
from trt_runtime.transformer_sizes import ExpertSizes


@dataclass(frozen=True)
class TalkerSizes:
    """A causal Qwen2 stack, or one with experts (Bailing MoE).

    `intermediate` is the width of the SwiGLU that every row goes through: the whole feed-forward
    of a dense talker, all shared experts together of one with `experts`.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rope_theta: float
    rms_eps: float
    qkv_bias: bool
    experts: ExpertSizes | None = None

    def __post_init__(self) -> None:
        """Raises UserError for sizes that the kernels cannot take."""
        if self.head_dim < 16 or self.head_dim & (self.head_dim - 1):
            raise _unfit("head_dim", "a power of two of at least 16", self.head_dim)
        if self.heads % self.kv_heads:
            raise _unfit("heads", f"a multiple of kv_heads, {self.kv_heads}", self.heads)
        for name in ("hidden", "intermediate"):
            if getattr(self, name) % 16:
                raise _unfit(name, "a multiple of 16", getattr(self, name))
        if self.experts is not None:
            width = self.experts.intermediate
            if width % 16 or self.intermediate % width:
                raise _unfit(
                    "experts.intermediate",
                    f"a multiple of 16 that divides the shared width, {self.intermediate}",
                    width,
                )
            if not 1 <= self.experts.chosen <= self.experts.count:
                raise _unfit("experts.chosen", f"1 to {self.experts.count}", self.experts.chosen)

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def expert_width(self) -> int:
        """Width of what the kernels call an expert; of a dense talker, of a part of its SwiGLU.

        A program reads an expert's inputs at once, padded to a power of two: so a dense talker's
        are cut into the widest parts up to 2048 that waste no more than a third of it.
        """
        if self.experts is not None:
            return self.experts.intermediate
        return max(
            width
            for width in range(16, min(self.intermediate, 2048) + 1, 16)
            if self.intermediate % width == 0 and width > 0.65 * (1 << (width - 1).bit_length())
        )

    @property
    def routed_experts(self) -> int:
        return 0 if self.experts is None else self.experts.count

    @property
    def shared_experts(self) -> int:
        """How many experts of `expert_width` the SwiGLU of all rows is cut into."""
        return self.intermediate // self.expert_width


def _unfit(name: str, expected: str, found: int) -> UserError:
    return UserError(
        f"The talker's kernels cannot run a talker of {name} {found}",
        expected=expected,
        found=str(found),
        do="build this talker for another target",
    )
