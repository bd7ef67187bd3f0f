"""One test of the operator, which every implementation of it must pass.

The reference is written from `trt_runtime/operators.py` in float64, query by query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from engines.onnxruntime_kernels import use_kernels
from engines.operator_forms import NATIVE, expand_operators
from export.modules.attention import cached_attention
from tests.operators.one_node import (
    Arrays,
    inputs_of,
    model_of,
    run_by_onnx,
    run_by_onnxruntime,
    session_of,
    with_kernel,
    without_our_attribute,
)
from trt_runtime.contract import NEXT
from trt_runtime.operators import CACHED_ATTENTION

#: float32 sums over some ten to hundred terms, in another order, and float32 angles.
TOLERANCE = 1e-5
CACHES = ("key_cache", "value_cache")
#: What has an entry a slot.
BY_SLOT = ("qkv", "position", *CACHES, "attended", *(name + NEXT for name in CACHES))


@dataclass(frozen=True)
class Case:
    """`position` is that of each slot's first token; no window: all entries are seen."""

    position: tuple[int, ...]
    tokens: int = 1
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    window: int | None = None
    length: int = 40

    @property
    def sizes(self) -> dict[str, int]:
        window = self.length if self.window is None else self.window
        return {"heads": self.heads, "kv_heads": self.kv_heads, "window": window}


#: What ONNX Runtime's kernel does too.
KERNEL_CASES = {
    "first": Case((0,)),
    "middle": Case((17,)),
    "last": Case((39,)),
    "several slots": Case((0, 17, 39, 5)),
    "a prompt's start": Case((0,), tokens=8),
    "a prompt's next chunk": Case((13,), tokens=8),
    "a prompt's last chunk": Case((32,), tokens=8),
    "no groups": Case((9, 3), heads=3, kv_heads=3),
    "groups of seven": Case((9, 3), heads=14, kv_heads=2),
    "groups of seven, a chunk": Case((6,), tokens=8, heads=7, kv_heads=1),
    "heads of 64": Case((9, 3), head_dim=64),
    "heads of 128": Case((9, 3), head_dim=128),
    "heads of 128, a chunk": Case((6,), tokens=8, head_dim=128),
}
#: What it does not: its node keeps the function.
FUNCTION_CASES = {
    "heads of 12": Case((9, 3), head_dim=12),
    "heads of 8, a chunk": Case((6,), tokens=8, head_dim=8),
    "a window": Case((0, 4, 17, 39), window=6),
    "a window of none but itself": Case((0, 17), window=0),
    "a window within a chunk": Case((0,), tokens=8, window=3),
    "a window before a chunk": Case((13,), tokens=8, window=6),
    "a chunk of several slots": Case((0, 11), tokens=5),
}
CASES = KERNEL_CASES | FUNCTION_CASES


def arrays(case: Case, seed: int = 1) -> Arrays:
    """Inputs of the operator; what the caches hold from each slot's position on is stale."""
    g = np.random.default_rng(seed)

    def drawn(*shape: int) -> np.ndarray:
        return g.standard_normal((len(case.position), *shape)).astype(np.float32)

    exponents = np.arange(0, case.head_dim, 2) / case.head_dim
    cache = (case.kv_heads, case.length, case.head_dim)
    return {
        "qkv": drawn(case.tokens, (case.heads + 2 * case.kv_heads) * case.head_dim),
        "position": np.array(case.position, np.int64),
        "inverse_frequencies": (10000.0**-exponents).astype(np.float32),
        "key_cache": drawn(*cache),
        "value_cache": drawn(*cache),
    }


