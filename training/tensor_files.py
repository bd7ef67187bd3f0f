"""Tensors by name in safetensors files: a module's weights, and whatever else a stage keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from export.whole_file import whole_file
from trt_runtime.errors import UserError, reason_of

#: Parameters that only training has, and that no file of weights holds.
TRAINING_ONLY = "guides."


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """The file appears whole or not at all. Raises UserError where it cannot be written."""
    data = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    with whole_file(path, len(data)) as file:
        file.write(data)


def read_tensors(path: Path, what: str, do: str) -> dict[str, Tensor]:
    """All of a file's tensors. Raises UserError: `what` was expected, and `do` makes it."""
    try:
        return load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        missing = not path.exists()
        raise UserError(
            f"{path} cannot be read",
            expected=what,
            found="no such file" if missing else reason_of(error),
            do=do,
        ) from error


def shipped_parameters(module: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    """Those of a checkpoint, by the exporter's names: the heads that guide training stay out."""
    for name, value in module.named_parameters():
        if not name.startswith(TRAINING_ONLY):
            yield name, value


def save_weights(path: Path, module: nn.Module, **others: Tensor) -> None:
    """The weights as float32, and `others` beside them."""
    tensors = {name: value.detach().float() for name, value in shipped_parameters(module)}
    write_tensors(path, tensors | others)


def load_weights(path: Path, module: nn.Module, what: str) -> None:
    """Weights that :func:`save_weights` wrote, `what` they are; the heads keep their own values.

    Raises UserError for a file that lacks one, or has it in another shape.
    """
    do = f"give the file that the training of {what} wrote"
    tensors = read_tensors(path, f"the weights of {what}", do)
    with torch.no_grad():
        for name, value in shipped_parameters(module):
            copy_tensor(value, tensors.get(name), f"{path}: {name}", do)


def copy_tensor(into: Tensor, value: Tensor | None, name: str, do: str) -> None:
    """Raises UserError where `value`, read for `name`, is missing or has another shape."""
    if value is None or value.shape != into.shape:
        raise UserError(
            f"{name} does not fit",
            expected=f"shape {list(into.shape)}",
            found="no such tensor" if value is None else f"shape {list(value.shape)}",
            do=do,
        )
    into.copy_(value)
