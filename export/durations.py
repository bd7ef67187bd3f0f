"""Seconds as people say them."""

from __future__ import annotations


def about(seconds: float) -> str:
    """For instance "about 40 s", "about 3 minutes"."""
    return f"about {seconds:.0f} s" if seconds < 120 else f"about {seconds / 60:.0f} minutes"
