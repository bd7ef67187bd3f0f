"""Built engines against the recordings of the upstream implementation: the worst relative errors.

    python -m benchmarks.parity --out benchmarks/results/parity.json

Takes the recordings as the tests do (`tests/goldens.py` says from where), exports and builds the
checkpoint that they were made with, and speaks every recorded request (plain, cloned, instructed,
dialogue, music, sounds) with the recorded noise, or computes an array. Relative error:
max |ours - reference| / max |reference| over an array.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.provenance import provenance, write_result
from engines import build_engines
from tests import goldens
from tests.goldens import load_npz, relative_error
from tests.trt_runtime import test_golden_audio_decoder as decoder
from tests.trt_runtime import test_golden_speech as speech
from trt_runtime.audio_encoder import encode_wave
from trt_runtime.folder import OpenFolder, open_folder
from trt_runtime.prompt_embedding import embed_tokens
from trt_runtime.speaker_features import filter_bank, speaker_features
from trt_runtime.synthesizer import Synthesizer
from trt_runtime.talker import Talker

#: An array's kind, the case it is of, and its error.
Row = tuple[str, str, float]


def requests(
    opened: OpenFolder, arrays: Mapping[str, np.ndarray], recorded: Mapping[str, Any]
) -> Iterator[Row]:
    """Whole requests, from text and reference waves to audio."""
    for case, meta in recorded.items():
        request = meta["request"]
        spoken = Synthesizer(opened).synthesize(
            request["text"],
            noise=speech.noise_of(case, dict(arrays)),
            trace=True,
            **speech.options_of(request),
        )
        trace = spoken.trace
        assert trace is not None
        common = spoken.audio[: meta["samples"]]
        wave = f"{case}/wave"
        if wave not in arrays:
            common, wave = common[::8], f"{case}/wave_every8"
        for kind, found, name in (
            ("prompt ids", trace.prompt_ids, f"{case}/ids"),
            ("reference latents", trace.reference_latents, f"{case}/prompt_latent"),
            ("hidden states", trace.hidden, f"{case}/z"),
            ("latents", trace.latents, f"{case}/latents"),
            ("stop probabilities", trace.stop_probabilities, f"{case}/stop_prob"),
            ("audio", common, wave),
        ):
            if name in arrays:
                yield kind, case, relative_error(found, arrays[name])


def prompts(opened: OpenFolder) -> Iterator[Row]:
    """Prompts of every recorded kind, with voices and instructions too: embeddings and prefill."""
    arrays = load_npz("dense_talker")
    for case in goldens.cases(arrays):
        # Numbered by layer; the last is after the final norm.
        names = [name for name in arrays if name.startswith(f"{case}/prefill_hidden")]
        last = max(names, key=lambda name: int(name.split("hidden")[1].lstrip("n")))
        ids, tokens = arrays[f"{case}/ids"], arrays[f"{case}/kind"] == 0
        g, backend = opened.manifest.geometry, opened.backend
        embedded = embed_tokens(backend, g, ids)
        embeds = arrays[f"{case}/embeds"]
        yield "token embeddings", case, relative_error(embedded[tokens], embeds[tokens])
        hidden = Talker(backend, g).prefill(embeds)
        yield "hidden states of a whole prompt", case, relative_error(hidden, arrays[last])


def decoded(opened: OpenFolder) -> Iterator[Row]:
    """Recorded latents to audio."""
    for case in decoder.WHOLE:
        latents = decoder.ARRAYS[f"{case}/latent"]
        (audio,) = decoder.decode(opened, latents, [len(latents)])
        error = relative_error(audio, decoder.ARRAYS[f"{case}/wave"])
        yield "audio of recorded latents", case, error


def encoded(opened: OpenFolder) -> Iterator[Row]:
    """Recorded waves to the posterior of their latents."""
    arrays = load_npz("dense_vae")
    for case in goldens.cases(arrays):
        if f"{case}/mean" in arrays:
            wave = arrays[f"{case}/wave"]
            mean, std = encode_wave(opened.backend, opened.manifest.geometry, wave)
            yield "latent means", case, relative_error(mean, arrays[f"{case}/mean"])
            yield "latent deviations", case, relative_error(std, arrays[f"{case}/std"])


def features(_: OpenFolder) -> Iterator[Row]:
    """Recorded waves to the speaker encoder's input."""
    arrays = load_npz("fbank")
    for case in goldens.cases(arrays):
        wave = arrays.get(f"{case}/wave16k", arrays[f"{case}/wave"])
        yield "Kaldi filter bank", case, relative_error(filter_bank(wave), arrays[f"{case}/fbank"])
        found = speaker_features(wave)
        yield "speaker features", case, relative_error(found, arrays[f"{case}/fbank_cmn"])


def worst(rows: Iterator[Row]) -> dict[str, dict[str, object]]:
    """By kind: how many arrays, the largest error, and the case that has it."""
    errors: dict[str, list[tuple[float, str]]] = {}
    for kind, case, error in rows:
        errors.setdefault(kind, []).append((error, case))
    result: dict[str, dict[str, object]] = {}
    for kind, found in errors.items():
        error, case = max(found)
        result[kind] = {"arrays": len(found), "worst_relative_error": error, "case": case}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON to write")
    options = parser.parse_args()
    dense, experts = goldens.dense_checkpoint(), goldens.moe_checkpoint()
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        opened, of_experts = (
            open_folder(build_engines(checkpoint, Path(folder) / checkpoint.name))
            for checkpoint in (dense, experts)
        )
        result = {
            **provenance("onnxruntime", "torch", "onnx", "numpy"),
            "goldens": "the full set" if goldens.FULL else "the repository's",
            "target": opened.manifest.target,
            "precision": "float32",
            "requests": {
                dense.name: worst(requests(opened, speech.ARRAYS, speech.META)),
                experts.name: worst(requests(of_experts, speech.MOE_ARRAYS, speech.MOE_META)),
            },
            "components": {
                dense.name: worst(
                    row for part in (prompts, encoded, features, decoded) for row in part(opened)
                ),
            },
        }
    write_result(options.out, result)


if __name__ == "__main__":
    main()