def reference(a: Arrays, case: Case) -> list[np.ndarray]:
    qkv, _, frequencies, keys, values = (np.array(v, np.float64) for v in a.values())
    half = case.head_dim // 2
    attended = np.zeros((*qkv.shape[:2], case.heads, case.head_dim))

    def turned(x: np.ndarray, position: int) -> np.ndarray:
        cos, sin = np.cos(position * frequencies), np.sin(position * frequencies)
        first, second = x[:half], x[half:]
        return np.concatenate((first * cos - second * sin, second * cos + first * sin))

    for slot, start in enumerate(case.position):
        for token in range(case.tokens):
            position = start + token
            row = qkv[slot, token].reshape(-1, case.head_dim)
            for head in range(case.kv_heads):
                keys[slot, head, position] = turned(row[case.heads + head], position)
                values[slot, head, position] = row[case.heads + case.kv_heads + head]
            first = max(0, position - case.sizes["window"])
            for head in range(case.heads):
                of_key = head * case.kv_heads // case.heads
                seen = keys[slot, of_key, first : position + 1]
                scores = seen @ turned(row[head], position) / np.sqrt(case.head_dim)
                weights = np.exp(scores - scores.max())
                mixed = weights @ values[slot, of_key, first : position + 1]
                attended[slot, token, head] = mixed / weights.sum()
    return [attended.reshape(*qkv.shape[:2], -1), keys, values]


Implementation = Callable[[Arrays, Case], list[np.ndarray]]


def model(a: Arrays, case: Case) -> onnx.ModelProto:
    """As a talker's graph has it: any number of slots take one token each, or one a chunk."""
    outputs = {"attended": (*a["qkv"].shape[:2], case.heads * case.head_dim)}
    outputs |= {name + NEXT: a[name].shape for name in CACHES}
    return model_of(
        CACHED_ATTENTION, a, outputs, case.sizes, constants=("inverse_frequencies",),
        by_slot=BY_SLOT if case.tokens == 1 else (),
    )  # fmt: skip


def torch_module(a: Arrays, case: Case) -> list[np.ndarray]:
    tensors = [torch.from_numpy(value) for value in a.values()]
    return [made.numpy() for made in cached_attention(*tensors, *case.sizes.values())]


def body_by_onnx(a: Arrays, case: Case) -> list[np.ndarray]:
    return run_by_onnx(model(a, case), a)


def body_by_onnxruntime(a: Arrays, case: Case) -> list[np.ndarray]:
    return run_by_onnxruntime(model(a, case), a)


def kernel_of_onnxruntime(a: Arrays, case: Case) -> list[np.ndarray]:
    return run_by_onnxruntime(with_kernel(model(a, case), "GroupQueryAttention"), a)


def kernel_in_place(a: Arrays, case: Case) -> list[np.ndarray]:
    """One buffer for a cache before and after, as a backend that updates in place binds it."""
    kernel = with_kernel(model(a, case), "GroupQueryAttention")
    session = session_of(kernel)
    binding = session.io_binding()
    memory = {name: value.copy() for name, value in inputs_of(kernel, a).items()}
    buffers = {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in memory.items()}
    for name, buffer in buffers.items():
        binding.bind_ortvalue_input(name, buffer)
    binding.bind_output("attended")
    for name in CACHES:
        binding.bind_ortvalue_output(name + NEXT, buffers[name])
    session.run_with_iobinding(binding)
    return [binding.get_outputs()[0].numpy(), *(memory[name] for name in CACHES)]


def native_layers(a: Arrays, case: Case) -> list[np.ndarray]:
    """What TensorRT's parser makes its own layers of, run by ONNX Runtime's CPU kernels."""
    native = model(a, case)
    assert expand_operators(native, native=True) == {CACHED_ATTENTION: NATIVE}
    without_our_attribute(native)
    return run_by_onnxruntime(native, a)


FUNCTIONS: list[Implementation] = [torch_module, body_by_onnx, body_by_onnxruntime, native_layers]
KERNELS: list[Implementation] = [kernel_of_onnxruntime, kernel_in_place]
every_implementation = pytest.mark.parametrize(
    "implementation", FUNCTIONS + KERNELS, ids=lambda f: f.__name__
)


