"""Checkpoint → bundle: reads a released checkpoint and exports its graphs to ONNX.

`export_checkpoint(checkpoint, bundle)` in Python, `python -m export CHECKPOINT BUNDLE` in a shell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from export.bundle import export_checkpoint
    from export.geometry import ExportOptions

__all__ = ["ExportOptions", "export_checkpoint"]


def __getattr__(name: str) -> Any:
    # Lazy, so that a command's --help and the header-only preflight do not wait for torch.
    if name == "export_checkpoint":
        from export.bundle import export_checkpoint

        return export_checkpoint
    if name == "ExportOptions":
        from export.geometry import ExportOptions

        return ExportOptions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
