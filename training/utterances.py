"""Utterances on the training device, in buffers of fixed size that may be filled while training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.speech import DEFAULT_VOICE
from trt_runtime.geometry import Geometry
from trt_runtime.prompt import GRAMMARS, SPEECH_PROMPT, build_prompt
from trt_runtime.text_tokenizer import TextTokenizer

FAMILY = "ming-omni-tts-dense"
#: How often the default voice, which needs no speaker slot, is asked for by one.
SLOT_FOR_DEFAULT = 0.4
#: The same, of utterances that go on from a recording, which says the voice too.
SLOT_FOR_PAIR = 0.7


@dataclass
class Utterances:
    """Utterances that one bucket takes; only the first `count` are filled.

    ids: (most, tokens) int16, left-aligned; lengths: (most,); slots: (most,) position of the
    speaker slot, -1 for none; speakers: (most,) index into `embeddings` (voices, many,
    speaker_dim); steps: (most,) patches; first: (most,) the first latent of each in `latents`
    (all, latent_dim); phones: (all * frames_per_latent,) uint8; count: () float32.
    """

    ids: Tensor
    lengths: Tensor
    slots: Tensor
    speakers: Tensor
    steps: Tensor
    first: Tensor
    count: Tensor
    latents: Tensor
    phones: Tensor
    embeddings: Tensor

    @classmethod
    def empty(
        cls, most: int, tokens: int, latents: Tensor, phones: Tensor, embeddings: Tensor
    ) -> Utterances:
        device = latents.device

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            zeros(most, tokens, dtype=torch.int16), zeros(most), zeros(most), zeros(most),
            zeros(most), zeros(most), zeros(dtype=torch.float32), latents, phones, embeddings,
        )  # fmt: skip

    def add(self, rows: Sequence[Row]) -> None:
        """Rows beyond the buffers' size are left out."""
        start = int(self.count)
        rows = rows[: len(self.ids) - start]
        ids = np.zeros((len(rows), self.ids.shape[1]), np.int16)
        for filled, row in zip(ids, rows, strict=True):
            filled[: len(row.ids)] = row.ids
        part = slice(start, start + len(rows))
        self.ids[part] = torch.as_tensor(ids, device=self.ids.device)
        for name in ("lengths", "slots", "speakers", "steps", "first"):
            values = np.array([getattr(row, name) for row in rows], np.int64)
            getattr(self, name)[part] = torch.as_tensor(values, device=self.ids.device)
        self.count.fill_(start + len(rows))


@dataclass(frozen=True)
class Row:
    """One utterance of :class:`Utterances`."""

    ids: np.ndarray
    slots: int
    speakers: int
    steps: int
    first: int

    @property
    def lengths(self) -> int:
        return len(self.ids)


def rows_of(
    shard: Mapping[str, np.ndarray], tokenizer: TextTokenizer, geometry: Geometry, first: int
) -> list[Row]:
    """The utterances of one shard of speech whose first latent has index `first`.

    Neighbours of one voice make another row together, as if the second went on from a recording of
    the first: what cloning asks for.
    """
    generator = np.random.default_rng(first)
    grammar = GRAMMARS[FAMILY]
    starts, voices, texts = (shard[name] for name in ("first", "voices", "texts"))

    def row(index: int, count: int, latents: int, share: float) -> Row:
        voice = int(voices[index])
        named = generator.random() < share
        prompt = build_prompt(
            tokenizer, grammar, prompt=SPEECH_PROMPT, text=str(texts[index + count - 1]),
            speakers=int(named), prompt_text=str(texts[index]) if count == 2 else None,
            prompt_patches=count - 1,
        )  # fmt: skip
        ids = prompt.ids[: prompt.patch_slots[0]] if prompt.patch_slots else prompt.ids
        return Row(
            ids.astype(np.int16), prompt.speaker_slots[0] if named else -1, voice,
            -(-latents // geometry.patch), first + int(starts[index]),
        )  # fmt: skip

    rows = []
    for index in range(len(texts)):
        other = voices[index] != DEFAULT_VOICE
        latents = int(starts[index + 1] - starts[index])
        rows.append(row(index, 1, latents, 1.0 if other else SLOT_FOR_DEFAULT))
        together = index + 1 < len(texts) and voices[index] == voices[index + 1]
        # Patches of the second must begin where the first one ends.
        if together and latents % geometry.patch == 0:
            both = int(starts[index + 2] - starts[index])
            rows.append(row(index, 2, both, SLOT_FOR_PAIR))
    return rows
