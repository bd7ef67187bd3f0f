"""The two stages of training.

    python -m training.train codec --speech FOLDER --out FOLDER --steps N
    python -m training.train voice --speech FOLDER --out FOLDER --codec F --speakers F --steps N

Each keeps OUT/STAGE.resume.safetensors, from which the same command goes on, and writes its weights
to OUT/STAGE.safetensors now and then, and at the end.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from training.arguments import device_of, positive, positive_number, seed
from training.folders import made_folder
from trt_runtime.exit_status import exit_status

_START = time.monotonic()


def say(line: str) -> None:
    print(f"{time.monotonic() - _START:6.0f} s  {line}", flush=True)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m training.train", description=(__doc__ or "").splitlines()[0]
    )
    stages = result.add_subparsers(required=True, metavar="STAGE", dest="stage")
    codec = stages.add_parser("codec", help="the audio tokenizer")
    voice = stages.add_parser("voice", help="talker, flow, aggregator and stop head")
    for stage in (codec, voice):
        stage.add_argument("--speech", type=Path, required=True, help="shards of training.generate")
        stage.add_argument("--out", type=Path, required=True, help="folder of the weights")
        stage.add_argument("--device", default="cuda", help="cuda (the default), cuda:N or cpu")
        length = stage.add_mutually_exclusive_group(required=True)
        length.add_argument("--steps", type=positive, help="in all, also of a run that goes on")
        length.add_argument(
            "--seconds", type=positive_number, help="as many steps as take so long here"
        )
        stage.add_argument("--start", type=Path, help="weights of this stage to start from")
        stage.add_argument("--peak", type=positive_number, help="learning rate")
        stage.add_argument("--adam", action="store_true", help="Adam for matrices too, not Muon")
        stage.add_argument("--seed", type=seed, default=1)
        stage.add_argument(
            "--batch", type=positive_number, default=1.0, help="factor of the batches"
        )
    codec.add_argument("--shards", type=positive, default=2, help="most that are taken")
    codec.add_argument("--kl", type=positive_number, help="weight of the divergence")
    voice.add_argument("--shards", type=positive, default=1000, help="most that are taken")
    voice.add_argument("--codec", type=Path, required=True, help="codec.safetensors")
    voice.add_argument("--speakers", type=Path, required=True, help="embeddings.npz")
    voice.add_argument("--patch", type=positive, default=1, help="latents a step of the talker")
    voice.add_argument("--history", type=positive, default=1, help="latents the flow looks back on")
    voice.add_argument(
        "--first-shards", type=positive, default=1000,
        help="shards to wait for before training; later ones are taken as they appear",
    )  # fmt: skip
    voice.add_argument("--most", type=positive, default=200_000, help="utterances a bucket")
    voice.add_argument("--most-latents", type=positive, default=10_000_000)
    return result


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status: 2 for a user's mistake, 128 + N for signal N."""
    options = parser().parse_args(arguments)
    return exit_status(
        lambda: _run(options),
        "error",
        interrupted="interrupted; the same command goes on from what was last saved",
    )


def _run(options: argparse.Namespace) -> int:
    import torch

    device = device_of(options.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    made_folder(options.out)
    if options.stage == "codec":
        from training.codec_stage import train_codec

        train_codec(options, device, say)
    else:
        from training.voice_stage import train_voice

        train_voice(options, device, say)
    return 0


if __name__ == "__main__":
    sys.exit(main())
