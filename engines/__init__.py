"""Building engines: a checkpoint or a bundle in, a folder for one target and machine class out.

`compare` judges what was built by what it was built from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engines.build import build_engines
    from engines.comparison.compare import compare

__all__ = ["build_engines", "compare"]


def __getattr__(name: str) -> Any:
    # Imported when first used, so that a command's --help answers at once.
    if name == "build_engines":
        from engines.build import build_engines

        return build_engines
    if name == "compare":
        from engines.comparison.packages import TO_COMPARE, require_packages

        require_packages("Comparing", TO_COMPARE)

        from engines.comparison.compare import compare

        return compare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
