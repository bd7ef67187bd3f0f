"""The kernels on CPU tensors, run by Triton's interpreter: started by test_interpreted.py.

TRITON_INTERPRET=1 python -m tests.trt_runtime.plugins.interpreted
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from triton.runtime import interpreter

from benchmarks.talker_reference import SMALL_DENSE, SMALL_EXPERTS
from tests.gpu import checks


def mend_indices() -> None:
    """Triton 3.6 makes an index of an array of one element by int(), which NumPy 2.4 refuses."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: object) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def main() -> int:
    mend_indices()
    torch.set_num_threads(1)
    # bfloat16 is cut off here, not rounded, so that errors are twice those on a GPU.
    checks.TOLERANCE, checks.ROUTED_SHARE = 0.04, 0.7
    dense = checks.Talker(replace(SMALL_DENSE, layers=1), "cpu")
    experts = checks.Talker(replace(SMALL_EXPERTS, layers=1), "cpu")
    checks.prefill_and_decode_are_the_reference(dense, 18, 2, 16)
    checks.prefill_and_decode_are_the_reference(experts, 10, 2, 16)
    checks.experts_of_sorted_rows_are_the_reference(experts, 8, 6)
    checks.a_larger_bucket_leaves_other_slots_alone(experts, 4, 3, 4)
    return 0


if __name__ == "__main__":
    sys.exit(main())
