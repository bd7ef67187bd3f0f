"""What both sides are given: recorded in a .npz file, or drawn from a seed."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trt_runtime.contract import SPEAKER_DIM
from trt_runtime.errors import UserError, reason_of
from trt_runtime.geometry import Geometry
from trt_runtime.noise import SeededNoise, Stream, normal

#: Requests that step together, and steps that each component is tried at.
SLOTS, PROBE_STEPS = 3, 4
#: Of recorded inputs at the most: their memory is a cache each.
MOST_SLOTS = 64
#: Latents of the wave for the audio encoder, in its calls: the second is not a whole one.
WAVE_CALLS = 1.5
#: So that both rows of the guidance count, and the noise that is added at each solver step.
GUIDANCE, NOISE_SCALE = 2.0, 0.25
_LOUDNESS = 0.1


@dataclass(frozen=True)
class Inputs:
    """token_ids: (slots, tokens) int64, each slot's prompt. speaker_embedding: (192,) float32.

    wave: (samples,) float32. seed: of the noise of the loop. initial_noise: (steps, slots, patch,
    latent_dim), diffusion_noise: (steps, slots, solver_steps - 1, patch, latent_dim), both float32:
    of the components' probes, whose number of steps they give. chunks: tokens of a prefill call, of
    either side. spoken: whether the loop speaks sentences, and not these token_ids.
    """

    seed: int
    token_ids: NDArray[np.int64]
    speaker_embedding: NDArray[np.float32]
    wave: NDArray[np.float32]
    initial_noise: NDArray[np.float32]
    diffusion_noise: NDArray[np.float32]
    chunks: tuple[int, ...]
    spoken: bool = True

    @property
    def slots(self) -> int:
        return len(self.token_ids)

    @property
    def steps(self) -> int:
        return len(self.initial_noise)


def prompt_length(geometry: Geometry, other: Geometry) -> int:
    """Tokens that take a prefill call of every size, the last of them padded."""
    chunks = max(geometry.prefill_chunks, other.prefill_chunks, key=sum)
    room = min(geometry.cache_length, other.cache_length) // 2
    return max(2, min(sum(chunks) - chunks[0] // 2, room))


def seeded_inputs(geometry: Geometry, other: Geometry, seed: int, slots: int = SLOTS) -> Inputs:
    """Inputs for models of these sizes, the same on every machine for the same seed."""
    g = geometry
    tokens = prompt_length(geometry, other)
    noise = [
        SeededNoise(seed + slot, g.patch, g.latent_dim, g.solver_steps) for slot in range(slots)
    ]
    # Another stream than the noise's: neither is made of the other's numbers.
    uniform = normal(seed, 0, Stream.POSTERIOR, (slots * tokens,)).astype(np.float64)
    ids = np.floor(np.abs(uniform) * 1e6).astype(np.int64) % g.vocab_size
    samples = int(WAVE_CALLS * g.encoder_latents) * g.samples_per_latent - g.encoder_hop // 2
    limit = min(g.max_reference_latents, other.max_reference_latents) * g.samples_per_latent
    steps = range(PROBE_STEPS)
    return Inputs(
        seed=seed,
        token_ids=ids.reshape(slots, tokens),
        speaker_embedding=normal(seed, 1, Stream.POSTERIOR, (SPEAKER_DIM,)),
        wave=_LOUDNESS * normal(seed, 2, Stream.POSTERIOR, (min(samples, limit),)),
        initial_noise=np.stack([[n.initial(step) for n in noise] for step in steps]),
        diffusion_noise=np.stack([[n.diffusion(step) for n in noise] for step in steps]),
        chunks=tuple(sorted({*geometry.prefill_chunks, *other.prefill_chunks})),
    )


def recorded_inputs(path: Path, geometry: Geometry, other: Geometry, seed: int) -> Inputs:
    """Those of a .npz file, by the names of :class:`Inputs`; what it lacks is drawn from the seed.

    Raises UserError for a file that cannot be read, a name that means nothing, and an array of
    another shape or dtype, with numbers that are not finite, or of tokens that the model lacks.
    """
    arrays = _read(path)
    given = arrays.get("token_ids"), arrays.get("initial_noise")
    counts = [a.shape[axis] for axis, a in enumerate(given) if a is not None and a.ndim > axis]
    slots = min(max(counts[0], 1), MOST_SLOTS) if counts else SLOTS
    drawn = seeded_inputs(geometry, other, seed, slots)
    names = ("token_ids", "speaker_embedding", "wave", "initial_noise", "diffusion_noise")
    unknown = sorted(set(arrays) - set(names))
    if unknown or not arrays:
        raise _refused(path, f"arrays named {', '.join(names)}", ", ".join(unknown) or "no array")
    g = geometry
    found = {name: arrays.get(name, getattr(drawn, name)) for name in names}
    steps = found["initial_noise"].shape[0] if found["initial_noise"].ndim else 0
    draws = g.solver_steps - 1
    shapes: dict[str, tuple[int | None, ...]] = {
        "token_ids": (slots, None),
        "speaker_embedding": (SPEAKER_DIM,),
        "wave": (None,),
        "initial_noise": (None, slots, g.patch, g.latent_dim),
        "diffusion_noise": (steps, slots, draws, g.patch, g.latent_dim),
    }
    for name, shape in shapes.items():
        _check(path, name, found[name], shape)
    ids = found["token_ids"]
    longest = min(geometry.cache_length, other.cache_length) - steps
    if ids.min() < 0 or ids.max() >= g.vocab_size or ids.shape[1] > longest:
        raise _refused(
            path,
            f"token_ids from 0 to {g.vocab_size - 1}, at most {longest} a prompt",
            f"{ids.min()} to {ids.max()}, {ids.shape[1]} a prompt",
        )
    return Inputs(seed, **found, chunks=drawn.chunks, spoken="token_ids" not in arrays)


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it is no archive of arrays")
            arrays = {name: file[name] for name in file.files}
        if other := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"{other[0]} is no array")
        return arrays
    # What zip, zlib and numpy's reader of headers make of a damaged or hostile file.
    except (
        OSError,
        ValueError,
        EOFError,
        KeyError,
        TypeError,
        RuntimeError,
        MemoryError,
        OverflowError,
        SyntaxError,
        tokenize.TokenError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise _refused(path, "a file that numpy.savez wrote", reason_of(error)) from error


def _check(path: Path, name: str, array: np.ndarray, shape: tuple[int | None, ...]) -> None:
    dtype = "int64" if name == "token_ids" else "float32"
    fits = len(array.shape) == len(shape) and all(
        size == wanted if wanted is not None else size > 0
        for size, wanted in zip(array.shape, shape, strict=True)
    )
    shown = ["any" if size is None else size for size in shape]
    if not fits or str(array.dtype) != dtype or not np.isfinite(array).all():
        finite = "" if fits and str(array.dtype) == dtype else f"shape {list(array.shape)}"
        raise _refused(
            path,
            f"{name} of shape {shown}, finite {dtype}",
            f"{finite} of {array.dtype}" if finite else "numbers that are not finite",
        )


def _refused(path: Path, expected: str, found: str) -> UserError:
    return UserError(
        f"The inputs in {path} cannot be used",
        expected=expected,
        found=found,
        do="record them for this model, or leave --inputs out for seeded ones",
    )


#: Feeds of the probes by name: what an array is, in which order it was recorded.
Feed = Mapping[str, np.ndarray]
