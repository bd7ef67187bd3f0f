"""The sizes that every graph's shapes follow from: a checkpoint's own, and the export options'."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

_LARGEST_SIZE = 1 << 24


@dataclass(frozen=True)
class Geometry:
    """The sizes that the graphs' shapes depend on.

    Audio: `sample_rate` Hz, `hop_length` samples a frame, `n_fft` samples a window,
    `frames_per_latent` decoder frames a latent. Flow: `latent_dim` channels, `patch` latents a
    step, `history` latents of context, `solver_steps` Euler steps of the unrolled tail. Talker:
    widths, `cache_length` positions, `prefill_chunks` tokens a prefill call (each divides the next,
    and the last divides `cache_length`). `max_steps` is the most patches a request may ask for.
    `decoder_cache_lengths` is the number of cached frames of each decoder layer (a ring where the
    layer has a sliding window, the whole of `max_steps` otherwise). The audio encoder reads frames
    of `encoder_hop` samples and makes `encoder_latents` latents a call, of at most
    `max_reference_latents` in all; its caches are those of its layers over frames, then of its
    layers over latents (none where a frame is a latent).
    """

    sample_rate: int
    hop_length: int
    n_fft: int
    frames_per_latent: int
    latent_dim: int
    patch: int
    history: int
    solver_steps: int
    talker_hidden: int
    talker_layers: int
    talker_kv_heads: int
    talker_head_dim: int
    vocab_size: int
    speaker_dim: int
    cache_length: int
    prefill_chunks: tuple[int, ...]
    max_steps: int
    decoder_hidden: int
    decoder_kv_heads: int
    decoder_head_dim: int
    decoder_cache_lengths: tuple[int, ...]
    encoder_hop: int
    encoder_latents: int
    encoder_kv_heads: int
    encoder_head_dim: int
    encoder_frame_cache_lengths: tuple[int, ...]
    encoder_latent_cache_lengths: tuple[int, ...]
    max_reference_latents: int

    def __post_init__(self) -> None:
        """Raises ValueError for sizes that no model has or that contradict each other."""
        for field in fields(self):
            value = getattr(self, field.name)
            for size in value if isinstance(value, tuple) else (value,):
                if not 1 <= size <= _LARGEST_SIZE:
                    raise ValueError(f"{field.name} is {size}, not 1 to {_LARGEST_SIZE}")
        chain = (*self.prefill_chunks, self.cache_length)
        if len(chain) < 2 or any(
            small >= large or large % small for small, large in pairwise(chain)
        ):
            raise ValueError(
                f"prefill_chunks {self.prefill_chunks} do not each divide the next and the last "
                f"the cache of {self.cache_length}"
            )
        for name in ("decoder_cache_lengths", "encoder_frame_cache_lengths"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty")
        if self.max_reference_latents % self.encoder_latents:
            raise ValueError(
                f"max_reference_latents {self.max_reference_latents} is no multiple of "
                f"encoder_latents {self.encoder_latents}"
            )
        if self.n_fft % self.hop_length or self.overlap % 2:
            raise ValueError(f"n_fft {self.n_fft} does not fit hop_length {self.hop_length}")

    @property
    def samples_per_patch(self) -> int:
        return self.patch * self.frames_per_latent * self.hop_length

    @property
    def samples_per_latent(self) -> int:
        """Samples of a reference wave that one latent stands for."""
        return self.frames_per_latent * self.encoder_hop

    @property
    def lookahead_frames(self) -> int:
        """Frames at the end of a latent that linear upsampling makes from the next latent too."""
        return self.frames_per_latent // 2

    @property
    def decoder_frames(self) -> int:
        """Frames computed by one decoder call: those held back before, and a whole patch."""
        return self.lookahead_frames + self.patch * self.frames_per_latent

    @property
    def overlap(self) -> int:
        """Samples in which one ISTFT window overlaps those that follow."""
        return self.n_fft - self.hop_length

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Geometry:
        """Raises KeyError, TypeError or ValueError where a field is missing or not of its kind."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = data[field.name]
            if str(field.type).startswith("tuple"):
                if not isinstance(value, list | tuple):
                    raise TypeError(f"{field.name} is not a list")
                values[field.name] = tuple(_size(field.name, item) for item in value)
            else:
                values[field.name] = _size(field.name, value)
        return cls(**values)


def _size(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is not an integer")
    return value
