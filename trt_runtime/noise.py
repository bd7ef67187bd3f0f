"""The noise of a request: drawn from a counter by seed and step, or replayed from a recording.

Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011) makes the
random words, Box-Muller (1958) the normal numbers. Nothing is carried between draws, so a step's
noise depends on the seed and the step alone. Logarithm, sine and cosine are written out from IEEE
additions, multiplications, divisions and square roots, which round the same way on every machine;
library versions of them differ in the last bit between processors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trt_runtime.errors import UserError
from trt_runtime.numeric import whole_number
from trt_runtime.printable import shown

LARGEST_SEED = 2**64 - 1

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW_WORD = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)


class Stream(IntEnum):
    """What is drawn. A word of the counter, so that no two kinds of noise share numbers."""

    INITIAL = 0
    DIFFUSION = 1
    POSTERIOR = 2
    ATTEMPT = 3


def check_seed(seed: object) -> int:
    """`seed` as an int; raises UserError unless it is a whole number of 0 to 2**64 - 1."""
    value = whole_number(seed, 0, LARGEST_SEED)
    if value is not None:
        return value
    raise UserError(
        "The seed cannot be used",
        expected=f"a whole number from 0 to {LARGEST_SEED}",
        found=shown(seed),
        do="choose a seed in that range",
    )


def philox4x32(counter: NDArray[np.uint32], key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Philox4x32 with 10 rounds.

    counter: (n, 4) uint32, one block a row. key: (2,) uint32. Returns (n, 4) uint32.
    """
    c0, c1, c2, c3 = counter.astype(np.uint64).T
    k0, k1 = int(key[0]), int(key[1])
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _WORD_BITS) ^ c1 ^ np.uint64(k0),
            product1 & _LOW_WORD,
            (product0 >> _WORD_BITS) ^ c3 ^ np.uint64(k1),
            product0 & _LOW_WORD,
        )
        k0 = (k0 + _KEY_INCREMENTS[0]) & 0xFFFFFFFF
        k1 = (k1 + _KEY_INCREMENTS[1]) & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3), axis=1).astype(np.uint32)


