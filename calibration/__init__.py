"""Choosing and checking lower precisions for a checkpoint.

Quantised precisions are not in this version: `build-engines` builds float32, and this package holds
nothing yet. Its place among the others is in docs/architecture.md.
"""
