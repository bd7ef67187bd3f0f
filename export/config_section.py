"""Reading numbers out of a checkpoint's config.json, with errors that name the dotted key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trt_runtime.errors import UserError

_DO = "check config.json against the checkpoint it came with"


class ConfigSection:
    """One JSON object of the config and the dotted name under which errors speak of it."""

    def __init__(self, values: Mapping[str, Any], name: str = "") -> None:
        self.values = values
        self.name = name

    def dotted(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def section(self, key: str) -> ConfigSection:
        """The object under `key`; raises UserError where it is missing or not an object."""
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise self.error(key, "a JSON object")
        return ConfigSection(value, self.dotted(key))

    def integer(self, key: str, *, most: int, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least` to `most`.

        `default` stands for a missing or null key; without it the key is required.
        """
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        # 4.0 is how some writers store 4; anything between two integers is a mistake.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str, *, above: float, most: float, default: float | None = None) -> float:
        """A finite number greater than `above` and at most `most`; `default` as for integer."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, "a number")
        if not above < value <= most:  # false for NaN too
            raise self.error(key, f"a number above {above:g} and at most {most:g}")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def require(self, key: str, allowed: tuple[Any, ...], expected: str) -> None:
        """Raises UserError unless the value under `key` (None where missing) is one of `allowed`.

        For switches that would change the arithmetic: an unknown setting is refused by name rather
        than ignored.
        """
        value = self.values.get(key)
        if not any(
            value is item or (value == item and type(value) is type(item)) for item in allowed
        ):
            raise self.error(key, expected)

    def error(self, key: str, expected: str) -> UserError:
        """The error for an impossible value under `key`."""
        found = repr(self.values[key]) if key in self.values else "no such key"
        return UserError(
            f"config.json: {self.dotted(key)} cannot be used",
            expected=expected,
            found=found if len(found) <= 200 else found[:200] + "...",
            do=_DO,
        )
