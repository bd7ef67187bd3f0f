"""The training loop: its rate, how long it goes on, and where it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from training import loop
from training.captured import CapturedStep
from training.loop import Loop, rate_at
from training.optimizer import Optimizer
from trt_runtime.errors import UserError


def test_the_rate_rises_then_falls_to_a_small_part() -> None:
    rates = [rate_at(step, 2000, 2.0) for step in range(2000)]
    assert rates[0] == pytest.approx(2.0 / 200, rel=0.01)
    assert rates[:195] == sorted(rates[:195])
    assert rates[200:] == sorted(rates[200:], reverse=True)
    assert 1.9 < max(rates) <= 2.0
    assert rates[1100] == pytest.approx(2.0 * (0.02 + 0.98 * 0.5 * (1 - 0.1564)), rel=0.001)
    assert rates[-1] == pytest.approx(0.04, rel=0.01)


class Training:
    """A small module with two kinds of steps whose losses hold random numbers."""

    def __init__(self, folder: Path, name: str = "small", width: int = 3) -> None:
        self.module = nn.Linear(4, width)
        with torch.no_grad():
            for value in self.module.parameters():
                value.fill_(0.5)
        self.generator = torch.Generator().manual_seed(7)
        self.optimizer = Optimizer([self.module.weight], [self.module.bias], (0.9, 0.95))
        self.lines: list[str] = []
        self.taken: list[int] = []
        self.saved = 0
        self.path = folder / f"{name}.resume.safetensors"
        self.loop = Loop(
            name, self.module, self.optimizer, self.generator, self.path, self.lines.append
        )

    def step(self, kind: int) -> Tensor:
        x = torch.randn((8, 4), generator=self.generator)
        loss = (self.module(x) - kind).square().mean()
        self.optimizer.zero()
        loss.backward()
        self.optimizer.step()
        self.taken.append(kind)
        return torch.stack((loss, loss / 2)).detach()

    def save(self) -> None:
        self.saved += 1

    def run(self, steps: int | None, seconds: float | None = None, **more: Any) -> None:
        captured = [CapturedStep(lambda k=k: self.step(k), self.generator) for k in range(2)]
        self.loop.run(
            captured, [3.0, 1.0], ("whole", "half"), 0.05, steps, seconds, self.save, **more
        )

    @property
    def weights(self) -> list[Tensor]:
        return [value.detach() for value in self.module.parameters()]


class Ended(Exception):
    """What a test ends a run with."""


def test_a_run_that_was_interrupted_comes_to_the_very_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole").mkdir()
    whole = Training(tmp_path / "whole")
    whole.run(45)
    monkeypatch.setattr(loop, "_SAVE_SECONDS", -1.0)
    first = Training(tmp_path)

    def end() -> None:
        if first.loop.done == 30:  # not saved yet: the last file is of step 20
            raise Ended

    with pytest.raises(Ended):
        first.run(45, between=end)
    second = Training(tmp_path)
    assert second.loop.done == 20
    assert not torch.equal(second.weights[0], first.weights[0])
    second.run(45)
    assert first.taken[:20] + second.taken == whole.taken
    assert {0, 1} == set(second.taken)
    assert all(torch.equal(*pair) for pair in zip(second.weights, whole.weights, strict=True))
    assert second.path.read_bytes() == whole.path.read_bytes()
    assert not torch.equal(whole.weights[0], torch.full((3, 4), 0.5))


def test_losses_are_said_by_name_and_weights_saved_at_the_end(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.run(12)
    assert training.saved == 1
    assert len(training.taken) == 12
    last = training.lines[-1].split()
    assert last[:2] == ["small", "12/12"]
    assert last[4::2] == ["whole", "half"]
    assert float(last[5]) == pytest.approx(2 * float(last[7]), abs=2e-4)
    assert [path.name for path in tmp_path.iterdir()] == ["small.resume.safetensors"]


def test_a_run_that_has_ended_saves_again_and_takes_no_step(tmp_path: Path) -> None:
    Training(tmp_path).run(12)
    again = Training(tmp_path)
    again.run(12)
    assert (again.taken, again.saved) == ([], 1)


def test_seconds_become_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which a step of kind 0 takes 1 s and one of kind 1 takes 3 s: 1.5 s a step."""
    training = Training(tmp_path)

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return float(sum(1 + 2 * kind for kind in training.taken))

    monkeypatch.setattr(loop, "time", Clock)
    training.run(None, 90.0)
    assert (training.loop.total, training.loop.done) == (60, 60)
    assert len(training.taken) == 60 + 2 * 21  # those that were timed


def test_the_steps_that_are_timed_move_no_weight(tmp_path: Path) -> None:
    training = Training(tmp_path)
    before = [value.clone() for value in training.weights]
    captured = [CapturedStep(lambda: training.step(0), training.generator)]
    assert training.loop._fit(captured, [1.0], 0.0) == 1
    assert len(training.taken) == 21
    assert all(torch.equal(*pair) for pair in zip(before, training.weights, strict=True))


def test_a_file_of_another_run_is_refused(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.run(12)
    content = training.path.read_bytes()
    with pytest.raises(UserError, match="a run of 20 steps") as caught:
        Training(tmp_path).run(20)
    assert str(training.path) in str(caught.value)
    with pytest.raises(UserError, match=r"module\.weight does not fit"):
        Training(tmp_path, width=5)
    assert training.path.read_bytes() == content
    training.path.write_bytes(b"not a file of tensors")
    with pytest.raises(UserError, match="cannot be read"):
        Training(tmp_path)
    training.path.write_bytes(b"")
    with pytest.raises(UserError, match="cannot be read"):
        Training(tmp_path)


def test_losses_that_are_no_numbers_end_the_run(tmp_path: Path) -> None:
    training = Training(tmp_path)
    with torch.no_grad():
        training.module.bias.fill_(float("nan"))
    with pytest.raises(UserError, match="no numbers any more") as caught:
        training.run(30)
    assert "nothing of this run was saved" in caught.value.do
    assert len(training.taken) == 10
    assert training.saved == 0
    assert not training.path.exists()


@pytest.mark.parametrize("resumed", [False, True])
def test_losses_that_are_no_numbers_end_the_run_and_what_was_saved_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    monkeypatch.setattr(loop, "_SAVE_SECONDS", -1.0)
    training = Training(tmp_path)

    def end() -> None:
        if training.loop.done == 20:
            raise Ended

    def spoil() -> None:
        with torch.no_grad():
            training.module.bias.fill_(float("nan"))

    if resumed:
        with pytest.raises(Ended):
            training.run(30, between=end)
        training = Training(tmp_path)
        spoil()
    with pytest.raises(UserError, match="no numbers any more") as caught:
        training.run(30, between=spoil)
    assert f"{training.path} keeps what was saved at step 10" in caught.value.do
    assert Training(tmp_path).loop.done == 10