def normal(seed: int, step: int, stream: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Standard normal numbers, float32 of `shape` (row-major), a function of the arguments alone.

    Block b of the counter (b, step, stream, 0) gives numbers 4b to 4b + 3, so a shorter draw is the
    beginning of a longer one. Raises UserError for a seed out of range, ValueError for a step or a
    shape that a 32-bit counter word cannot hold.
    """
    seed = check_seed(seed)
    count = math.prod(shape)
    blocks = -(-count // 4)
    if not 0 <= step < 2**32 or blocks >= 2**32:
        raise ValueError(f"step {step} and shape {shape} do not fit the counter")
    counter = np.zeros((blocks, 4), np.uint32)
    counter[:, 0] = np.arange(blocks, dtype=np.uint32)
    counter[:, 1] = step
    counter[:, 2] = stream
    key = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)
    words = philox4x32(counter, key)
    return _box_muller(words).reshape(-1)[:count].reshape(shape)


def derived_seed(seed: int, attempt: int) -> int:
    """The seed of a further attempt at what `seed` did not do well; `seed` itself for attempt 0."""
    seed = check_seed(seed)
    if not attempt:
        return seed
    counter = np.array([[0, attempt, Stream.ATTEMPT, 0]], np.uint32)
    words = philox4x32(counter, np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32))[0]
    return int(words[0]) | int(words[1]) << 32


def _box_muller(words: NDArray[np.uint32]) -> NDArray[np.float32]:
    """(n, 4) random words to (n, 4) normal numbers: words 0 and 1 make two, words 2 and 3 two."""
    uniform = words.astype(np.float64) * 2.0**-32
    # Shifted from [0, 1) to (0, 1], where the logarithm is finite for every word.
    radius = np.sqrt(-2.0 * _log(uniform[:, 0::2] + 2.0**-32))
    cosine, sine = _cosine_and_sine_of_turns(uniform[:, 1::2])
    pairs = np.stack((radius * cosine, radius * sine), axis=2)
    return pairs.reshape(words.shape).astype(np.float32)


#: 2 atanh(s) / s as a series in s*s; with |s| <= 0.172 eleven terms reach float64.
_ATANH_SERIES = tuple(2.0 / (2 * n + 1) for n in range(11))
#: Taylor series in x*x; with |x| <= pi / 4 nine terms reach float64.
_SINE_SERIES = tuple((-1) ** n / math.factorial(2 * n + 1) for n in range(9))
_COSINE_SERIES = tuple((-1) ** n / math.factorial(2 * n) for n in range(9))


def _polynomial(coefficients: tuple[float, ...], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Horner's rule; each operation is rounded on its own, which a fused library call might not."""
    total = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def _log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithm of positive numbers: log(m 2^e) = e log 2 + 2 atanh((m - 1) / (m + 1))."""
    mantissa, exponent = np.frexp(x)
    small = mantissa < math.sqrt(0.5)
    mantissa = np.where(small, 2.0 * mantissa, mantissa)
    exponent = exponent - small
    s = (mantissa - 1.0) / (mantissa + 1.0)
    return exponent * math.log(2.0) + s * _polynomial(_ATANH_SERIES, s * s)


def _cosine_and_sine_of_turns(
    turns: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """cos(2 pi t) and sin(2 pi t) for t in [0, 1): whole quarter turns first, then the rest."""
    quarter = np.rint(4.0 * turns)
    x = (4.0 * turns - quarter) * (math.pi / 2)
    cosine = _polynomial(_COSINE_SERIES, x * x)
    sine = x * _polynomial(_SINE_SERIES, x * x)
    quarter = quarter.astype(np.int64) % 4
    odd = quarter % 2 == 1
    cosine_sign = np.where((quarter == 1) | (quarter == 2), -1.0, 1.0)
    sine_sign = np.where(quarter >= 2, -1.0, 1.0)
    return cosine_sign * np.where(odd, sine, cosine), sine_sign * np.where(odd, cosine, sine)


class NoiseSource(Protocol):
    """Where a request's noise comes from. Steps count from 0."""

    def initial(self, step: int) -> NDArray[np.float32]:
        """The noise that step `step` starts from: (patch, latent_dim) float32."""
        ...

    def diffusion(self, step: int) -> NDArray[np.float32]:
        """The noise added inside step `step`: (solver_steps - 1, patch, latent_dim) float32."""
        ...


@dataclass(frozen=True)
class SeededNoise:
    """Noise drawn from the counter-based generator; a :class:`NoiseSource`."""

    seed: int
    patch: int
    latent_dim: int
    solver_steps: int

    def initial(self, step: int) -> NDArray[np.float32]:
        return normal(self.seed, step, Stream.INITIAL, (self.patch, self.latent_dim))

    def diffusion(self, step: int) -> NDArray[np.float32]:
        shape = (self.solver_steps - 1, self.patch, self.latent_dim)
        return normal(self.seed, step, Stream.DIFFUSION, shape)


@dataclass(frozen=True, eq=False)
class RecordedNoise:
    """Noise that replaces the generator, as a reference run drew it.

    initial: (steps, patch, latent_dim) float32. diffusion: (steps, solver_steps - 1, patch,
    latent_dim) float32, needed where the temperature is above 0. posterior: (latents, latent_dim)
    float32, for a reference wave.
    """

    initial: NDArray[np.float32]
    diffusion: NDArray[np.float32] | None = None
    posterior: NDArray[np.float32] | None = None

    def check(self, patch: int, latent_dim: int, solver_steps: int) -> None:
        """Raises UserError unless every array fits a model of these sizes and is finite float32."""
        _check_array("initial", self.initial, (None, patch, latent_dim))
        if self.diffusion is not None:
            steps = self.initial.shape[0]
            _check_array("diffusion", self.diffusion, (steps, solver_steps - 1, patch, latent_dim))
        if self.posterior is not None:
            _check_array("posterior", self.posterior, (None, latent_dim))


def _check_array(name: str, array: object, shape: tuple[int | None, ...]) -> None:
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    expected = f"a NumPy array of float32 with shape ({sizes})"
    if not isinstance(array, np.ndarray):
        found = type(array).__name__
    elif array.dtype != np.float32:
        found = f"dtype {array.dtype}"
    elif len(array.shape) != len(shape) or any(
        wanted is not None and wanted != size
        for wanted, size in zip(shape, array.shape, strict=True)
    ):
        found = f"shape {array.shape}"
    elif array.shape[0] == 0:
        found = "an empty array"
    elif not np.isfinite(array).all():
        found = f"{int((~np.isfinite(array)).sum())} values that are NaN or infinite"
    else:
        return
    raise UserError(
        f"RecordedNoise.{name} does not fit this model",
        expected=expected,
        found=found,
        do="record the noise with a model of the same sizes, as float32",
    )


@dataclass(frozen=True, eq=False)
class ReplayedNoise:
    """A :class:`RecordedNoise` that was checked against a model; a :class:`NoiseSource`."""

    recorded: RecordedNoise
    solver_steps: int

    def initial(self, step: int) -> NDArray[np.float32]:
        """Raises UserError where the recording has ended."""
        self._check_step(step)
        return np.ascontiguousarray(self.recorded.initial[step])

    def diffusion(self, step: int) -> NDArray[np.float32]:
        """Zeros where none was recorded. Raises UserError where the recording has ended."""
        self._check_step(step)
        if self.recorded.diffusion is None:
            shape = (self.solver_steps - 1, *self.recorded.initial.shape[1:])
            return np.zeros(shape, np.float32)
        return np.ascontiguousarray(self.recorded.diffusion[step])

    def _check_step(self, step: int) -> None:
        steps = self.recorded.initial.shape[0]
        if step >= steps:
            raise UserError(
                "The request takes more steps than its noise was recorded for",
                expected=f"at most {steps} steps",
                found=f"step {step + 1}",
                do=f"record more steps, or ask for max_steps={steps}",
            )


def noise_source(
    recorded: RecordedNoise | None,
    *,
    seed: int,
    noise_scale: float,
    patch: int,
    latent_dim: int,
    solver_steps: int,
) -> NoiseSource:
    """The source for one request: `recorded` where there is one, else the generator with `seed`.

    noise_scale is sigma * sqrt(temperature). Raises UserError where `recorded` does not fit the
    model, or holds no diffusion noise and noise_scale is not 0.
    """
    if recorded is None:
        return SeededNoise(check_seed(seed), patch, latent_dim, solver_steps)
    recorded.check(patch, latent_dim, solver_steps)
    if recorded.diffusion is None and noise_scale > 0:
        raise UserError(
            "RecordedNoise holds no diffusion noise, and the temperature is above 0",
            expected=f"diffusion of shape (steps, {solver_steps - 1}, {patch}, {latent_dim})",
            do="give RecordedNoise(diffusion=...), or ask for temperature=0",
        )
    return ReplayedNoise(recorded, solver_steps)