@pytest.mark.parametrize(
    ("implementation", "case"),
    [
        pytest.param(implementation, case, id=f"{implementation.__name__}-{name}")
        for implementation in FUNCTIONS + KERNELS
        for name, case in (CASES if implementation in FUNCTIONS else KERNEL_CASES).items()
    ],
)
def test_it_means_the_same(implementation: Implementation, case: Case) -> None:
    a = arrays(case)
    for made, wanted in zip(
        defined(implementation(a, case), case), defined(reference(a, case), case), strict=True
    ):
        assert made.shape == wanted.shape
        assert np.abs(made - wanted).max() / np.abs(wanted).max() < TOLERANCE


def defined(outputs: list[np.ndarray], case: Case) -> list[np.ndarray]:
    """The operator's outputs, zero where its caches may hold anything."""
    attended, *caches = outputs
    caches = [cache.copy() for cache in caches]
    for cache in caches:
        for slot, start in enumerate(case.position):
            cache[slot, :, start + case.tokens :] = 0.0
    return [attended, *caches]


@pytest.mark.parametrize("name", FUNCTION_CASES)
def test_what_the_kernel_cannot_do_keeps_its_function(name: str) -> None:
    case = FUNCTION_CASES[name]
    kept = model(arrays(case), case)
    use_kernels(kept)
    assert [node.op_type for node in kept.graph.node] == [CACHED_ATTENTION]
    assert [function.name for function in kept.functions] == [CACHED_ATTENTION]


@every_implementation
@pytest.mark.parametrize("scale", [0.0, 1e3, 1e30])
@pytest.mark.parametrize(
    "case", [Case((0, 17, 36, 5)), Case((13,), tokens=8)], ids=["step", "chunk"]
)
def test_what_the_caches_hold_beyond_changes_nothing(
    implementation: Implementation, case: Case, scale: float
) -> None:
    a = arrays(case)
    other = {name: value.copy() for name, value in a.items()}
    for slot, start in enumerate(case.position):
        for name in CACHES:
            other[name][slot, :, start:] *= scale
    for made, wanted in zip(
        defined(implementation(other, case), case), defined(implementation(a, case), case),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_array_equal(made, wanted)


@every_implementation
def test_identical_slots_are_identical(implementation: Implementation) -> None:
    one = Case((17,), heads=14)
    several = replace(one, position=(17, 17, 17))
    a = arrays(one)
    same = {n: np.repeat(v, 3, 0) if n in BY_SLOT else v for n, v in a.items()}
    for made in defined(implementation(same, several), several):
        for slot in (1, 2):
            np.testing.assert_array_equal(made[slot], made[0])


@every_implementation
@pytest.mark.parametrize("head_dim", [16, 64])
def test_a_slot_does_not_depend_on_its_neighbours(
    implementation: Implementation, head_dim: int
) -> None:
    """To the bit, in each of them: a slot's sums are made in an order of its own."""
    case = Case((0, 17, 39, 5), heads=14, head_dim=head_dim)
    a = arrays(case)
    together = defined(implementation(a, case), case)
    for slot, position in enumerate(case.position):
        alone = {n: v[slot : slot + 1] if n in BY_SLOT else v for n, v in a.items()}
        own = replace(case, position=(position,))
        for one, made in zip(defined(implementation(alone, own), own), together, strict=True):
            np.testing.assert_array_equal(one[0], made[slot])


@pytest.mark.parametrize("implementation", KERNELS, ids=lambda f: f.__name__)
def test_a_chunk_is_its_tokens_one_by_one(implementation: Implementation) -> None:
    chunk = Case((13,), tokens=4)
    a = arrays(chunk)
    whole = defined(implementation(a, chunk), chunk)
    rows = []
    for token in range(chunk.tokens):
        step = replace(chunk, position=(13 + token,), tokens=1)
        given = a | {
            "qkv": a["qkv"][:, token : token + 1],
            "position": np.array(step.position, np.int64),
        }
        row, a["key_cache"], a["value_cache"] = implementation(given, step)
        rows.append(row)
    stepped = [np.concatenate(rows, 1), a["key_cache"], a["value_cache"]]
    for made, wanted in zip(defined(stepped, chunk), whole, strict=True):
        np.testing.assert_allclose(made, wanted, rtol=0, atol=TOLERANCE * np.abs(wanted).max())
