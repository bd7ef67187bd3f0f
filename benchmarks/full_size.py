"""Export, build and speech at full size: seconds and peak memory of each step, next to PyTorch.

    python -m benchmarks.full_size CHECKPOINT WORK --out benchmarks/results/full-size-cpu.json

CHECKPOINT is a folder written by benchmarks/full_size_checkpoint.py. Every step runs in a process
of its own, so that its peak memory is its own; the peers speak the same request (same noise, same
number of steps) through the same loop, one after the other, `--repeats` times in rotation.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.provenance import provenance, write_result
from trt_runtime.backends.onnxruntime_cpu import usable_cores
from trt_runtime.contract import ON_DEMAND
from trt_runtime.folder import OpenFolder, open_folder
from trt_runtime.memory import peak_memory
from trt_runtime.spread import spread
from trt_runtime.synthesizer import Synthesizer

TEXT = (
    "The quick brown fox jumps over the lazy dog, and nobody is surprised at three in the morning."
)
#: A reference of 10 s to encode: its latents cost the same whatever it says.
REFERENCE_SECONDS = 10

PEERS = ("engines", "bundle", "torch-float32", "torch-bfloat16")


def speak(peer: str, checkpoint: Path, work: Path, steps: int, threads: int) -> dict[str, object]:
    """One request by one peer: its timings, and memory before and while speaking."""
    from trt_runtime.manifest import read_manifest

    start = time.perf_counter()
    bundle = work / "bundle"
    if peer.startswith("torch-"):
        import torch

        from engines.comparison.torch_reference import TorchBackend
        from export.checkpoint import Checkpoint

        manifest = read_manifest(bundle)
        dtype = getattr(torch, peer.removeprefix("torch-"))
        source = Checkpoint.open(checkpoint)
        backend = TorchBackend(source, manifest.geometry, dtype=dtype, threads=threads)
        opened = OpenFolder(bundle, manifest, backend)
    else:
        opened = open_folder(work / "engines" if peer == "engines" else bundle, threads=threads)
    synthesizer = Synthesizer(opened)
    loaded = time.perf_counter() - start
    load_peak = peak_memory()
    synthesizer.warmup()
    speech = synthesizer.synthesize(TEXT, max_steps=steps, min_steps=steps, seed=1, trace=True)
    assert speech.trace is not None
    speech_peak = peak_memory()
    return {
        **encode(opened),
        "prompt_tokens": len(speech.trace.prompt_ids),
        "peer": peer,
        "load_seconds": loaded,
        "load_peak_bytes": load_peak,
        "peak_bytes": speech_peak,
        "audio_seconds": speech.duration,
        "total_seconds": speech.timings.total,
        "first_audio_seconds": speech.timings.first_audio,
        "component_seconds": dict(speech.timings.components),
    }


def encode(opened: OpenFolder) -> dict[str, object]:
    """Encoding a reference's latents, after speech: the first time, with loading, and the next."""
    from trt_runtime.audio_encoder import encode_wave

    g = opened.manifest.geometry
    generator = np.random.Generator(np.random.Philox(0))
    wave = np.float32(0.1) * generator.standard_normal(
        REFERENCE_SECONDS * g.sample_rate, dtype=np.float32
    )
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        encode_wave(opened.backend, g, wave)
        seconds.append(time.perf_counter() - start)
    return {
        "reference_seconds": REFERENCE_SECONDS,
        "first_encode_seconds": seconds[0],
        "encode_seconds": seconds[1],
        "encode_peak_bytes": peak_memory(),
    }


