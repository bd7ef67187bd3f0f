"""The audio decoder through built engines against the reference, whole and in pieces."""

from __future__ import annotations

import numpy as np
import pytest

from tests.goldens import assert_close, load_npz
from trt_runtime.audio_decoder import AudioDecoder
from trt_runtime.folder import OpenFolder

ARRAYS = load_npz("dense_vae")
WHOLE = sorted({n.split("/")[0] for n in ARRAYS if n.startswith("dec") and n.endswith("/wave")})
STREAMS = sorted(
    {tuple(name.split("/")[:2]) for name in ARRAYS if "/stream_" in name and "/chunk" in name}
)


def decode(opened: OpenFolder, latents: np.ndarray, pieces: list[int]) -> list[np.ndarray]:
    """The audio of each piece of `latents`; the last piece is marked as the last."""
    decoder = AudioDecoder(opened.backend, opened.manifest.geometry)
    audio, start = [], 0
    for number, count in enumerate(pieces):
        last = number == len(pieces) - 1
        audio.append(decoder.decode(latents[start : start + count], last=last))
        start += count
    assert start == len(latents)
    return audio


@pytest.mark.parametrize("case", WHOLE)
def test_whole(dense_engines: OpenFolder, case: str) -> None:
    latents = ARRAYS[f"{case}/latent"]
    (audio,) = decode(dense_engines, latents, [len(latents)])
    assert_close(audio, ARRAYS[f"{case}/wave"], case)


@pytest.mark.parametrize(("case", "stream"), STREAMS)
def test_streamed(dense_engines: OpenFolder, case: str, stream: str) -> None:
    """The same samples as the reference's stream, and never later than it emits them."""
    pieces = [int(count) for count in stream.removeprefix("stream_").split("-")]
    audio = decode(dense_engines, ARRAYS[f"{case}/latent"], pieces)
    reference = [ARRAYS[f"{case}/{stream}/chunk{n}"] for n in range(len(pieces))]
    assert_close(np.concatenate(audio), np.concatenate(reference), f"{case} {stream}")
    ours = np.cumsum([len(part) for part in audio])
    theirs = np.cumsum([len(part) for part in reference])
    assert (ours >= theirs).all()


def test_flush_without_data(dense_engines: OpenFolder) -> None:
    """The tail can be asked for after the fact, which the reference cannot do."""
    case = WHOLE[-1]
    latents = ARRAYS[f"{case}/latent"]
    audio = decode(dense_engines, latents, [len(latents), 0])
    assert len(audio[1])
    assert_close(np.concatenate(audio), ARRAYS[f"{case}/wave"], "flushed")


def test_nothing_in_nothing_out(dense_engines: OpenFolder) -> None:
    decoder = AudioDecoder(dense_engines.backend, dense_engines.manifest.geometry)
    empty = np.zeros((0, dense_engines.manifest.geometry.latent_dim), np.float32)
    assert len(decoder.decode(empty, last=False)) == 0
    assert len(decoder.decode(empty, last=True)) == 0
