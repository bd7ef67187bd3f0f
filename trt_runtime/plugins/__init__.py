"""The talker on a CUDA GPU: our own kernels in Triton, one CUDA graph a bucket of slots.

    tensors = {t.name: kernel_array(sizes, t, parameters) for t in kernel_tensors(sizes)}  # layout
    loop = PluginLoop(sizes, weights, slots=8, cache_length=2048)                          # loop
    loop.prefill(slot, prompt)        # hidden[slot] of the prompt's last row
    loop.embedding[:n, 0] = ...       # the tail of a step writes it
    loop.decode(n)                    # hidden[:n]; slots from n on stay as they are

The only package of the runtime that imports torch and triton, and only when a module of it that
needs them is imported: :mod:`sizes`, :mod:`layout` and :mod:`tiles` do without. torch gives
buffers, launches and graph capture; every arithmetic of a step is a kernel of this package.

A layer is five kernels: `project_qkv`, `attend`, `project_residual` (out), `gate_up` with the
router in it, `project_residual` (down). A chunk of a prefill sorts its rows by expert instead of
the last two: :mod:`grouped`. No kernel adds by float atomics: where programs share a sum, the last
to arrive adds the parts in their order, so that a run repeats bit by bit and equal rows stay equal.
"""
