"""Whether a module could be imported, without importing it."""

from __future__ import annotations

import importlib.util


def is_importable(module: str) -> bool:
    """Whether the module is found, as `onnx` or `cuda.bindings`; of a part its parent is imported.

    By what is there to import and not by the name of a distribution: several provide one module.
    """
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # no parent; a module in memory that says nothing of itself
        return False
