"""The kernels' tensors out of a bundle's parameters: every one used, and meaning what it meant."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from benchmarks.talker_reference import DENSE, EXPERTS, SMALL_DENSE, SMALL_EXPERTS
from export.modules.experts import layer_of
from export.sizes import TransformerSizes
from trt_runtime.errors import UserError
from trt_runtime.plugins.layout import kernel_array, kernel_tensors
from trt_runtime.plugins.sizes import TalkerSizes

BOTH = pytest.mark.parametrize("sizes", [SMALL_DENSE, SMALL_EXPERTS], ids=["dense", "experts"])


def parameters(sizes: TalkerSizes) -> dict[str, np.ndarray]:
    """Random ones of the names and shapes of the exported talker, exact in bfloat16."""
    exported = TransformerSizes(
        hidden=sizes.hidden, layers=sizes.layers, heads=sizes.heads, kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim, intermediate=sizes.intermediate, rope_theta=sizes.rope_theta,
        rms_eps=sizes.rms_eps, vocab_size=8, window=(None,) * sizes.layers,
        qkv_bias=sizes.qkv_bias,
        experts=sizes.experts,
    )  # fmt: skip
    generator = np.random.default_rng(0)
    shapes = {"talker.norm": (sizes.hidden,)}
    for layer in range(sizes.layers):
        for name, value in layer_of(exported).named_parameters():
            shapes[f"talker.layers.{layer}.{name}"] = tuple(value.shape)
    return {
        name: generator.standard_normal(shape).astype(ml_dtypes.bfloat16).astype(np.float32)
        for name, shape in shapes.items()
    }


def arrays(sizes: TalkerSizes, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {tensor.name: kernel_array(sizes, tensor, given) for tensor in kernel_tensors(sizes)}


@BOTH
def test_every_parameter_has_its_place(sizes: TalkerSizes) -> None:
    given = parameters(sizes)
    assert {source for t in kernel_tensors(sizes) for source in t.sources} == set(given)
    for tensor in kernel_tensors(sizes):
        found = kernel_array(sizes, tensor, given)
        assert found.shape == tensor.shape
        assert found.dtype.name == tensor.dtype
        assert found.flags.c_contiguous
    total = sum(value.size for value in given.values())
    assert sum(int(np.prod(t.shape)) for t in kernel_tensors(sizes)) == total


@BOTH
def test_linear_weights_are_turned(sizes: TalkerSizes) -> None:
    given = parameters(sizes)
    found = arrays(sizes, given)
    at = "talker.layers.1."
    np.testing.assert_array_equal(found["layers.1.qkv"], given[f"{at}qkv_weight"].T)
    np.testing.assert_array_equal(found["layers.1.out"], given[f"{at}out_weight"].T)
    np.testing.assert_array_equal(found["norm"], given["talker.norm"])


@BOTH
def test_the_shared_swiglu_is_the_sum_of_its_parts(sizes: TalkerSizes) -> None:
    given = parameters(sizes)
    found = arrays(sizes, given)
    x = np.random.default_rng(1).standard_normal(sizes.hidden)

    def swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        return gate / (1 + np.exp(-gate)) * up

    at = "talker.layers.0."
    gate, up = np.split(x @ given[f"{at}gate_up_weight"].astype(np.float64), 2)
    expected = swiglu(gate, up) @ given[f"{at}down_weight"].astype(np.float64)
    y = np.zeros(sizes.hidden)
    for expert in range(sizes.routed_experts, sizes.routed_experts + sizes.shared_experts):
        both = found["layers.0.gate_up"][expert].astype(np.float64) @ x
        y += found["layers.0.down"][expert].astype(np.float64) @ swiglu(both[0::2], both[1::2])
    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-9)


def test_routed_experts_stay_as_the_bundle_has_them() -> None:
    given = parameters(SMALL_EXPERTS)
    found = arrays(SMALL_EXPERTS, given)
    count = SMALL_EXPERTS.routed_experts
    for kernel, bundle in (("gate_up", "experts_gate_up"), ("down", "experts_down")):
        expected = given[f"talker.layers.0.{bundle}"]
        np.testing.assert_array_equal(found[f"layers.0.{kernel}"][:count], expected)


def test_a_dense_talker_is_cut_into_parts_that_a_program_can_read() -> None:
    assert (DENSE.expert_width, DENSE.shared_experts) == (256, 19)
    assert (EXPERTS.expert_width, EXPERTS.shared_experts) == (1408, 2)
    assert replace(DENSE, intermediate=8960).expert_width == 1792


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"head_dim": 24}, "head_dim 24"),
        ({"hidden": 100}, "hidden 100"),
        ({"kv_heads": 5}, "heads"),
    ],
)
def test_sizes_that_the_kernels_cannot_take(change: dict[str, int], told: str) -> None:
    with pytest.raises(UserError, match=told):
        replace(SMALL_DENSE, **change)
