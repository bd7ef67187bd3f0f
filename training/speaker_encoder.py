"""A small speaker encoder with the interface of CAM++: trained to tell flite's voices apart.

    python -m training.speaker_encoder OUT_FOLDER --program flite_speech

writes campplus.onnx, and embeddings.npz: 128 embeddings of each voice of the demonstration.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from export.speaker_encoder import CAMPPLUS, read_speaker_encoder
from export.whole_file import whole_file
from training.arguments import positive, seed
from training.corpus import read_sentences, split
from training.folders import made_folder
from training.speaker_network import onnx_bytes
from training.speaker_training import Waves, degraded, train_speaker_encoder
from training.speech import VOICES, find_program, spoken
from trt_runtime.errors import UserError
from trt_runtime.exit_status import exit_status, tell
from trt_runtime.reference_audio import read_reference
from trt_runtime.resampling import resample
from trt_runtime.speaker_encoder import SpeakerEncoder
from trt_runtime.speaker_features import SAMPLE_RATE

#: All that Debian's flite speaks English with; those of the demonstration first.
FLITE_VOICES = (*VOICES, "awb", "kal16")
#: Pitch, formants and tempo together by these factors make other voices of each. Nearer ones drive
#: a voice's own short sentences apart.
FACTORS = (0.84, 1.18)
#: Sentences of each voice, and of each changed one; embeddings that are kept; held-out sentences.
SENTENCES, CHANGED_SENTENCES, KEPT, HELD_OUT = 200, 60, 128, 20


def embeddings(encoder: SpeakerEncoder, waves: Sequence[np.ndarray]) -> np.ndarray:
    """(waves, 192) float32, of waves at 16 kHz taken as a request's references are."""
    return np.stack([encoder.embed(read_reference((wave, SAMPLE_RATE))[0]) for wave in waves])


def similarities(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float]:
    """Of embeddings of two voices: the least cosine within either one, the most between."""
    a, b = (e / np.linalg.norm(e, axis=1, keepdims=True) for e in (first, second))
    return float((a @ a.T).min()), float((b @ b.T).min()), float((a @ b.T).max())


def flite_voices(program: Path, texts: Sequence[str], voices: Sequence[str]) -> Waves:
    """Every text by every voice: (samples,) float32 at 16 kHz, full scale 1."""
    waves: dict[str, list[np.ndarray]] = {voice: [] for voice in voices}
    jobs = [(voice, text.lower()) for voice in voices for text in texts]
    for voice, _, audio, _ in spoken(program, jobs):
        waves[voice].append(audio.astype(np.float32) / 32768)
    return waves


def changed(voices: Waves) -> Waves:
    """Further voices: each one's first sentences as if recorded at another rate."""
    made: dict[str, list[np.ndarray]] = {}
    for name, waves in voices.items():
        for factor in FACTORS:
            rate, first = round(SAMPLE_RATE * factor), waves[:CHANGED_SENTENCES]
            made[f"{name} {factor}"] = [resample(wave, rate, SAMPLE_RATE) for wave in first]
    return made


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m training.speaker_encoder", description=(__doc__ or "").splitlines()[0]
    )
    result.add_argument("out", type=Path)
    result.add_argument(
        "--program", type=Path, required=True, help="training/flite_speech.c, built"
    )
    result.add_argument("--texts", type=Path, help="sentences, one a line, in place of WordNet's")
    result.add_argument("--steps", type=positive, default=1200)
    result.add_argument("--seed", type=seed, default=0)
    return result


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status: 2 for a user's mistake, 128 + N for signal N."""
    options = parser().parse_args(arguments)
    return exit_status(
        lambda: _run(options), "error", interrupted="interrupted; nothing half-written is left"
    )


def _run(options: argparse.Namespace) -> int:
    start = time.monotonic()

    def say(line: str) -> None:
        tell(f"{time.monotonic() - start:6.0f} s  {line}")

    torch.set_num_threads(1)  # the order of sums, and so the file, is the same everywhere
    program = find_program(options.program)
    kept, held = split(read_sentences(options.texts))
    if len(kept) < SENTENCES or len(held) < HELD_OUT:
        raise UserError(
            "There are too few sentences",
            expected=f"{SENTENCES} to train on and {HELD_OUT} held out",
            found=f"{len(kept)} and {len(held)}",
            do="give more with --texts, or leave it out where WordNet is installed",
        )
    draw = np.random.default_rng(options.seed)
    texts = [kept[i] for i in draw.choice(len(kept), SENTENCES, replace=False)]
    unheard = [held[i] for i in draw.choice(len(held), HELD_OUT, replace=False)]
    voices = flite_voices(program, texts, FLITE_VOICES)
    say(f"{len(texts)} sentences are spoken by {', '.join(voices)}")
    every = {**voices, **changed(voices)}
    network, _ = train_speaker_encoder(every, steps=options.steps, seed=options.seed, log=say)
    path = made_folder(options.out) / CAMPPLUS
    content = onnx_bytes(network)
    with whole_file(path, len(content)) as file:
        file.write(content)
    read_speaker_encoder(options.out)
    parameters = sum(p.numel() for p in network.parameters())
    say(f"{path}: {parameters} parameters, {path.stat().st_size} bytes")
    encoder = SpeakerEncoder(path, threads=1)
    arrays: dict[str, Any] = {v: embeddings(encoder, voices[v][:KEPT]) for v in VOICES}
    size = sum(array.nbytes for array in arrays.values())
    with whole_file(options.out / "embeddings.npz", size) as file:
        np.savez(file, **arrays)
    _report(encoder, flite_voices(program, unheard, VOICES), draw, say)
    return 0


def _report(
    encoder: SpeakerEncoder, clean: Waves, draw: np.random.Generator, say: Callable[[str], None]
) -> None:
    """How far apart the two voices are, in sentences that were not trained on."""
    coded = {v: [degraded(w, 8_000, 20, draw) for w in waves] for v, waves in clean.items()}
    quiet = {v: [w * np.float32(0.1) for w in waves] for v, waves in clean.items()}
    every = {v: [*clean[v], *coded[v], *quiet[v]] for v in VOICES}
    heard = {"clean": clean, "4 kHz, 20 dB": coded, "-20 dB": quiet, "all": every}
    for name, waves in heard.items():
        first, second, between = similarities(*(embeddings(encoder, waves[v]) for v in VOICES))
        say(f"{name}: within {first:.3f} and {second:.3f}, between {between:.3f}")


if __name__ == "__main__":
    sys.exit(main())
