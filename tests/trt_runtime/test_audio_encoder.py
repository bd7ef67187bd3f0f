"""The audio encoder through built engines: the reference's recordings, and any cut of a wave."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.conftest import Folders
from tests.goldens import assert_close, cases, load_npz, needs_goldens
from tests.trt_runtime.test_bad_requests import edited
from trt_runtime.audio_encoder import encode_wave, padding_unit
from trt_runtime.errors import FolderError, UserError
from trt_runtime.folder import OpenFolder, open_folder
from trt_runtime.geometry import Geometry

ARRAYS = load_npz("dense_vae")
CASES = [case for case in cases(ARRAYS) if case.startswith("enc")]


@pytest.fixture(scope="module")
def opened(dense: Folders) -> OpenFolder:
    return open_folder(dense.engines, threads=1)


def noise(samples: int, seed: int = 0) -> np.ndarray:
    """(samples,) float32, as loud as speech, and different everywhere."""
    return (0.1 * np.random.default_rng(seed).standard_normal(samples)).astype(np.float32)


def encode(opened: OpenFolder, wave: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return encode_wave(opened.backend, opened.manifest.geometry, wave)


@needs_goldens
def test_there_are_cases() -> None:
    assert len(CASES) >= 3


@pytest.mark.parametrize("case", CASES)
def test_the_references_posterior(opened: OpenFolder, case: str) -> None:
    """One frame, one latent, and a wave that ends within a frame and within a latent."""
    mean, std = encode(opened, ARRAYS[f"{case}/wave"])
    assert mean.dtype == std.dtype == np.float32
    assert_close(mean, ARRAYS[f"{case}/mean"], "mean")
    assert_close(std, ARRAYS[f"{case}/std"], "std")
    # The recorded draw, (1, latent_dim, latents) as the reference draws it.
    assert_close(mean + std * ARRAYS[f"{case}/noise"][0].T, ARRAYS[f"{case}/latent"], "latent")


@pytest.mark.parametrize("latents", [1, 5, 15, 16, 17, 31, 32, 33])
def test_the_beginning_of_a_wave_gives_the_first_latents(opened: OpenFolder, latents: int) -> None:
    """Causal: whatever follows, and wherever a call of 16 latents ends."""
    unit = opened.manifest.geometry.samples_per_latent
    wave = noise(40 * unit)
    mean, std = encode(opened, wave)
    assert mean.shape == std.shape == (40, opened.manifest.geometry.latent_dim)
    first_mean, first_std = encode(opened, wave[: latents * unit])
    np.testing.assert_array_equal(first_mean, mean[:latents])
    np.testing.assert_array_equal(first_std, std[:latents])


def test_every_latent_hears_what_came_before(opened: OpenFolder) -> None:
    """The caches reach back over calls: a change at the start moves a latent two calls later."""
    unit = opened.manifest.geometry.samples_per_latent
    wave = noise(40 * unit)
    changed = wave.copy()
    changed[: 4 * unit] = noise(4 * unit, seed=1)
    mean, other = encode(opened, wave)[0], encode(opened, changed)[0]
    assert (np.abs(mean - other).max(axis=1) > 1e-5 * np.abs(mean).max()).all()


def test_the_last_latent_hears_only_its_own_wave(opened: OpenFolder) -> None:
    unit = opened.manifest.geometry.samples_per_latent
    wave = noise(20 * unit)
    changed = wave.copy()
    changed[-1] += 0.5
    mean, other = encode(opened, wave)[0], encode(opened, changed)[0]
    np.testing.assert_array_equal(mean[:-1], other[:-1])
    assert not np.array_equal(mean[-1], other[-1])


@pytest.mark.parametrize("latents", [1, 3, 16, 17])
def test_a_part_of_a_frame_counts_as_a_frame(opened: OpenFolder, latents: int) -> None:
    """Zeros that fill the last frame change nothing; a frame of zeros is another latent's end."""
    g = opened.manifest.geometry
    whole = (latents - 1) * g.samples_per_latent + g.encoder_hop
    wave = noise(whole - 100)
    mean, std = encode(opened, wave)
    assert len(mean) == latents
    filled_mean, filled_std = encode(opened, np.pad(wave, (0, 100)))
    np.testing.assert_array_equal(mean, filled_mean)
    np.testing.assert_array_equal(std, filled_std)
    longer = encode(opened, np.pad(wave, (0, 100 + g.encoder_hop)))[0]
    assert len(longer) == latents
    np.testing.assert_array_equal(longer[:-1], mean[:-1])
    assert not np.array_equal(longer[-1], mean[-1])


def test_nothing_is_kept_between_waves(opened: OpenFolder) -> None:
    unit = opened.manifest.geometry.samples_per_latent
    wave = noise(18 * unit)
    first = encode(opened, wave)
    encode(opened, noise(40 * unit, seed=2))
    for before, after in zip(first, encode(opened, wave), strict=True):
        np.testing.assert_array_equal(before, after)


def test_deviations_are_positive_even_of_silence(opened: OpenFolder) -> None:
    mean, std = encode(opened, np.zeros(opened.manifest.geometry.samples_per_patch, np.float32))
    assert np.isfinite(mean).all()
    assert (std >= 1e-4).all()


def test_as_much_as_the_engines_take_and_no_more(opened: OpenFolder) -> None:
    g = opened.manifest.geometry
    longest = g.max_reference_latents * g.samples_per_latent
    wave = noise(longest + 1)
    mean, _ = encode(opened, wave[:-1])
    assert len(mean) == g.max_reference_latents
    np.testing.assert_array_equal(mean[:16], encode(opened, wave[: 16 * g.samples_per_latent])[0])
    with pytest.raises(UserError, match="too long for these engines") as caught:
        encode(opened, wave)
    assert "--max-reference-latents" in str(caught.value)
    assert f"at most {longest / g.sample_rate:.1f} s" in str(caught.value)


def test_an_empty_wave(opened: OpenFolder) -> None:
    with pytest.raises(UserError, match="empty"):
        encode(opened, np.zeros(0, np.float32))


def test_a_folder_without_the_graph(
    dense: Folders, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("without") / "engines"
    opened = open_folder(edited(dense.engines, folder, lambda m: m["graphs"].pop("audio_encoder")))
    with pytest.raises(FolderError, match="no audio encoder") as caught:
        encode(opened, noise(5000))
    assert "export" in str(caught.value)


def test_the_padding_of_the_released_models(opened: OpenFolder) -> None:
    """int(1 / 12.5 * patch * rate) samples: one patch where the clock is the released models'."""
    g = opened.manifest.geometry
    assert padding_unit(g) == int(1 / 12.5 * g.patch * g.sample_rate) == g.samples_per_patch


@pytest.mark.parametrize(
    ("rate", "hop", "per_latent", "patch"),
    [(44100, 882, 4, 4), (24000, 480, 4, 5), (16000, 16, 4, 4), (8000, 7, 3, 2), (10, 1, 1, 1)],
)
def test_padding_is_always_whole_patches(
    opened: OpenFolder, rate: int, hop: int, per_latent: int, patch: int
) -> None:
    """Of another clock too: a reference of half a patch could not be used."""
    g: Geometry = dataclasses.replace(
        opened.manifest.geometry,
        sample_rate=rate,
        encoder_hop=hop,
        frames_per_latent=per_latent,
        patch=patch,
    )
    unit = padding_unit(g)
    assert unit > 0
    assert unit % (patch * g.samples_per_latent) == 0
