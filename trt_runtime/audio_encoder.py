"""A reference wave to the posterior of its latents, in as many calls as it is long."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trt_runtime.backends.interface import Backend
from trt_runtime.contract import AUDIO_ENCODER
from trt_runtime.errors import FolderError, NumericError, UserError
from trt_runtime.geometry import Geometry

#: Latents a second that the reference implementation pads references by, whatever the geometry.
_LATENTS_A_SECOND = 12.5


def padding_unit(g: Geometry) -> int:
    """Samples to whose multiple the reference implementation pads a reference with zeros.

    One patch of the released models. Of a model with another clock it is whole patches too, or the
    reference could not use it; where it is not, this is one patch.
    """
    patch = g.patch * g.samples_per_latent
    # The same float product as the reference's, which it truncates.
    unit = int(1 / _LATENTS_A_SECOND * g.patch * g.sample_rate)
    return unit if unit and unit % patch == 0 else patch


def check_reference_length(g: Geometry, seconds: float) -> None:
    """Raises UserError where `seconds` of references are more than these engines take."""
    longest = g.max_reference_latents * g.samples_per_latent / g.sample_rate
    if seconds > longest:
        raise UserError(
            "The reference is too long for these engines",
            expected=f"at most {longest:.1f} s, of all speakers together",
            found=f"{seconds:.1f} s",
            do="cut it, or export with a larger --max-reference-latents",
        )


def encode_wave(
    backend: Backend, g: Geometry, wave: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """wave: (samples,) float32 at the model's rate to mean and std, both (latents, latent_dim).

    A last latent of which the wave holds only a part is made as the reference makes it. Raises
    UserError where the wave is empty or longer than these engines take, FolderError where the
    folder has no audio encoder, NumericError where its output is not finite.
    """
    if not backend.has(AUDIO_ENCODER):
        raise FolderError(
            "These engines have no audio encoder",
            expected=f"the graph {AUDIO_ENCODER}, which makes latents of a reference wave",
            do="export and build again from the checkpoint, or leave the transcript out",
        )
    frames = -(-len(wave) // g.encoder_hop)
    latents = -(-frames // g.frames_per_latent)
    if not latents:
        raise UserError("The reference wave is empty", do="give one with sound")
    check_reference_length(g, len(wave) / g.sample_rate)
    bound = backend.bind(AUDIO_ENCODER, {})
    buffers = bound.buffers
    frames_a_call = g.encoder_latents * g.frames_per_latent
    samples = frames_a_call * g.encoder_hop
    means, stds = [], []
    for before in range(0, latents, g.encoder_latents):
        part = wave[before * g.samples_per_latent :][:samples]
        first = before * g.frames_per_latent
        buffers["wave"].write(np.pad(part, (0, samples - len(part)))[None])
        buffers["latents_before"].write(before)
        buffers["valid_frames"].write(min(frames - first, frames_a_call))
        bound.run()
        means.append(buffers["mean"].read()[0].copy())
        stds.append(buffers["std"].read()[0].copy())
    mean, std = np.concatenate(means)[:latents], np.concatenate(stds)[:latents]
    if not (np.isfinite(mean).all() and np.isfinite(std).all()):
        raise NumericError(
            "audio_encoder produced NaN or infinity",
            expected="finite numbers",
            do="check the checkpoint (python -m export --check) and the precision of the engines",
        )
    return mean, std
