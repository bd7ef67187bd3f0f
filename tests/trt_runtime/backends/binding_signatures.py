"""Holds a fake to the classes of a binding: their attributes, settable or not, and argument counts.

pybind11's functions have no signature to inspect; the first line of their docstrings has it.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any


def counts(method: Any, name: str) -> list[tuple[int, int]]:
    """(fewest, most) arguments beside self, of each overload of a binding's method."""
    found = []
    for line in (method.__doc__ or "").splitlines():
        match = re.match(rf"(?:\d+\. )?{name}\((self: .*)\) ->", line.strip())
        if match:
            arguments = _split(match[1])[1:]
            found.append((sum("=" not in argument for argument in arguments), len(arguments)))
    assert found, f"{name} says nothing of its arguments: {method.__doc__!r}"
    return found


def _split(text: str) -> list[str]:
    """The arguments, at the commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[(<") - (character in "])>")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def held_to(real: type) -> Any:
    """A decorator of a fake class: every public attribute is one of `real`'s, called as that is."""

    def decorate(fake: type) -> type:
        for name, value in list(vars(fake).items()):
            if name.startswith("_"):
                continue
            original = getattr(real, name, None)
            assert original is not None, f"{real.__name__} has no {name}"
            if isinstance(value, property):
                assert isinstance(original, property), f"{real.__name__}.{name} is a method"
                if value.fset is not None:
                    assert original.fset is not None, f"{real.__name__}.{name} cannot be set"
            elif inspect.isfunction(value):
                setattr(fake, name, _counted(value, counts(original, name)))
        return fake

    return decorate


def _counted(method: Any, allowed: list[tuple[int, int]]) -> Any:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any) -> Any:
        fits = any(fewest <= len(arguments) <= most for fewest, most in allowed)
        assert fits, f"{method.__name__} takes {allowed} arguments, not {len(arguments)}"
        return method(self, *arguments)

    return call
