"""What an export tells while it runs: a line for each thing done, with the share and time left.

The time left is learnt: how long the things of a kind have taken so far, and a guess until there
has been one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from export.durations import about

#: Called with a line that a user should see.
Say = Callable[[str], None]

#: Kinds of work, with the seconds that a unit takes where nothing is known yet: for the first two
#: a unit is a byte, for graphs a second as `export.needs` estimates it.
READ, WRITE, TRACE = "read", "write", "trace"
_GUESSES = {READ: 1e-9, WRITE: 4e-9, TRACE: 1.0}

_BAR = 20
_LONG_SECONDS = 2.0
_SECONDS_BETWEEN = 0.2


@dataclass
class _Kind:
    """Units of a kind of work: planned, done now, kept from before; seconds spent on those done."""

    guess: float
    planned: float = 0.0
    done: float = 0.0
    kept: float = 0.0
    spent: float = 0.0

    @property
    def left(self) -> float:
        return max(self.planned - self.done - self.kept, 0.0)

    @property
    def seconds_left(self) -> float:
        return self.left * (self.spent / self.done if self.done and self.spent else self.guess)


class Progress:
    """Counts what is planned and done, and says so.

    `say` gets a line for each thing done. `live` gets a line several times a second while a thing
    takes longer than two seconds, each in place of the one before, and "" when the thing is done:
    for a terminal. `clock` counts seconds.
    """

    def __init__(
        self, say: Say, live: Say | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._live, self._clock = say, live, clock
        self._kinds = {name: _Kind(guess) for name, guess in _GUESSES.items()}
        self._step: tuple[str, _Kind, float] | None = None
        self._began = self._told = self._counted = 0.0
        self._units = 0.0

    def plan(self, kind: str, units: float) -> None:
        """Work that there will be."""
        self._kinds[kind].planned += units

    def keep(self, kind: str, units: float) -> None:
        """Planned work that an earlier export has done."""
        self._kinds[kind].kept += units

    @contextmanager
    def step(self, name: str, kind: str, units: float) -> Iterator[None]:
        """A thing of `units` of planned work; :meth:`advance` counts them where it can."""
        counted = self._kinds[kind]
        done, spent = counted.done, counted.spent
        self._step, self._units = (name, counted, units), 0.0
        self._began = self._counted = self._clock()
        self._told = self._began + _LONG_SECONDS - _SECONDS_BETWEEN
        try:
            yield
        finally:
            if self._live is not None:
                self._live("")
        counted.done, counted.spent = done + units, spent + self._clock() - self._began
        self._step = None

    def advance(self, units: float) -> None:
        """So much more of the step is done."""
        assert self._step is not None
        name, kind, all_units = self._step
        now = self._clock()
        self._units += units
        kind.done, kind.spent = kind.done + units, kind.spent + now - self._counted
        self._counted = now
        if self._live is not None and now - self._told >= _SECONDS_BETWEEN:
            self._told = now
            share = self._units / all_units if all_units else 1.0
            self._live(f"{name} {_bar(share)} {100 * share:.0f} %; {self.state()}")

    @property
    def seconds(self) -> float:
        """Since the step began."""
        return self._clock() - self._began

    def say(self, line: str) -> None:
        """A line as it is."""
        self._say(line)

    def done(self, line: str) -> None:
        """A line for a thing done, with how far the whole is."""
        self._say(f"{line}; {self.state()}")

    def state(self) -> str:
        """For instance "37 % done, about 40 s left"."""
        planned = sum(kind.planned * kind.guess for kind in self._kinds.values())
        left = sum(kind.left * kind.guess for kind in self._kinds.values())
        seconds = sum(kind.seconds_left for kind in self._kinds.values())
        # Rounded down, but for what float sums lose: nothing is done before it is done.
        percent = min(99, int(100 * (planned - left) / planned + 1e-6)) if left else 100
        return f"{percent} % done" + (f", {about(seconds)} left" if left else "")


def _bar(share: float) -> str:
    full = min(_BAR, int(_BAR * share))
    return f"[{'#' * full}{'.' * (_BAR - full)}]"
