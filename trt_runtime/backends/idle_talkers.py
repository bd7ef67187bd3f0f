"""What talkers are made of, kept for the next when nobody uses it: making it captures graphs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

_Kept = TypeVar("_Kept")


class IdleTalkers(Generic[_Kept]):
    """Of each number of slots, one that nobody uses waits for the next; others are freed."""

    def __init__(self) -> None:
        self._idle: dict[int, list[_Kept]] = {}

    def take(self, slots: int, make: Callable[[], _Kept]) -> _Kept:
        """One that nobody uses any more, or a new one."""
        try:
            return self._idle.setdefault(slots, []).pop()
        except IndexError:
            return make()

    def keep_after(self, user: object, slots: int, kept: _Kept) -> None:
        """Puts `kept` back when `user` is gone, however it goes."""
        weakref.finalize(user, _keep_one, self._idle.setdefault(slots, []), kept)


def _keep_one(idle: list[_Kept], kept: _Kept) -> None:
    if not idle:
        idle.append(kept)
