"""Trained parameters as a checkpoint in the released layout: the exporter's table, inverted.

    python -m training.checkpoint --codec CODEC --voice VOICE --speaker-encoder ONNX --out FOLDER

`Parameter` says how the exporter makes ours of the released tensors; here each is taken apart
again, so that what was trained through the exporter's modules is read back by the exporter.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save

from export.families import family_of
from export.parameters import CONCAT, COPY, TRANSPOSE, TRANSPOSE_CONCAT, Parameter
from export.speaker_encoder import CAMPPLUS, check_speaker_encoder
from export.weight_files import SINGLE
from export.whole_file import whole_file, write_json
from training.arguments import positive
from training.folders import made_folder
from training.shape import config
from training.tensor_files import read_tensors
from training.tokenizer import write_tokenizer
from trt_runtime.errors import UserError, reason_of
from trt_runtime.exit_status import exit_status

#: In a voice's file: the deviation of the latents that it was trained on.
SCALE = "latent_scale"
#: The same: its patch and history, which no weight's shape tells. Older files are without.
SHAPE = "patch_history"
_EXACT = (".inv_freq", ".istft.window")
_TRAIN_AGAIN = (
    "give the files that python -m training.train wrote, with the --patch and --history that they "
    "were trained with"
)


def write_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    trained: Mapping[str, np.ndarray],
    scale: float,
    speaker_encoder: bytes | None = None,
) -> None:
    """Writes config.json, tokenizer.json and model.safetensors (bfloat16) into `folder`.

    trained: float arrays by the exporter's parameter names. `scale` is the deviation of the audio
    tokenizer's latents by which those of the voice were divided: folded into the tokenizer here.
    speaker_encoder: the bytes of its campplus.onnx.

    Raises UserError before anything is written where a parameter is missing, has another shape or
    is not finite, and where `folder` cannot be written to.
    """
    family = family_of(config)
    sizes = family.sizes(config)
    table = family.components(sizes)
    _check(table, trained, scale)
    values = _with_scale(trained, scale, sizes.audio.latent_dim)
    tensors: dict[str, np.ndarray] = {}
    for parameter in table:
        for source, value in _sources(parameter, values[parameter.name]):
            exact = source.endswith(_EXACT)
            tensors[source] = np.ascontiguousarray(
                value.astype(np.float32 if exact else ml_dtypes.bfloat16)
            )
    made_folder(folder)
    write_json(folder / "config.json", config)
    write_tokenizer(folder, sizes.talker.vocab_size)
    _write(folder / SINGLE, save(tensors, {"format": "pt"}))
    if speaker_encoder is not None:
        _write(folder / CAMPPLUS, speaker_encoder)


def _write(path: Path, data: bytes) -> None:
    with whole_file(path, len(data)) as file:
        file.write(data)


def _check(table: Sequence[Parameter], trained: Mapping[str, np.ndarray], scale: float) -> None:
    if not 0 < scale < math.inf:
        raise UserError(
            "The deviation of the latents cannot be used",
            expected="a finite number above zero",
            found=str(scale),
            do=_TRAIN_AGAIN,
        )
    for parameter in table:
        value = trained.get(parameter.name)
        if value is None or value.shape != parameter.shape or not np.isfinite(value).all():
            found = "no such tensor" if value is None else f"shape {list(value.shape)}"
            if value is not None and value.shape == parameter.shape:
                found = "NaN or infinity"
            raise UserError(
                f"{parameter.name} does not fit the checkpoint",
                expected=f"finite numbers of shape {list(parameter.shape)}",
                found=found,
                do=_TRAIN_AGAIN,
            )


def _sources(parameter: Parameter, value: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    if parameter.transform == COPY:
        pieces = [value]
    elif parameter.transform == TRANSPOSE:
        pieces = [value.T]
    elif parameter.transform in (TRANSPOSE_CONCAT, CONCAT):
        ends = np.cumsum([shape[0] for shape in parameter.source_shapes])[:-1]
        pieces = [piece.T for piece in np.split(value, ends, axis=-1)]
    else:
        raise AssertionError(f"{parameter.name}: no inverse of {parameter.transform}")
    yield from zip(parameter.sources, pieces, strict=True)


def _with_scale(
    trained: Mapping[str, np.ndarray], scale: float, latent_dim: int
) -> dict[str, np.ndarray]:
    values = {name: np.asarray(value, np.float32) for name, value in trained.items()}
    weight, bias = values["audio_encoder.latent_weight"], values["audio_encoder.latent_bias"]
    weight, bias = weight.copy(), bias.copy()
    weight[:, :latent_dim] /= scale
    bias[:latent_dim] /= scale
    bias[latent_dim:] -= 2 * math.log(scale)  # the log-variance
    decoder = values["audio_decoder.latent_weight"] * scale
    return values | {
        "audio_encoder.latent_weight": weight,
        "audio_encoder.latent_bias": bias,
        "audio_decoder.latent_weight": decoder,
    }


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m training.checkpoint", description="Writes trained weights as a checkpoint."
    )
    result.add_argument("--codec", type=Path, required=True, help="codec.safetensors")
    result.add_argument("--voice", type=Path, required=True, help="voice.safetensors")
    result.add_argument("--speaker-encoder", type=Path, required=True, help="campplus.onnx")
    result.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    result.add_argument("--patch", type=positive, default=1, help="as in training")
    result.add_argument("--history", type=positive, default=1, help="as in training")
    return result


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status: 2 for a user's mistake, 128 + N for signal N."""
    options = parser().parse_args(arguments)
    return exit_status(
        lambda: _run(options), "error", interrupted="interrupted; run it again to have all files"
    )


def _run(options: argparse.Namespace) -> int:
    codec = read_tensors(options.codec, "the weights of a codec", _TRAIN_AGAIN)
    voice = read_tensors(options.voice, "the weights of a voice", _TRAIN_AGAIN)
    for name, sizes in ((SCALE, []), (SHAPE, [2])):
        # Older files have no SHAPE.
        found = list(voice[name].shape) if name in voice else None
        if found != sizes and not (name == SHAPE and found is None):
            raise UserError(
                f"{options.voice} holds no voice",
                expected=f"a tensor {name} of shape {sizes} beside the weights",
                found="none" if found is None else f"one of shape {found}",
                do=_TRAIN_AGAIN,
            )
    shape = [options.patch, options.history]
    trained_as = voice.pop(SHAPE).tolist() if SHAPE in voice else shape
    if trained_as != shape:
        raise UserError(
            f"{options.voice} is a voice of other sizes",
            expected=f"--patch {trained_as[0]} --history {trained_as[1]}, as it was trained",
            found=f"--patch {shape[0]} --history {shape[1]}",
            do="give those that it was trained with",
        )
    trained = {name: value.float().numpy() for name, value in {**codec, **voice}.items()}
    scale = float(trained.pop(SCALE))
    encoder = _speaker_encoder(options.speaker_encoder)
    write_checkpoint(options.out, config(*shape), trained, scale, encoder)
    print(f"checkpoint: {options.out}", flush=True)
    return 0


def _speaker_encoder(path: Path) -> bytes:
    do = "make it: python -m training.speaker_encoder"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read",
            expected=f"the {CAMPPLUS} of the voice",
            found=reason_of(error),
            do=do,
        ) from error
    try:
        check_speaker_encoder(path, content)
    except UserError as error:
        raise UserError(error.what, expected=error.expected, found=error.found, do=do) from error
    return content


if __name__ == "__main__":
    sys.exit(main())
