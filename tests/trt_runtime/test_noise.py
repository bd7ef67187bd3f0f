"""The noise generator against published vectors, its statistics, and recordings that do not fit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trt_runtime import noise
from trt_runtime.errors import UserError
from trt_runtime.noise import RecordedNoise, SeededNoise, Stream, noise_source, normal, philox4x32

# tests/kat_vectors of Random123 (D. E. Shaw Research): philox4x32, 10 rounds.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


# Bits of the first numbers, float32. They must never change: users keep seeds.
FROZEN_INITIAL = [0x3F7DBB33, 0xBF6CB6B0, 0xBF1E1B9F, 0xBEF6D1B2, 0xBE1D5357, 0x3E392A6D]
FROZEN_DIFFUSION = [0x3F7DA90D, 0xBE9108F9, 0x3D9A2899, 0x3F0937BE, 0xBCD49CF3, 0xBF6FA1FA]
FROZEN_POSTERIOR = [0x40112B48, 0xBFA1B385]


def words(text: str) -> np.ndarray:
    return np.array([int(word, 16) for word in text.split()], np.uint32)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, expected):
    result = philox4x32(words(counter)[None], words(key))
    assert result.dtype == np.uint32
    assert result.tolist() == [words(expected).tolist()]


def test_philox_rows_are_independent_of_each_other():
    counter = np.stack([words(row[0]) for row in KNOWN_ANSWERS])
    together = philox4x32(counter, words("a4093822 299f31d0"))
    alone = [philox4x32(row[None], words("a4093822 299f31d0"))[0] for row in counter]
    assert np.array_equal(together, np.stack(alone))


def test_a_change_of_the_stream_is_noticed():
    assert normal(0, 0, Stream.INITIAL, (6,)).view(np.uint32).tolist() == FROZEN_INITIAL
    assert (
        normal(2**64 - 1, 199, Stream.DIFFUSION, (6,)).view(np.uint32).tolist() == FROZEN_DIFFUSION
    )
    assert normal(1 << 32, 3, Stream.POSTERIOR, (2,)).view(np.uint32).tolist() == FROZEN_POSTERIOR


def test_the_layout_is_box_muller_on_consecutive_words():
    """The same numbers from scalar arithmetic: what another implementation has to do."""
    block = philox4x32(np.array([[1, 6, Stream.DIFFUSION, 0]], np.uint32), words("5 9"))[0]
    expected = []
    for first, second in (block[:2].tolist(), block[2:].tolist()):
        radius, angle = math.sqrt(-2 * math.log((first + 1) / 2**32)), 2 * math.pi * second / 2**32
        expected += [radius * math.cos(angle), radius * math.sin(angle)]
    drawn = normal((9 << 32) + 5, 6, Stream.DIFFUSION, (2, 4))[1]
    assert drawn == pytest.approx(expected, rel=1e-6)


def test_log_sine_and_cosine_agree_with_the_library():
    u = (np.arange(1, 200001) / 200000.0) ** 3
    u[:3] = 2.0**-32, 2.0**-31, 1.0 - 2.0**-32
    # The sum e log 2 + log m loses a few units in the last place where the two cancel.
    assert np.allclose(noise._log(u), np.log(u), rtol=4e-15, atol=1e-16)
    turns = np.arange(100000) / 100000.0
    # 2 pi t is rounded before the library sees it, to about 7e-16.
    cosine, sine = noise._cosine_and_sine_of_turns(turns)
    assert np.abs(cosine - np.cos(2 * np.pi * turns)).max() < 1e-15
    assert np.abs(sine - np.sin(2 * np.pi * turns)).max() < 1e-15


def test_extreme_words_give_finite_numbers():
    extremes = np.array([[0, 0, 0xFFFFFFFF, 0xFFFFFFFF], [0, 0x80000000, 0, 0x40000000]], np.uint32)
    values = noise._box_muller(extremes)
    assert np.isfinite(values).all()
    assert np.abs(values).max() == pytest.approx(np.sqrt(64 * np.log(2)), rel=1e-6)


def test_moments_and_tails_are_those_of_a_normal():
    x = normal(7, 0, Stream.INITIAL, (1_000_000,)).astype(np.float64)
    # Five standard errors each.
    assert abs(x.mean()) < 5e-3
    assert abs(x.var() - 1) < 5 * np.sqrt(2 / x.size)
    assert abs((x**3).mean()) < 5 * np.sqrt(15 / x.size)
    assert abs((x**4).mean() - 3) < 5 * np.sqrt(96 / x.size)
    assert abs((np.abs(x) > 1.959964).mean() - 0.05) < 5 * np.sqrt(0.05 * 0.95 / x.size)
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 5e-3
    assert abs(np.corrcoef(x[0::2], x[1::2])[0, 1]) < 5 / np.sqrt(x.size / 2)


@pytest.mark.parametrize(
    "other", [(1, 0, 0), (1 << 32, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 2)],
    ids=["seed", "high word of the seed", "step", "diffusion", "posterior"],
)  # fmt: skip
def test_another_seed_step_or_stream_is_independent(other):
    x, y = normal(0, 0, 0, (100_000,)), normal(*other, (100_000,))
    assert not np.isin(x, y).all()
    assert abs(np.corrcoef(x, y)[0, 1]) < 5 / np.sqrt(100_000)


def test_a_step_does_not_depend_on_other_steps():
    source = SeededNoise(seed=3, patch=4, latent_dim=16, solver_steps=10)
    in_order = [(source.initial(step), source.diffusion(step)) for step in range(5)]
    alone = SeededNoise(seed=3, patch=4, latent_dim=16, solver_steps=10)
    assert np.array_equal(alone.diffusion(4), in_order[4][1])
    assert np.array_equal(alone.initial(2), in_order[2][0])
    assert in_order[0][0].shape == (4, 16)
    assert in_order[0][0].dtype == np.float32
    assert in_order[0][1].shape == (9, 4, 16)
    assert in_order[0][1].dtype == np.float32


def test_a_shorter_draw_begins_a_longer_one():
    long = normal(5, 2, Stream.INITIAL, (3, 7))
    assert np.array_equal(normal(5, 2, Stream.INITIAL, (5,)), long.reshape(-1)[:5])
    assert normal(5, 2, Stream.INITIAL, (0, 4)).shape == (0, 4)


@pytest.mark.parametrize("seed", [-1, 2**64, True, np.bool_(False), 1.0, "0", None])
def test_seeds_out_of_range_are_refused(seed):
    with pytest.raises(UserError, match=r"whole number from 0 to 18446744073709551615"):
        normal(seed, 0, 0, (1,))


@pytest.mark.parametrize("seed", [0, 2**64 - 1, np.int64(5), np.uint64(2**64 - 1)])
def test_seeds_in_range_are_taken(seed):
    assert np.array_equal(normal(seed, 0, 0, (4,)), normal(int(seed), 0, 0, (4,)))


def recording(steps=3, **changes):
    arrays = {
        "initial": np.ones((steps, 4, 16), np.float32),
        "diffusion": np.ones((steps, 9, 4, 16), np.float32),
    }
    return RecordedNoise(**(arrays | changes))


def source_of(recorded, noise_scale=0.5):
    return noise_source(
        recorded, seed=0, noise_scale=noise_scale, patch=4, latent_dim=16, solver_steps=10
    )


def test_recorded_noise_is_replayed():
    generator = np.random.default_rng(0)
    initial = generator.standard_normal((3, 4, 16), np.float32)
    diffusion = generator.standard_normal((3, 9, 4, 16), np.float32)
    source = source_of(RecordedNoise(initial, diffusion, np.zeros((8, 16), np.float32)))
    assert np.array_equal(source.initial(2), initial[2])
    assert np.array_equal(source.diffusion(1), diffusion[1])


def test_without_a_recording_the_seed_decides():
    assert source_of(None) == SeededNoise(0, 4, 16, 10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"initial": np.ones((3, 4, 15), np.float32)}, r"initial[\s\S]*shape \(3, 4, 15\)"),
        ({"initial": np.ones((3, 64), np.float32)}, r"initial[\s\S]*shape \(3, 64\)"),
        ({"initial": np.ones((3, 4, 16))}, r"initial[\s\S]*dtype float64"),
        ({"initial": [[1.0]]}, r"initial[\s\S]*list"),
        ({"initial": np.ones((0, 4, 16), np.float32)}, r"initial[\s\S]*empty"),
        ({"initial": np.full((3, 4, 16), np.nan, np.float32)}, r"initial[\s\S]*192 values"),
        ({"diffusion": np.ones((2, 9, 4, 16), np.float32)}, r"diffusion[\s\S]*\(2, 9, 4, 16\)"),
        ({"diffusion": np.ones((3, 10, 4, 16), np.float32)}, r"diffusion[\s\S]*\(3, 10, 4, 16\)"),
        ({"diffusion": np.full((3, 9, 4, 16), np.inf, np.float32)}, r"diffusion[\s\S]*infinite"),
        ({"posterior": np.ones((8, 4), np.float32)}, r"posterior[\s\S]*\(8, 4\)"),
    ],
)
def test_a_recording_that_does_not_fit_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        source_of(recording(**changes))


def test_steps_past_the_recording_are_refused():
    source = source_of(recording(steps=3))
    source.initial(2)
    for draw in (source.initial, source.diffusion):
        with pytest.raises(UserError, match=r"at most 3 steps[\s\S]*step 4[\s\S]*max_steps=3"):
            draw(3)


def test_temperature_needs_recorded_diffusion_noise():
    with pytest.raises(UserError, match=r"no diffusion noise"):
        source_of(recording(diffusion=None))
    source = source_of(recording(diffusion=None), noise_scale=0.0)
    assert np.array_equal(source.diffusion(0), np.zeros((9, 4, 16), np.float32))
