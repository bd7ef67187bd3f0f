"""Building engines: a checkpoint or a bundle in, a folder for one target and machine class out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engines.build import build_engines

__all__ = ["build_engines"]


def __getattr__(name: str) -> Any:
    # Imported when first used, so that `build-engines --help` answers at once.
    if name == "build_engines":
        from engines.build import build_engines

        return build_engines
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
