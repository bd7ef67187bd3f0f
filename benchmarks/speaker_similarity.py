"""How alike voices are: cosines of speaker embeddings, within a voice and between two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.source_voice import Wave
from trt_runtime.errors import UserError
from trt_runtime.folder import OpenFolder
from trt_runtime.reference_audio import ReferenceAudio
from trt_runtime.resampling import resample
from trt_runtime.spread import spread
from trt_runtime.voice_encoder import VoiceEncoder

#: A wave to the embedding of its voice, (size,) float32.
Embed = Callable[[Wave], NDArray[np.float32]]


def folder_encoder(opened: OpenFolder) -> Embed:
    """The folder's own encoder. Raises FolderError where it has none."""
    encoder = VoiceEncoder(opened)

    def embed(wave: Wave) -> NDArray[np.float32]:
        audio = ReferenceAudio(wave.audio, wave.sample_rate, "a sentence's wave")
        return encoder.speaker_embedding(audio)

    # Loaded and tried now: a later error would cost the speech that was made by then.
    embed(Wave(np.zeros(16_000, np.float32), 16_000))
    return embed


def resemblyzer_encoder(opened: OpenFolder) -> Embed:
    """Resemblyzer's (L. Wan et al., 2018, arXiv:1710.10467), which no folder here was made with."""
    try:
        from resemblyzer import VoiceEncoder as Resemblyzer
        from resemblyzer import preprocess_wav
    except ImportError as error:
        raise UserError(
            "Resemblyzer is not installed",
            expected="the package resemblyzer, with what it imports",
            found=str(error),
            do="in an environment with PyTorch: pip install --no-deps resemblyzer webrtcvad-wheels"
            " && pip install librosa; or take --speaker-encoder folder",
        ) from error
    encoder = Resemblyzer("cpu", verbose=False)
    return lambda wave: encoder.embed_utterance(
        preprocess_wav(resample(wave.audio, wave.sample_rate, 16_000))
    )


@dataclass(frozen=True)
class Judge:
    """A speaker encoder: what makes it, what a reader must know of it, whose versions matter."""

    make: Callable[[OpenFolder], Embed]
    remark: str
    packages: tuple[str, ...] = ()


ENCODERS: dict[str, Judge] = {
    "folder": Judge(
        folder_encoder,
        "the engine folder's own speaker encoder, which the voice is conditioned on: not an "
        "independent judge",
    ),
    "resemblyzer": Judge(
        resemblyzer_encoder, "Resemblyzer, independent of the engines", ("resemblyzer",)
    ),
}


def similarity(embed: Embed, first: Sequence[Wave], second: Sequence[Wave]) -> dict[str, Any]:
    """Cosines of every pair: `within` each voice, all pairs of two waves; `between`, all pairs.

    `separated` is whether the least alike pair of one voice is more alike than any of two;
    `pairs_told_apart`, for how many pairs of sentences both voices are more alike to themselves
    than to each other. Sentences differ more in what they say the shorter they are, so the second
    is what tells voices apart; the first asks it across sentences too.
    """
    waves = [[unit(embed(wave)) for wave in voice] for voice in (first, second)]
    a, b = (np.stack(vectors) for vectors in waves)
    own = np.minimum(a @ a.T, b @ b.T)
    mixed = np.maximum(a @ b.T, b @ a.T)
    pairs = np.triu_indices(len(a), 1)
    within = np.concatenate([(v @ v.T)[np.triu_indices(len(v), 1)] for v in (a, b)])
    between = (a @ b.T).ravel()
    return {
        "within": _spread(within),
        "between": _spread(between),
        "separated": bool(within.min() > between.max()),
        "sentence_pairs": len(pairs[0]),
        "pairs_told_apart": int((own[pairs] > mixed[pairs]).sum()),
    }


def unit(vector: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = np.asarray(vector, np.float64)
    return wide / np.linalg.norm(wide)


def _spread(cosines: NDArray[np.float64]) -> dict[str, float | int]:
    return {"pairs": len(cosines), **spread(cosines.tolist())}
