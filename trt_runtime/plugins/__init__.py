"""The talker on a CUDA GPU: our own kernels in Triton, one CUDA graph a bucket of slots.

The only package of the runtime that imports torch and triton, and only when a module of it that
needs them is imported: :mod:`sizes`, :mod:`layout` and :mod:`tiles` do without. torch gives
buffers, launches and graph capture; every arithmetic of a step is a kernel of this package.
"""
