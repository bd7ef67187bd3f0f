"""A program that stands for flite, and what is made of its tones: no flite, no WordNet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from training.codec import make_codec
from training.generate import main
from training.shape import sizes_of
from training.speech import VOICES
from training.tensor_files import save_weights

#: Speaks the protocol of training/flite_speech.c: a vowel is 80 ms of a tone of its own, anything
#: else 40 ms of silence, and 200 ms of silence are before and after.
_FLITE = """#!{python}
import math, struct, sys
NAMES = dict(a="aa", e="eh", i="iy", o="ow", u="uw")
TONES = dict(a=300, e=500, i=700, o=900, u=1100)
for line in sys.stdin:
    voice, text = line.rstrip("\\n").split("\\t")
    factor = {{"rms": 1.0, "slt": 1.5}}[voice]
    phones, audio = [], []
    for letter in "." * 5 + text + "." * 5:
        name, tone = NAMES.get(letter, "pau"), TONES.get(letter, 0)
        turn = factor * tone * 2 * math.pi / 16000
        audio += [int(9000 * math.sin(turn * n)) for n in range(1280 if tone else 640)]
        phones.append(struct.pack("<4sf", name.encode(), len(audio) / 16000))
    head = struct.pack("<ii", len(audio), len(phones))
    sys.stdout.buffer.write(head + b"".join(phones) + struct.pack(f"<{{len(audio)}}h", *audio))
"""

#: The first is held out.
TEXTS = (
    "never trained on", "a sea of ice", "blue as the sea", "oak and ash", "go out at noon",
    "ease into it", "a new idea", "each one of us", "our own house", "as one, or two", "you and i",
    "an open door", "we are at sea", "some ice",
)  # fmt: skip


def program(path: Path, text: str) -> Path:
    """An executable file."""
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture(scope="session")
def flite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("flite") / "flite_speech"
    return program(place, _FLITE.format(python=sys.executable))


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "sentences.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


@pytest.fixture(scope="session")
def speech(flite: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two shards, 7 and 6 utterances."""
    folder = tmp_path_factory.mktemp("speech")
    arguments = [
        "--program",
        flite,
        "--out",
        folder,
        "--texts",
        texts,
        "--shard",
        7,
        "--workers",
        2,
    ]
    assert main([str(argument) for argument in arguments]) == 0
    return folder


@pytest.fixture(scope="session")
def speakers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Embeddings as training.speaker_encoder keeps them, of noise."""
    path = tmp_path_factory.mktemp("speakers") / "embeddings.npz"
    draw = np.random.default_rng(0)
    np.savez(path, **{voice: draw.standard_normal((3, 192), np.float32) for voice in VOICES})
    return path


@pytest.fixture(scope="session")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a codec that has learnt nothing."""
    path = tmp_path_factory.mktemp("codec") / "codec.safetensors"
    made = make_codec(*sizes_of(1, 1), 1)
    with torch.no_grad():
        made.encoder.latent_weight.mul_(3)
    save_weights(path, made)
    return path


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Steps this small are slower on several, and their sums would depend on how many."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
