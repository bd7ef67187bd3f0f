"""Comparing the tensors of a checkpoint with the table of its family, name by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from export.parameters import Layout, UnusedTensor
from export.safetensors_header import TensorInfo
from export.sizes import ModelSizes
from trt_runtime.errors import UserError
from trt_runtime.printable import printable

if TYPE_CHECKING:
    from export.families import Family

#: The dtypes that a parameter may be stored in.
READABLE = ("bfloat16", "float16", "float32")

_SHOWN = 20


@dataclass(frozen=True)
class MisshapenTensor:
    """A tensor whose shape is not what the config implies."""

    name: str
    expected: tuple[int, ...]
    found: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} (expected {list(self.expected)}, found {list(self.found)})"


@dataclass(frozen=True)
class MatchReport:
    """The comparison: names in the order of the table, or sorted where the table lacks them.

    `layout` is the one that the checkpoint is taken for: its table is what is compared with.
    `missing`: needed and not stored. `mixed`: stored, and of another layout of the family.
    `unexpected`: stored and in no table. `misshapen`: in the table with another shape. `mistyped`:
    needed, but not stored as a float type that is read. `unused`: stored and listed as unused.
    `consumed`: stored and needed.
    """

    layout: Layout
    missing: tuple[str, ...]
    mixed: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshapen: tuple[MisshapenTensor, ...]
    mistyped: tuple[str, ...]
    unused: tuple[UnusedTensor, ...]
    consumed: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not (
            self.missing or self.mixed or self.unexpected or self.misshapen or self.mistyped
        )


def match_tensors(
    family: Family, sizes: ModelSizes, tensors: Mapping[str, TensorInfo]
) -> MatchReport:
    """Compares `tensors` with what `family` needs for `sizes`.

    A tensor listed as unused may be absent: tied weights and stripped encoders are stored or not,
    and neither changes a sample. One that is stored must have the listed shape.
    """
    layout = family.layout_of(sizes, tensors)
    needed = _sources(layout, sizes)
    others = {name for other in family.layouts for name in _sources(other, sizes)} - set(needed)
    unused = {tensor.name: tensor for tensor in family.unused(sizes)}
    expected = needed | {name: tensor.shape for name, tensor in unused.items()}
    return MatchReport(
        layout=layout,
        missing=tuple(name for name in needed if name not in tensors),
        mixed=tuple(sorted(name for name in tensors if name in others)),
        unexpected=tuple(
            sorted(name for name in tensors if name not in expected and name not in others)
        ),
        misshapen=tuple(
            MisshapenTensor(name, shape, tensors[name].shape)
            for name, shape in expected.items()
            if name in tensors and tensors[name].shape != shape
        ),
        mistyped=tuple(
            f"{name} ({tensors[name].dtype})"
            for name in needed
            if name in tensors and tensors[name].dtype not in READABLE
        ),
        unused=tuple(tensor for name, tensor in unused.items() if name in tensors),
        consumed=tuple(name for name in needed if name in tensors),
    )


def _sources(layout: Layout, sizes: ModelSizes) -> dict[str, tuple[int, ...]]:
    """The tensors that a layout's table needs, with their shapes."""
    return {
        name: shape
        for parameter in layout.components(sizes)
        for name, shape in zip(parameter.sources, parameter.source_shapes, strict=True)
    }


def require_match(report: MatchReport, folder: object) -> None:
    """Raises one UserError that names every difference (the first 20 of each kind, with counts)."""
    if report.ok:
        return
    raise UserError(
        f"The tensors of {folder} do not fit its config.json",
        expected="every tensor of the family's table, and no other",
        found="; ".join(differences(report)),
        do="run python -m export --check on the folder; download it again, or check that "
        "config.json and weights belong together",
    )


def differences(report: MatchReport) -> list[str]:
    """One line for each kind of difference that there is."""
    kinds: tuple[tuple[str, Sequence[object]], ...] = (
        ("missing", report.missing),
        (of_another_layout(report), report.mixed),
        ("unexpected", report.unexpected),
        ("misshapen", report.misshapen),
        (f"stored in a dtype other than {', '.join(READABLE)}", report.mistyped),
    )
    return [f"{len(names)} {kind}: {first_names(names)}" for kind, names in kinds if names]


def of_another_layout(report: MatchReport) -> str:
    """What is wrong with the tensors that are `mixed`."""
    return f"of another layout than the rest, which is {report.layout.name}"


def first_names(names: Sequence[object]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(printable(str(name)) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown}, and {len(names) - _SHOWN} more"
