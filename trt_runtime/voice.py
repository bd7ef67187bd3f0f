"""A voice: what the model hears of a reference recording, computed once."""

from __future__ import annotations

import json
import operator
import os
import re
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trt_runtime.contract import SPEAKER_DIM
from trt_runtime.errors import UserError
from trt_runtime.printable import printable, shown
from trt_runtime.spoken_text import check_text
from trt_runtime.voice_file import (
    LARGEST_FILE,
    MAKE_AGAIN,
    TENSORS,
    voice_bytes,
    voice_values,
)
from trt_runtime.whole_file import written_beside

#: What the text in a header may take of LARGEST_FILE: the longest transcript, several times over.
_TEXT_ROOM = 8 << 20
_MOST_REMARKS = 100_000
_DIGEST = re.compile(r"([0-9a-f]{64})?")


@dataclass(frozen=True, eq=False)
class Voice:
    """A reference recording as one family of models hears it.

    Raises UserError when made from values that do not go together. Arrays are copied, and the
    copies are read-only. A voice has a speaker embedding, or latents with their transcript, or all.
    """

    family: str
    """The manifest's family that the voice fits, for example "ming-omni-tts-dense"."""
    checkpoint: str
    """Hex SHA-256 of that checkpoint's tensors, as in its manifest; "" where unknown."""
    sample_rate: int
    """Of the model's audio, in Hz."""
    patch: int
    """Latents a patch; the latents are a whole number of patches."""
    transcript: str | None
    """The words of the reference; None: only the speaker embedding is used."""
    speaker_embedding: NDArray[np.float32] | None = field(repr=False)
    """(192,) float32 of CAM++; None where the engines have no speaker encoder."""
    latent_mean: NDArray[np.float32] | None = field(repr=False)
    """(latents, latent_dim) float32; there exactly where there is a transcript."""
    latent_std: NDArray[np.float32] | None = field(repr=False)
    """(latents, latent_dim) float32, of the posterior, positive; there with `latent_mean`."""
    samples: int = 0
    """Length of the reference at `sample_rate` before padding; 0 where unknown."""
    warnings: tuple[str, ...] = ()
    """What was remarked when the voice was made, as :func:`~trt_runtime.printable.printable` shows
    it."""

    def __post_init__(self) -> None:
        keep = partial(object.__setattr__, self)
        family = self.family
        if not isinstance(family, str) or not 0 < len(family) <= 100 or not family.isprintable():
            raise _refused("family", "1 to 100 printable characters", family)
        if not isinstance(self.checkpoint, str) or not _DIGEST.fullmatch(self.checkpoint):
            raise _refused("checkpoint", "64 hexadecimal digits, or nothing", self.checkpoint)
        for name, least in (("sample_rate", 1), ("patch", 1), ("samples", 0)):
            keep(name, _whole(name, getattr(self, name), least))
        if self.transcript is not None:
            keep("transcript", check_text(self.transcript, "A voice's transcript"))
        keep("warnings", _remarks(self.warnings))
        for name, dimensions in zip(TENSORS, (1, 2, 2), strict=True):
            array = getattr(self, name)
            if array is not None:
                keep(name, _array(name, array, dimensions))
        self._check_arrays()

    def _check_arrays(self) -> None:
        embedding, mean, std = self.speaker_embedding, self.latent_mean, self.latent_std
        if embedding is not None and embedding.shape != (SPEAKER_DIM,):
            raise _refused("speaker_embedding", f"shape ({SPEAKER_DIM},)", embedding.shape)
        there = {
            "a transcript": self.transcript is not None,
            "latent_mean": mean is not None,
            "latent_std": std is not None,
        }
        if len(set(there.values())) > 1:
            raise UserError(
                "A voice's transcript and latents do not go together",
                expected="a transcript, latent_mean and latent_std, or none of the three",
                found="only " + " and ".join(name for name, is_there in there.items() if is_there),
                do="give the words of the reference with its latents, or leave all of them out",
            )
        if mean is None or std is None:
            if embedding is None:
                raise UserError(
                    "A voice holds nothing to speak with",
                    expected="a speaker embedding, or latents with their transcript",
                    do="give the words of the reference, or engines that have a speaker encoder",
                )
            return
        if mean.shape != std.shape:
            raise _refused("latent_std", f"the shape of latent_mean, {mean.shape}", std.shape)
        if len(mean) % self.patch:
            raise _refused("latent_mean", f"a multiple of {self.patch} latents", len(mean))
        if not (std > 0).all():
            raise _refused("latent_std", "positive numbers", std.min())
        if mean.nbytes + std.nbytes > LARGEST_FILE - _TEXT_ROOM:
            raise UserError(
                "A voice's latents are too many to be kept",
                expected=f"at most {(LARGEST_FILE - _TEXT_ROOM) / 1e6:.0f} MB of them",
                found=f"{(mean.nbytes + std.nbytes) / 1e6:.0f} MB",
                do="use a shorter reference",
            )

    @property
    def duration(self) -> float | None:
        """Seconds of the reference; None where unknown."""
        return self.samples / self.sample_rate if self.samples else None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the voice to `path`, replacing a file that is there.

        The file is whole or not there; after a failure nothing is left behind. Raises UserError
        where it cannot be written.
        """
        # A link is followed, so that the file it names is replaced and not the link.
        try:
            place = Path(os.path.realpath(path))
        except (TypeError, ValueError) as error:
            raise _refused("file", "a path", path) from error
        with written_beside(place, self.to_bytes()) as temporary:
            temporary.replace(place)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The voice in a file, which may be a stranger's.

        Raises UserError naming the file where it cannot be read, is no voice, is of another format
        version, or holds anything that a voice does not.
        """
        path = Path(path)
        values = voice_values(path)
        try:
            return cls(**values)
        except UserError as error:
            raise UserError(
                f"{path} is a damaged voice: {error.what}",
                expected=error.expected,
                found=error.found,
                do=MAKE_AGAIN,
            ) from error

    def to_bytes(self) -> bytes:
        """The file's bytes, the same for the same voice."""
        return voice_bytes({name: getattr(self, name) for name in TENSORS}, self._metadata())

    def _metadata(self) -> dict[str, str]:
        values = {
            one.name: str(getattr(self, one.name))
            for one in fields(self)
            if one.name not in (*TENSORS, "transcript")
        }
        values["warnings"] = json.dumps(self.warnings, ensure_ascii=False)
        return values if self.transcript is None else {**values, "transcript": self.transcript}


def _array(name: str, array: Any, dimensions: int) -> NDArray[np.float32]:
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise _refused(name, "a float32 array", found)
    if array.ndim != dimensions or not array.size:
        raise _refused(name, f"{dimensions} dimensions, none of them empty", array.shape)
    if not np.isfinite(array).all():
        raise _refused(name, "finite numbers", "NaN or infinity")
    kept = np.array(array, np.float32, order="C", subok=False)
    kept.setflags(write=False)
    return kept


def _whole(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number < 10**18:
        raise _refused(name, f"a whole number from {least}", value)
    return number


def _remarks(texts: Any) -> tuple[str, ...]:
    if not isinstance(texts, tuple | list) or not all(isinstance(text, str) for text in texts):
        raise _refused("warnings", "a tuple of texts", texts)
    # They may quote a file's name, which may hold anything.
    kept = tuple(map(printable, texts))
    if sum(map(len, kept)) + len(kept) > _MOST_REMARKS:
        raise _refused("warnings", f"at most {_MOST_REMARKS} characters", "more")
    return kept


def _refused(name: str, expected: str, found: object) -> UserError:
    return UserError(
        f"A voice's {name} is wrong",
        expected=expected,
        found=shown(found, 200, str),
        do="make the voice again from its recording",
    )
