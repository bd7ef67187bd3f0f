"""Stage 1 from shards to weights: `python -m training.train codec`."""

from __future__ import annotations

import argparse

import torch

from training.captured import CapturedStep
from training.codec import (
    BATCH,
    BETAS,
    CROP_LATENTS,
    KL_WEIGHT,
    PEAK_RATE,
    codec_step,
    make_codec,
    reconstruction_error,
)
from training.loop import Log, Loop
from training.optimizer import optimizer_of
from training.shape import sizes_of
from training.shards import Shards, read_shard
from training.tensor_files import load_weights, save_weights
from trt_runtime.errors import UserError

#: Never trained on: the first minute of speech, or of less than two minutes the first half.
_HELD_OUT_SECONDS = 60


def train_codec(options: argparse.Namespace, device: torch.device, log: Log) -> None:
    """Writes codec.safetensors into `options.out`. Raises UserError for input that cannot be used.

    options: those of :mod:`training.train`.
    """
    sizes, geometry = sizes_of(1, 1)
    codec = make_codec(sizes, geometry, options.seed).to(device)
    if options.start is not None:
        load_weights(options.start, codec, "a codec")
    audio = _audio(Shards(options.speech, options.shards, log), device)
    held_out = min(_HELD_OUT_SECONDS * geometry.sample_rate, len(audio) // 2)
    held, audio = audio[:held_out], audio[held_out:]
    least = CROP_LATENTS * geometry.samples_per_latent
    if len(held) <= least:
        raise UserError(
            f"{options.speech} holds too little speech",
            expected=f"{2 * least / geometry.sample_rate:.1f} s and more, half of it held out",
            found=f"{(len(held) + len(audio)) / geometry.sample_rate:.1f} s",
            do="make more: python -m training.generate with a larger --most",
        )
    log(f"codec: {len(audio) / geometry.sample_rate / 3600:.1f} h of speech")
    generator = torch.Generator(device).manual_seed(options.seed)
    optimizer = optimizer_of(codec, BETAS, not options.adam)
    loop = Loop("codec", codec, optimizer, generator, options.out / "codec.resume.safetensors", log)
    batch = max(1, round(BATCH * options.batch))
    made = codec_step(codec, audio, optimizer, generator, options.kl or KL_WEIGHT, batch)
    step = CapturedStep(made, generator)
    log("codec: the step is ready")

    def save() -> None:
        save_weights(options.out / "codec.safetensors", codec)
        log(f"codec: held-out mel error {reconstruction_error(codec, held):.4f}")

    loop.run(
        [step], [1.0], ("bins", "mels", "kl"), options.peak or PEAK_RATE, options.steps,
        options.seconds, save,
    )  # fmt: skip


def _audio(shards: Shards, device: torch.device) -> torch.Tensor:
    """All of the shards' speech, (samples,) int16."""
    waves = []
    while (path := shards.following(wait=True)) is not None:
        waves.append(torch.as_tensor(read_shard(path)["audio"]).to(device))
    return torch.cat(waves)
