"""The training loop of both stages: rate, log, weights saved as it goes, and where to go on."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from training.captured import CapturedStep
from training.optimizer import Optimizer
from training.tensor_files import copy_tensor, read_tensors, write_tensors
from trt_runtime.errors import UserError

_WARM_UP_STEPS = 200
_LEAST_RATE = 0.02
_LOG_SECONDS = 10.0
_SAVE_SECONDS = 60.0
#: Steps that are queued on the GPU before the host looks at the clock.
_QUEUED = 10

Log = Callable[[str], None]


def rate_at(step: int, steps: int, peak: float) -> float:
    """A short linear warm-up, then a cosine to a small part of the peak."""
    warm = min(1.0, (step + 1) / _WARM_UP_STEPS)
    falling = 0.5 * (1 + math.cos(math.pi * step / steps))
    return peak * warm * (_LEAST_RATE + (1 - _LEAST_RATE) * falling)


class Loop:
    """Trains `module` by `optimizer` with one of several captured steps at a time.

    Everything that decides what comes next is in the file `resume`: weights, the optimizer's state,
    the random generator's and the number of steps. A loop goes on from it where it is there: on a
    CPU to the very same weights; on a GPU the captured steps' warm-up has drawn numbers before.
    Raises UserError where it is of another run.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        optimizer: Optimizer,
        generator: torch.Generator,
        resume: Path,
        log: Log,
    ) -> None:
        self.name, self.resume, self.log = name, resume, log
        self._module, self._optimizer, self._generator = module, optimizer, generator
        self.done, self.total = 0, 0
        self._saved: int | None = None
        if resume.exists():
            self._load()

    def run(
        self,
        captured: Sequence[CapturedStep],
        shares: Sequence[float],
        parts: Sequence[str],
        peak: float,
        steps: int | None,
        seconds: float | None,
        save: Callable[[], None],
        between: Callable[[], None] = lambda: None,
    ) -> None:
        """Trains to `steps` in all, or for as many steps as take `seconds` here.

        captured: they return their losses, one value for each name in `parts`; `shares` are how
        often each is taken. `save` is called when the weights are worth keeping: now and then, and
        at the end; `between` every few steps. Raises UserError where a run that goes on was of
        another number of steps, or the losses are no numbers any more.
        """
        if self.total and steps and steps != self.total:
            raise self._foreign(f"a run of {steps} steps", f"one of {self.total}")
        self.total = self.total or steps or self._fit(captured, shares, seconds or 0.0)
        self.log(f"{self.name}: step {self.done} of {self.total}")
        if self.done == self.total:
            save()
        start = last_log = last_save = time.monotonic()
        first, mean = self.done, None
        while self.done < self.total:
            for _ in range(min(_QUEUED, self.total - self.done)):
                self._optimizer.rate.fill_(rate_at(self.done, self.total, peak))
                # By the number of the step alone: a resumed run takes the same ones.
                choice = random.Random(self.done).choices(range(len(captured)), shares)[0]
                losses = captured[choice]()
                mean = losses.clone() if mean is None else mean.lerp(losses, 0.02)
                self.done += 1
            assert mean is not None
            if not math.isfinite(mean.sum().item()):  # waits for the GPU
                raise self._diverged()
            between()
            now = time.monotonic()
            if now - last_log > _LOG_SECONDS or self.done == self.total:
                values = " ".join(
                    f"{part} {value:.4f}" for part, value in zip(parts, mean.tolist(), strict=True)
                )
                pace = 1000 * (now - start) / (self.done - first)
                self.log(f"{self.name} {self.done}/{self.total} {pace:.1f} ms: {values}")
                last_log = now
            if now - last_save > _SAVE_SECONDS or self.done == self.total:
                self._save()
                save()
                last_save = time.monotonic()

    def _fit(
        self, captured: Sequence[CapturedStep], shares: Sequence[float], seconds: float
    ) -> int:
        """How many steps take `seconds`: some are timed, at the rate zero."""
        expected = 0.0
        for step, share in zip(captured, shares, strict=True):
            step().sum().item()
            start = time.monotonic()
            for _ in range(20):
                result = step()
            result.sum().item()
            expected += share * (time.monotonic() - start) / 20 / sum(shares)
        return max(1, int(seconds / expected))

    def _save(self) -> None:
        tensors: dict[str, Tensor] = {
            f"module.{name}": value for name, value in self._module.named_parameters()
        }
        tensors |= {f"optimizer.{name}": v for name, v in self._optimizer.state().items()}
        tensors["generator"] = self._generator.get_state()
        tensors["progress"] = torch.tensor([self.done, self.total])
        write_tensors(self.resume, tensors)
        self._saved = self.done

    def _load(self) -> None:
        tensors = read_tensors(self.resume, f"where a run of {self.name} ended", self._do)
        weights = {f"module.{name}": value for name, value in self._module.named_parameters()}
        state = [f"optimizer.{name}" for name in self._optimizer.state()]
        wanted = {*weights, *state, "generator", "progress"}
        if tensors.keys() != wanted:
            differing = sorted(tensors.keys() ^ wanted)
            raise self._foreign(f"a run of {self.name}", f"one with or without {differing[0]}")
        with torch.no_grad():
            for name, value in weights.items():
                copy_tensor(value, tensors[name], f"{self.resume}: {name}", self._do)
            self._optimizer.load({name.split(".", 1)[1]: tensors[name] for name in state})
        self._generator.set_state(tensors["generator"])
        self.done, self.total = map(int, tensors["progress"])
        self._saved = self.done
        self.log(f"{self.name}: goes on from step {self.done}")

    @property
    def _do(self) -> str:
        return f"give the options of that run, or delete {self.resume} to begin anew"

    def _foreign(self, expected: str, found: str) -> UserError:
        return UserError(
            f"{self.resume} is of another run", expected=expected, found=found, do=self._do
        )

    def _diverged(self) -> UserError:
        if self._saved is None:
            kept = "nothing of this run was saved"
        else:
            kept = f"{self.resume} keeps what was saved at step {self._saved}"
        return UserError(
            f"The losses of {self.name} are no numbers any more",
            expected="finite losses",
            found=f"NaN or infinity among the last of {self.done} steps",
            do=f"give a smaller --peak, or look at the speech; {kept}",
        )
