"""From recordings to what the model hears of a voice: speaker embeddings and latents."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trt_runtime.audio_encoder import check_reference_length, encode_wave, padding_unit
from trt_runtime.errors import FolderError
from trt_runtime.folder import OpenFolder
from trt_runtime.manifest import SPEAKER_ENCODER
from trt_runtime.reference_audio import ReferenceAudio
from trt_runtime.resampling import resample
from trt_runtime.speaker_encoder import SpeakerEncoder
from trt_runtime.voice import Voice


class VoiceEncoder:
    """The two encoders of one folder, each loaded when it is first needed. Thread-safe."""

    def __init__(self, opened: OpenFolder) -> None:
        self._opened = opened
        self._lock = threading.Lock()
        self._speaker_encoder: SpeakerEncoder | None = None

    def speaker_embedding(self, audio: ReferenceAudio) -> NDArray[np.float32]:
        """(speaker_dim,) float32. Raises FolderError where the folder has no speaker encoder."""
        opened, g = self._opened, self._opened.manifest.geometry
        if SPEAKER_ENCODER not in opened.manifest.files:
            raise FolderError(
                f"{opened.path} has no speaker encoder",
                expected=f"{SPEAKER_ENCODER}, made of the checkpoint's campplus.onnx",
                do="export a checkpoint folder that holds campplus.onnx; or give "
                f"speaker_embedding=None with a transcript, or an array of {g.speaker_dim} numbers",
            )
        with self._lock:
            if self._speaker_encoder is None:
                self._speaker_encoder = SpeakerEncoder(
                    opened.path / SPEAKER_ENCODER,
                    speaker_dim=g.speaker_dim,
                    threads=opened.threads,
                )
        return self._speaker_encoder.embed(audio)

    def latents(
        self, audios: Sequence[ReferenceAudio]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and std of the references one after the other, (latents, latent_dim) each, padded.

        As the reference does it: each is resampled, all are joined, and zeros at the end make whole
        patches.
        """
        g = self._opened.manifest.geometry
        check_reference_length(g, sum(audio.seconds for audio in audios))
        wave = np.concatenate([resample(a.samples, a.sample_rate, g.sample_rate) for a in audios])
        padded = np.pad(wave, (0, -len(wave) % padding_unit(g)))
        return encode_wave(self._opened.backend, g, padded)

    def voice(
        self,
        audios: Sequence[ReferenceAudio],
        transcript: str | None,
        *,
        embed: bool = True,
        warnings: tuple[str, ...] = (),
    ) -> Voice:
        """The voice of one speaker's references, to keep: latents where there is a transcript.

        The speaker embedding is that of the first reference; without `embed` there is none.
        """
        manifest = self._opened.manifest
        g = manifest.geometry
        mean = std = None
        if transcript is not None:
            mean, std = self.latents(audios)
        return Voice(
            family=manifest.family,
            checkpoint=checkpoint_of(manifest.source),
            sample_rate=g.sample_rate,
            patch=g.patch,
            transcript=transcript,
            speaker_embedding=self.speaker_embedding(audios[0]) if embed else None,
            latent_mean=mean,
            latent_std=std,
            samples=sum(-(-len(a.samples) * g.sample_rate // a.sample_rate) for a in audios),
            warnings=warnings,
        )


def checkpoint_of(source: Mapping[str, object]) -> str:
    """The digest of the checkpoint's tensors that a manifest's `source` names; "" without one."""
    digest = source.get("tensors_sha256")
    return digest if isinstance(digest, str) else ""
