"""Stage 2 from shards to weights: `python -m training.train voice`."""

from __future__ import annotations

import argparse

import torch

from training.captured import CapturedStep
from training.checkpoint import SCALE, SHAPE
from training.codec import make_codec
from training.feeder import Feeder, read_speakers
from training.loop import Log, Loop
from training.optimizer import optimizer_of
from training.shape import sizes_of
from training.shards import Shards
from training.speech import PHONES
from training.talker import BETAS, PEAK_RATE, Bucket, make_voice, voice_step
from training.tensor_files import load_weights, save_weights
from training.tokenizer import demonstration_tokenizer
from trt_runtime.errors import UserError
from trt_runtime.geometry import Geometry


def buckets_of(geometry: Geometry, size: float) -> list[Bucket]:
    """Short and long utterances; `size` times the batch that fits one H200 well."""
    slots = 16 if geometry.patch == 1 else 6

    def patches(latents: int) -> int:
        return -(-latents // geometry.patch)

    return [
        Bucket(80, patches(48), max(2, int(256 * size)), min(slots, patches(48))),
        Bucket(144, patches(120), max(2, int(96 * size)), 2 * slots),
        Bucket(224, patches(180), max(2, int(64 * size)), 3 * slots),
    ]


def train_voice(options: argparse.Namespace, device: torch.device, log: Log) -> None:
    """Writes voice.safetensors into `options.out`. Raises UserError for input that cannot be used.

    options: those of :mod:`training.train`.
    """
    name = f"voice {options.patch}/{options.history}"
    sizes, geometry = sizes_of(options.patch, options.history)
    voice = make_voice(sizes, geometry, len(PHONES), options.seed).to(device)
    if options.start is not None:
        load_weights(options.start, voice, "a voice")
    codec = make_codec(sizes, geometry, 0).to(device)
    load_weights(options.codec, codec, "a codec")
    feeder = Feeder(
        codec, geometry, demonstration_tokenizer(sizes.talker.vocab_size),
        buckets_of(geometry, options.batch), read_speakers(options.speakers).to(device),
        Shards(options.speech, options.shards, log), log,
        most=options.most, most_latents=options.most_latents,
    )  # fmt: skip
    feeder.feed(least=options.first_shards)
    generator = torch.Generator(device).manual_seed(options.seed)
    optimizer = optimizer_of(voice, BETAS, not options.adam)
    loop = Loop(name, voice, optimizer, generator, options.out / "voice.resume.safetensors", log)
    steps, shares = [], []
    for bucket, utterances in zip(feeder.buckets, feeder.utterances, strict=True):
        # A step without utterances would be a loss of 0 / 0.
        if utterances.count > 0:
            made = voice_step(voice, utterances, bucket, optimizer, generator)
            steps.append(CapturedStep(made, generator))
            # Every utterance as often as any other.
            shares.append(int(utterances.count) / bucket.batch)
    if not steps:
        raise UserError(
            f"{options.speech} holds no utterance to train on",
            expected=f"some of at most {feeder.buckets[-1].patches} patches",
            found="longer ones, or none, or no room for a shard's latents",
            do="make other speech: python -m training.generate; or enlarge --most-latents",
        )
    log(f"{name}: the steps are ready, shares {', '.join(f'{share:.1f}' for share in shares)}")

    def save() -> None:
        beside = {
            SCALE: torch.tensor(feeder.scale),
            SHAPE: torch.tensor([options.patch, options.history]),
        }
        save_weights(options.out / "voice.safetensors", voice, **beside)

    loop.run(
        steps, shares, ("flow", "phones", "latents", "stop"), options.peak or PEAK_RATE,
        options.steps, options.seconds, save, feeder.feed,
    )  # fmt: skip
    log(f"{name}: done")
