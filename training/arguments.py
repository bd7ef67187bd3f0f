"""What the commands take for their options."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trt_runtime.errors import UserError

if TYPE_CHECKING:
    import torch


def positive(text: str) -> int:
    """A whole number of 1 and more, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above zero")
    return int(text)


def positive_number(text: str) -> float:
    """A finite number above zero, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above zero")
    return value


def seed(text: str) -> int:
    """A whole number that every generator takes for its seed, 0 to 2**63 - 1, for argparse."""
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to 2**63 - 1")
    return int(text)


def device_of(text: str) -> torch.device:
    """The device of that name, a GPU or the CPU.

    Raises UserError where this machine, or its torch, has none, and for another kind.
    """
    import torch

    try:
        device = torch.device(text)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError(f"the kind {device.type}, which is not trained on")
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(
            f"There is no device {text} to train on",
            expected="cuda where there is a GPU, else cpu",
            found=str(error).splitlines()[0],
            do="train on a machine with a GPU, or add --device cpu, which is far slower",
        ) from error
    return device
