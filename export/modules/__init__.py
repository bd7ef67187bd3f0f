"""Torch modules of each component, written to be traced: static shapes, few and large matmuls.

Parameters are declared with :func:`parameter` under the names of the family tables
(`export.families`); linear weights are stored (in, out), so that a layer is `x @ weight`.
"""
