"""What a caller may choose of a build, beside its source and target."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from engines.precision import FLOAT32, find_precision
from trt_runtime.errors import UserError

#: A batch of more is not what a step is made for.
MOST_PROFILE_SLOTS = 64
#: Seconds that a component may be given: ten days.
LONGEST = 864_000


@dataclass(frozen=True)
class BuildOptions:
    """The options of `build_engines`, checked by themselves; a target may refuse some.

    `precision` is a name of :data:`engines.precision.PRECISIONS`. The rest is TensorRT's: `slots`
    are the numbers of requests that step together, a profile each; `compute_capability` the GPUs to
    build for, where that need not be the one present; `ampere_and_later` engines for all of them;
    `version_compatible` ones that later versions of the library take; `weight_streaming` the most
    megabytes of an engine's weights that the GPU keeps, the others being fetched from the host's
    memory each time, 0 for all; `time_limit` seconds that one component may take.
    """

    precision: str = FLOAT32
    slots: tuple[int, ...] = (1, 2, 4, 8)
    compute_capability: tuple[str, ...] = ()
    ampere_and_later: bool = False
    version_compatible: bool = False
    weight_streaming: int = 0
    time_limit: int = 7200

    def __post_init__(self) -> None:
        find_precision(self.precision)
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in self.slots)
        rising = whole and list(self.slots) == sorted(set(self.slots))
        if (
            not rising
            or not self.slots
            or not 1 <= self.slots[0] <= self.slots[-1] <= MOST_PROFILE_SLOTS
        ):
            raise UserError(
                "These numbers of slots cannot be built",
                expected=f"whole numbers from 1 to {MOST_PROFILE_SLOTS}, ascending",
                found=",".join(map(str, self.slots)) or "none",
                do="give them as --slots 1,2,4,8",
            )
        for text in self.compute_capability:
            if not re.fullmatch(r"\d{1,2}\.\d", text):
                raise UserError(
                    "This is no compute capability",
                    expected="a number such as 8.9",
                    found=text,
                    do="see the GPU's page of NVIDIA, or ming-trt doctor where the GPU is",
                )
        if len(set(self.compute_capability)) < len(self.compute_capability):
            raise UserError(
                "A compute capability is given twice",
                found=",".join(self.compute_capability),
                do="name each once: --compute-capability 8.6,8.9",
            )
        if self.weight_streaming < 0:
            raise UserError(
                "The weights on the GPU cannot be so few",
                expected="megabytes, 0 for all",
                found=str(self.weight_streaming),
                do="leave --weight-streaming out to keep all of them there",
            )
        if not 1 <= self.time_limit <= LONGEST:
            raise UserError(
                "This is no time limit",
                expected=f"1 to {LONGEST} seconds",
                found=str(self.time_limit),
                do="leave --time-limit out for two hours a component",
            )

    def chosen(self) -> dict[str, Any]:
        """What differs from the defaults, by name, as JSON has it."""
        return {
            field.name: list(value) if isinstance(value, tuple) else value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        }

    def of_result(self) -> dict[str, Any]:
        """The same without what changes no engine."""
        return {name: value for name, value in self.chosen().items() if name != "time_limit"}

    def check_taken(self, target: str, takes: Collection[str]) -> None:
        """Raises UserError for an option that the target does not have."""
        if others := [name for name in self.chosen() if name not in takes]:
            raise UserError(
                f"Target {target} has no option {flags(others)}",
                expected=flags(takes) or "none",
                found=flags(others),
                do="leave it out, or choose another target (build-engines --list-targets)",
            )


def flags(names: Collection[str]) -> str:
    """Options as they are written on the command line, sorted: "--precision, --time-limit"."""
    return ", ".join("--" + name.replace("_", "-") for name in sorted(names))
