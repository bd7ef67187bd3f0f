"""Shards of speech made into utterances on the training device, also while training goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.array_files import read_arrays
from training.codec import Codec, latents_of
from training.loop import Log
from training.shards import Shards, read_shard
from training.speech import VOICES
from training.talker import Bucket
from training.utterances import Utterances, rows_of
from trt_runtime.contract import SPEAKER_DIM
from trt_runtime.errors import UserError
from trt_runtime.geometry import Geometry
from trt_runtime.text_tokenizer import TextTokenizer

#: Latents behind the last one that a last patch may reach: zeros, or the next shard's.
_MARGIN = 64


def read_speakers(path: Path) -> Tensor:
    """Embeddings of each voice, (voices, many, speaker_dim) float32. Raises UserError."""
    try:
        arrays = read_arrays(path, VOICES)
        speakers = np.stack([arrays[name] for name in VOICES])
    except ValueError as error:
        raise _no_speakers(path, str(error)) from error
    if speakers.ndim != 3 or speakers.shape[2] != SPEAKER_DIM or not speakers.size:
        raise _no_speakers(path, f"arrays of shape {list(speakers.shape[1:])}")
    if speakers.dtype.kind != "f" or not np.isfinite(speakers).all():
        raise _no_speakers(path, f"{speakers.dtype} that are no finite numbers")
    return torch.as_tensor(speakers.astype(np.float32, copy=False))


def _no_speakers(path: Path, found: str) -> UserError:
    return UserError(
        f"{path} holds no speaker embeddings",
        expected=f"arrays {' and '.join(VOICES)} of floats of shape (many, {SPEAKER_DIM})",
        found=found,
        do="give the embeddings.npz that python -m training.speaker_encoder wrote",
    )


class Feeder:
    """Puts shards of speech into the buckets' buffers as they appear.

    speakers: (voices, many, speaker_dim). `most` utterances a bucket and `most_latents` in all fit.
    `scale` is the deviation of the first shard's latents, by which all are divided; 0 before.
    """

    def __init__(
        self,
        codec: Codec,
        geometry: Geometry,
        tokenizer: TextTokenizer,
        buckets: Sequence[Bucket],
        speakers: Tensor,
        shards: Shards,
        log: Log,
        *,
        most: int,
        most_latents: int,
    ) -> None:
        self._codec, self._geometry, self._tokenizer = codec, geometry, tokenizer
        self._shards, self._log = shards, log
        device = speakers.device
        self._latents = torch.zeros(
            (most_latents, geometry.latent_dim), dtype=torch.float16, device=device
        )
        frames = most_latents * geometry.frames_per_latent
        self._phones = torch.zeros(frames, dtype=torch.uint8, device=device)
        self.buckets = buckets
        self.utterances = [
            Utterances.empty(most, bucket.tokens, self._latents, self._phones, speakers)
            for bucket in buckets
        ]
        self._used, self.scale = 0, 0.0

    def feed(self, least: int = 0) -> None:
        """Takes every shard that is there, and waits until there have been `least`."""
        while (path := self._shards.following(self._shards.taken < least)) is not None:
            self._take(path)

    def _take(self, path: Path) -> None:
        g = self._geometry
        shard = read_shard(path)
        audio = torch.as_tensor(shard["audio"]).to(self._latents.device)
        latents = latents_of(self._codec, audio, torch.as_tensor(shard["first"]))
        if self.scale == 0:
            self.scale = float(latents.std())
            spread = latents.std(0) / self.scale
            self._log(
                f"latents: deviation {self.scale:.3f}, "
                f"of dims {spread.min():.2f}..{spread.max():.2f}"
            )
        end = self._used + len(latents)
        if end + _MARGIN > len(self._latents):
            self._log(f"{path.name}: no room is left for it, nor for later ones")
            self._shards.end()
            return
        self._latents[self._used : end] = (latents / self.scale).half()
        phones = torch.as_tensor(shard["phones"])
        self._phones[self._used * g.frames_per_latent : end * g.frames_per_latent] = phones
        rows = rows_of(shard, self._tokenizer, g, self._used)
        for bucket, utterances in zip(self.buckets, self.utterances, strict=True):
            taken = [row for row in rows if bucket.takes(row.lengths, row.steps)]
            utterances.add(taken)
            rows = [row for row in rows if not bucket.takes(row.lengths, row.steps)]
        self._used = end
        counts = ", ".join(str(int(u.count)) for u in self.utterances)
        self._log(f"{path.name}: utterances {counts}, left out {len(rows)} of this shard")
