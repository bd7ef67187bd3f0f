"""Tests that need a CUDA GPU: skipped, all of them, where it or what drives it is missing."""

from __future__ import annotations

import importlib.util

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if "tests/gpu/" in item.nodeid]
    missing = _missing()
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if missing:
            item.add_marker(pytest.mark.skip(reason=missing))


def _missing() -> str:
    for package in ("torch", "triton"):
        if importlib.util.find_spec(package) is None:
            return f"needs {package}"
    import torch

    return "" if torch.cuda.is_available() else "needs a CUDA GPU"
