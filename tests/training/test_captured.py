"""A captured step where there is no GPU: the step itself."""

from __future__ import annotations

import torch
from torch import Tensor

from training.captured import CapturedStep


def test_on_a_cpu_every_call_is_one_step() -> None:
    generator = torch.Generator().manual_seed(1)
    taken: list[Tensor] = []

    def step() -> Tensor:
        taken.append(torch.rand(2, generator=generator))
        return taken[-1]

    captured = CapturedStep(step, generator)
    assert taken == []  # no warm-up
    results = [captured() for _ in range(3)]
    assert len(taken) == 3
    assert all(torch.equal(*pair) for pair in zip(results, taken, strict=True))
    assert not torch.equal(results[0], results[1])
    again = torch.Generator().manual_seed(1)
    assert torch.equal(results[0], torch.rand(2, generator=again))
