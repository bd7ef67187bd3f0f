"""Comparing two sides, a reference and what is judged: component by component, then the loop."""
