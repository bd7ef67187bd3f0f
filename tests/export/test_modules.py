"""Pieces of the torch modules against the reference's recordings and against definitions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from export.checkpoint import Checkpoint
from export.geometry import ExportOptions, geometry_of
from export.modules.audio_decoder import AudioDecoder, inverse_spectrum, overlap_add, upsample
from export.modules.flow import rotate_pairs, time_features
from export.modules.transformer import HIDDEN_KEY, slots_and_mask
from tests.goldens import assert_close, dense_checkpoint, load_npz
from trt_runtime.geometry import Geometry

VAE = load_npz("dense_vae")
DIT = load_npz("dense_dit")


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.open(dense_checkpoint())


@pytest.fixture(scope="module")
def geometry(checkpoint: Checkpoint) -> Geometry:
    return geometry_of(checkpoint.sizes, ExportOptions())


def test_inverse_transform_with_clipped_magnitudes(
    checkpoint: Checkpoint, geometry: Geometry
) -> None:
    """The recorded head input is large: many magnitudes reach the limit of 100."""
    window = torch.from_numpy(
        np.array(checkpoint.read("audio.decoder.head.istft.window"), np.float32)
    )
    spectrum = torch.from_numpy(VAE["istft/pred"].T.copy())[None]
    assert (spectrum[..., : geometry.n_fft // 2 + 1] > np.log(100)).any()
    frames = inverse_spectrum(spectrum, geometry.n_fft)
    audio = overlap_add(frames * window, geometry)
    weight = overlap_add((window.square()).expand(frames.shape).contiguous(), geometry)
    trim = geometry.overlap // 2
    found = (audio / weight)[0, trim:-trim]
    assert_close(found.numpy(), VAE["istft/wave"], "wave")


@pytest.mark.parametrize("n_fft", [8, 12, 40, 64, 3528, 2 * 17 * 2])
def test_inverse_transform_is_numpys(n_fft: int) -> None:
    generator = np.random.default_rng(n_fft)
    bins = n_fft // 2 + 1
    magnitude, phase = generator.normal(size=(2, 3, bins)).astype(np.float32)
    spectrum = np.concatenate((magnitude, phase), -1)
    found = inverse_spectrum(torch.from_numpy(spectrum)[None], n_fft)[0].numpy()
    expected = np.fft.irfft(np.exp(magnitude) * np.exp(1j * phase), n=n_fft)
    assert_close(found, expected, f"n = {n_fft}")


def test_upsampling(geometry: Geometry) -> None:
    latents = VAE["upsample/in"]
    count, factor = len(latents), len(VAE["upsample/full"]) // len(latents)
    g = dataclasses.replace(geometry, patch=count, frames_per_latent=factor)
    ends = np.concatenate((latents[:1], latents, latents[-1:]))
    found = upsample(torch.from_numpy(ends)[None], g)[0, g.lookahead_frames :]
    assert_close(found.numpy(), VAE["upsample/full"], "upsampled")


@pytest.mark.parametrize("factor", [1, 2, 3, 4, 5, 8])
def test_upsampling_by_any_factor_is_torchs(geometry: Geometry, factor: int) -> None:
    g = dataclasses.replace(geometry, patch=6, frames_per_latent=factor)
    latents = torch.from_numpy(np.random.default_rng(factor).normal(size=(1, 6, 5))).float()
    ends = torch.cat((latents[:, :1], latents, latents[:, -1:]), 1)
    found = upsample(ends, g)[:, g.lookahead_frames :]
    expected = torch.nn.functional.interpolate(
        latents.transpose(1, 2), scale_factor=factor, mode="linear", align_corners=False
    ).transpose(1, 2)
    assert_close(found.numpy(), expected.numpy(), f"factor {factor}")


def test_time_features() -> None:
    for time, expected in zip(DIT["t"], DIT["time_sin"], strict=True):
        found = time_features(torch.tensor([time]))[0]
        assert_close(found.numpy(), expected, "time features")


def test_interleaved_rotary_embedding() -> None:
    angles = torch.from_numpy(DIT["rope_freqs"][0])
    found = rotate_pairs(torch.from_numpy(DIT["rope_q"]), angles.cos(), angles.sin())
    assert_close(found.numpy(), DIT["rope_q_out"], "rotated query")


@pytest.mark.parametrize(("length", "window"), [(20, None), (20, 6), (13, 6), (12, 5)])
def test_ring_keeps_exactly_the_window(length: int, window: int | None) -> None:
    """Positions written call by call into a ring; each query must see the last `window` + itself.

    A simulation with the positions themselves as keys, calls of 6 with the last 2 not final, as the
    audio decoder makes them.
    """
    held, new = 2, 4
    ring = np.full(length, -1000)
    for start in range(0, length if window is None else 60, new):
        if window is None and start + new > length:
            break
        positions = torch.arange(start - held, start + new)
        slots, mask = slots_and_mask(positions, length, window)
        ring[slots.numpy()] = positions.numpy()
        for row, query in enumerate(positions.tolist()):
            seen = sorted(ring[mask[row].numpy() != HIDDEN_KEY])
            first = 0 if window is None else max(0, query - window)
            assert seen == list(range(first, query + 1)), (start, query)


def test_decoder_rejects_nothing_silently(checkpoint: Checkpoint, geometry: Geometry) -> None:
    """Every parameter of the module is one of the family's table, and the other way round."""
    module = AudioDecoder(checkpoint.sizes.audio.decoder, geometry)
    ours = {f"audio_decoder.{name}" for name, _ in module.named_parameters()}
    rows = checkpoint.family.components(checkpoint.sizes)
    assert ours == {row.name for row in rows if row.component == "audio_decoder"}