def run_step(*arguments: str) -> dict[str, float]:
    """Seconds and peak memory of a command, in a process of its own."""
    code = (
        "import json,resource,subprocess,sys,time;s=time.perf_counter();"
        "subprocess.run(sys.argv[1:],check=True,stdout=sys.stderr);"
        "r=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss;"
        "print(json.dumps([time.perf_counter()-s,r]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.PIPE
    )
    seconds, peak = json.loads(result.stdout)
    scale = 1 if sys.platform == "darwin" else 1024
    return {"seconds": seconds, "peak_bytes": peak * scale}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("work", type=Path, help="folder for bundle and engines (some 7 GB)")
    parser.add_argument("--out", type=Path, help="JSON to write")
    parser.add_argument("--steps", type=int, default=16, help="patches to speak (16 are 5.12 s)")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--speak", choices=PEERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    common = (options.checkpoint, options.work, options.steps, options.threads)
    if options.speak:
        print(json.dumps(speak(options.speak, *common)))
        return
    python = sys.executable
    bundle, engines = options.work / "bundle", options.work / "engines"
    steps = {
        "export": run_step(python, "-m", "export", str(options.checkpoint), str(bundle)),
        "build": run_step(
            python, "-m", "engines.cli", str(bundle), "--target", "cpu", "--out", str(engines)
        ),
        "build again": run_step(
            python, "-m", "engines.cli", str(bundle), "--target", "cpu", "--out", str(engines)
        ),
    }
    runs: dict[str, list[dict[str, object]]] = {peer: [] for peer in options.peers}
    for _ in range(options.repeats):
        for peer in options.peers:
            command = [python, "-m", "benchmarks.full_size", *sys.argv[1:], "--speak", peer]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            runs[peer].append(json.loads(output))
            print(peer, runs[peer][-1], file=sys.stderr)
    result = {
        **provenance("torch", "onnxruntime", "numpy", "onnx"),
        "threads": options.threads,
        "text": TEXT,
        "disk_bytes": {
            name: sum(file.stat().st_size for file in folder.iterdir())
            for name, folder in (
                ("checkpoint", options.checkpoint),
                ("bundle", bundle),
                ("engines", engines),
            )
        },
        "weights_bytes": weights_bytes(engines),
        **parameters(options.checkpoint),
        "prompt_tokens": next(iter(runs.values()))[0]["prompt_tokens"],
        "steps": steps,
        "speech": {peer: summary(peer_runs) for peer, peer_runs in runs.items()},
        "runs": runs,
    }
    write_result(options.out, result)


def weights_bytes(engines: Path) -> int:
    """Size of the weights that the loop holds, in the engines' precision."""
    files = set(engines.glob("*.weights")) - {engines / f"{name}.weights" for name in ON_DEMAND}
    return sum(file.stat().st_size for file in files)


def parameters(checkpoint: Path) -> dict[str, int]:
    """Parameters stored, and those that plain speech uses."""
    from export.checkpoint import Checkpoint

    opened = Checkpoint.open(checkpoint)
    used = {
        name
        for row in opened.family.components(opened.sizes)
        if row.component not in ON_DEMAND
        for name in row.sources
    }
    counts = {name: math.prod(info.shape) for name, info in opened.tensors.items()}
    return {
        "parameters": sum(counts.values()),
        "used_parameters": sum(count for name, count in counts.items() if name in used),
    }


def summary(runs: list[dict[str, object]]) -> dict[str, object]:
    """Median of each figure over the runs, with its least and most."""

    audio = float(runs[0]["audio_seconds"])  # type: ignore[arg-type]
    components = runs[0]["component_seconds"]
    assert isinstance(components, dict)
    return {
        "real_time_factor": spread([float(r["total_seconds"]) / audio for r in runs]),  # type: ignore[arg-type]
        "first_audio_seconds": spread([float(r["first_audio_seconds"]) for r in runs]),  # type: ignore[arg-type]
        "load_seconds": spread([float(r["load_seconds"]) for r in runs]),  # type: ignore[arg-type]
        "peak_bytes": spread([float(r["peak_bytes"]) for r in runs]),  # type: ignore[arg-type]
        **{
            name: spread([float(r[name]) for r in runs])  # type: ignore[arg-type]
            for name in ("first_encode_seconds", "encode_seconds", "encode_peak_bytes")
        },
        "load_peak_bytes": spread([float(r["load_peak_bytes"]) for r in runs]),  # type: ignore[arg-type]
        "component_real_time_factor": {
            name: spread([float(r["component_seconds"][name]) / audio for r in runs])  # type: ignore[index]
            for name in components
        },
    }


if __name__ == "__main__":
    main()
