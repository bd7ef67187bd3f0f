"""Whose voice a request is spoken in: voices, references and embeddings made into model inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trt_runtime.errors import UserError
from trt_runtime.folder import OpenFolder
from trt_runtime.geometry import Geometry
from trt_runtime.noise import Stream, normal
from trt_runtime.printable import printable
from trt_runtime.reference_audio import ReferenceAudio
from trt_runtime.request import Request
from trt_runtime.sources import Source
from trt_runtime.stopwatch import Stopwatch
from trt_runtime.voice import Voice
from trt_runtime.voice_choice import Chosen, bad_embedding, choose
from trt_runtime.voice_encoder import VoiceEncoder, checkpoint_of
from trt_runtime.voice_store import VoiceStore


@dataclass(frozen=True, eq=False)
class Conditioning:
    """What the talker is given beside the text.

    speakers: one entry a speaker slot, (speaker_dim,) float32, or None for the zero speaker.
    latents: (latents, latent_dim) float32 of the references, whole patches, perhaps none.
    prompt_text: their words; None exactly where there are no latents.
    """

    speakers: tuple[NDArray[np.float32] | None, ...]
    latents: NDArray[np.float32]
    prompt_text: str | None
    warnings: tuple[str, ...] = ()


def condition(
    request: Request,
    opened: OpenFolder,
    encoder: VoiceEncoder,
    store: VoiceStore,
    stopwatch: Stopwatch,
) -> Conditioning:
    """The conditioning of `request`; raises UserError where its options contradict each other."""
    chosen = choose(request, store)
    warnings = chosen.warnings
    for source in chosen.sources:
        if isinstance(source.sound, Voice):
            warnings += _check_fit(source, opened)
    with stopwatch.timed("speaker_encoder"):
        speakers = _speakers(request, chosen.sources, encoder, opened.manifest.geometry)
    with stopwatch.timed("audio_encoder"):
        latents = _latents(request, chosen, encoder, opened.manifest.geometry)
    return Conditioning(speakers, latents, chosen.prompt_text, warnings)


def _check_fit(source: Source, opened: OpenFolder) -> tuple[str, ...]:
    """Warnings about a stored voice; raises UserError where it cannot belong to these engines."""
    voice, g = source.sound, opened.manifest.geometry
    assert isinstance(voice, Voice)
    made_for = {
        "family": (voice.family, opened.manifest.family),
        "sample rate": (voice.sample_rate, g.sample_rate),
        "patch": (voice.patch, g.patch),
    }
    if voice.speaker_embedding is not None:
        made_for["speaker embedding"] = (len(voice.speaker_embedding), g.speaker_dim)
    if voice.latent_mean is not None:
        made_for["latent channels"] = (voice.latent_mean.shape[1], g.latent_dim)
    elsewhere = (
        "leave engines out, for the voice ships with the embedded default; or make another voice "
        "with these engines"
    )
    for name, (found, expected) in made_for.items():
        if found != expected:
            again = elsewhere if source.shipped else "make the voice again with these engines"
            raise UserError(
                f"{source.label} was made for another model",
                expected=f"{name} {expected}",
                found=f"{name} {printable(str(found))}",
                do=f"{again}: ming-trt voices add NAME REF.wav --text ...",
            )
    checkpoint = checkpoint_of(opened.manifest.source)
    if voice.checkpoint and checkpoint and voice.checkpoint != checkpoint:
        again = elsewhere if source.shipped else "make it again with these engines"
        return (
            f"{source.label} was made with another checkpoint of the same family; if it sounds "
            f"wrong, {again}",
        )
    return ()


def _speakers(
    request: Request,
    sources: Sequence[Source],
    encoder: VoiceEncoder,
    g: Geometry,
) -> tuple[NDArray[np.float32] | None, ...]:
    choice = request.speaker_embedding
    if choice is None:
        return ()
    if isinstance(choice, str):
        if choice == "zero":
            return (None,)
        return tuple(_embedding_of(source, encoder) for source in sources)
    arrays = _given_embeddings(choice, g.speaker_dim)
    if sources and len(arrays) != len(sources):
        raise UserError(
            "speaker_embedding and the references differ in number",
            expected=f"{len(sources)}, one a reference",
            found=str(len(arrays)),
            do="give one array for each speaker",
        )
    return arrays


def _embedding_of(source: Source, encoder: VoiceEncoder) -> NDArray[np.float32]:
    if isinstance(source.sound, ReferenceAudio):
        return encoder.speaker_embedding(source.sound)
    if source.sound.speaker_embedding is None:
        raise UserError(
            f"{source.label} has no speaker embedding",
            expected="one, since speaker_embedding is not None",
            do="give speaker_embedding=None to use its latents alone, or make it again with "
            "engines that have a speaker encoder",
        )
    return source.sound.speaker_embedding


def _given_embeddings(choice: Any, size: int) -> tuple[NDArray[np.float32], ...]:
    # An array of no dimensions has no length either.
    listed = [choice] if isinstance(choice, np.ndarray) and choice.ndim <= 1 else choice
    if not isinstance(listed, list | tuple | np.ndarray) or not len(listed):
        raise bad_embedding(type(choice).__name__)
    arrays = []
    for array in listed:
        masked = isinstance(array, np.ma.MaskedArray)
        if masked or not isinstance(array, np.ndarray) or array.shape != (size,):
            shape = getattr(array, "shape", None)
            raise bad_embedding(type(array).__name__ if shape is None else f"shape {shape}", size)
        with np.errstate(over="ignore"):
            floats = np.ascontiguousarray(array, np.float32) if array.dtype.kind == "f" else None
        if floats is None:
            raise bad_embedding(f"dtype {array.dtype}", size)
        if not np.isfinite(floats).all():
            raise bad_embedding("NaN, infinity or a number beyond float32", size)
        arrays.append(floats)
    return tuple(arrays)


def _latents(
    request: Request, chosen: Chosen, encoder: VoiceEncoder, g: Geometry
) -> NDArray[np.float32]:
    recorded = None if request.noise is None else request.noise.posterior
    if chosen.prompt_text is None:
        if recorded is not None:
            raise UserError(
                "noise.posterior is for a reference's latents, and there are none",
                expected="a reference with reference_text",
                do="leave posterior out, or give the reference and its words",
            )
        return np.zeros((0, g.latent_dim), np.float32)
    posteriors = _posteriors(chosen.sources, encoder)
    mean = np.concatenate([mean for mean, _ in posteriors])
    if recorded is None and request.posterior == "mean":
        return mean
    if recorded is None:
        recorded = normal(request.seed, 0, Stream.POSTERIOR, mean.shape)
    elif recorded.shape != mean.shape:
        raise UserError(
            "noise.posterior does not fit the reference",
            expected=f"shape {mean.shape}",
            found=f"shape {recorded.shape}",
            do="record it with the same reference",
        )
    return mean + np.concatenate([std for _, std in posteriors]) * recorded


def _posteriors(
    sources: Sequence[Source], encoder: VoiceEncoder
) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Mean and std of each stored voice, or of each unbroken run of recordings together."""
    found = []
    run: list[ReferenceAudio] = []

    def encode() -> None:
        if run:
            found.append(encoder.latents(run))
            run.clear()

    for source in sources:
        if isinstance(source.sound, ReferenceAudio):
            run.append(source.sound)
            continue
        encode()
        if source.sound.latent_mean is None or source.sound.latent_std is None:
            raise UserError(
                f"{source.label} was stored without its words, and so without latents",
                expected="a voice with latents, since a transcript is given",
                do="make it again with --text, or leave reference_text out",
            )
        found.append((source.sound.latent_mean, source.sound.latent_std))
    encode()
    return found
