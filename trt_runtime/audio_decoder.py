"""Latents to audio, as they come: which samples of a decoder call are final, and which must wait.

Frames of half a latent wait for the next latent (linear upsampling), and the last window of the
inverse transform overlaps what follows. A call therefore emits every sample that no later latent
can change: 11,025 of the first 14,112 at the released sizes.
"""

from __future__ import annotations

import numpy as np

from trt_runtime.backends.interface import Backend
from trt_runtime.contract import AUDIO_DECODER
from trt_runtime.geometry import Geometry


class AudioDecoder:
    """The decoder's state for one request."""

    def __init__(self, backend: Backend, geometry: Geometry) -> None:
        self._geometry = geometry
        self._bound = backend.bind(AUDIO_DECODER, {})
        self._before = 0
        self._emitted = 0
        self._newest: np.ndarray | None = None

    def decode(self, latents: np.ndarray, *, last: bool) -> np.ndarray:
        """Audio that became final, float32 (samples,); with `last`, all that is left.

        latents: (count, latent_dim) float32, any count, also none.
        """
        size = self._geometry.patch
        starts = range(0, len(latents), size) or range(1)
        parts = [
            self._call(latents[start : start + size], last=last and start == starts[-1])
            for start in starts
        ]
        return np.concatenate(parts)

    def _call(self, latents: np.ndarray, *, last: bool) -> np.ndarray:
        g = self._geometry
        count = len(latents)
        if count:
            self._newest = latents[-1].copy()
        if self._newest is None or not (count or last):
            return np.zeros(0, np.float32)
        padded = np.concatenate((latents, np.repeat(self._newest[None], g.patch - count, 0)))
        buffers = self._bound.buffers
        buffers["latents"].write(padded[None])
        buffers["latents_before"].write(self._before)
        buffers["valid"].write(count)
        buffers["is_last"].write(last)
        self._bound.run()
        # All in samples of the untrimmed signal, whose frame f starts at f * hop.
        origin = (self._before * g.frames_per_latent - g.lookahead_frames) * g.hop_length
        self._before += count
        trim = g.overlap // 2
        frames = self._before * g.frames_per_latent
        end = (frames - g.lookahead_frames) * g.hop_length
        if last:
            end = frames * g.hop_length + trim
        start = trim + self._emitted
        if end <= start:
            return np.zeros(0, np.float32)
        self._emitted += end - start
        return buffers["audio"].read()[0, start - origin : end - origin].copy()
