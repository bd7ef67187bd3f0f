"""What was measured, as values that JSON holds: raw values, medians, ratios, and where from."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

from trt_runtime.cuda_devices import describe_cuda
from trt_runtime.machine import describe_machine
from trt_runtime.manifest import Manifest
from trt_runtime.measuring import Measured, Measurements, Run
from trt_runtime.spread import spread
from trt_runtime.tensorrt_library import MODULES, installed_version
from trt_runtime.version import __version__

#: The first form of the report; one that a reader of this could not read gets another number.
FORMAT_VERSION = 1
#: What the runtime computes with, where it is installed.
_PACKAGES = ("numpy", "torch", "triton")


def report(measurements: Measurements) -> dict[str, Any]:
    """All of it: docs/bench.md says what each value is."""
    plan, folders = measurements.plan, measurements.folders
    return {
        "format": "ming-trt-bench",
        "format_version": FORMAT_VERSION,
        "options": {
            "engines": str(folders[0].path),
            "peers": [str(peer.path) for peer in folders[1:]],
            **asdict(plan),
        },
        "machine": describe_machine(),
        "gpu": describe_cuda(),
        "python": platform.python_version(),
        "versions": versions(),
        "peak_bytes": measurements.peak_bytes,
        "folders": [_folder(measured, folders[0]) for measured in folders],
    }


def versions() -> dict[str, str]:
    """By package, of those that are installed; TensorRT's by target, whatever provides it."""
    described = describe_machine()["onnxruntime"]
    found = {"ming-trt": __version__} | ({"onnxruntime": described} if described else {})
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    libraries = {target: installed_version(target) for target in MODULES}
    return found | {target: version for target, version in libraries.items() if version}


def _folder(measured: Measured, first: Measured) -> dict[str, Any]:
    """`first`: what the ratios of a peer are to."""
    rate = measured.manifest.geometry.sample_rate
    described = {
        "folder": str(measured.path),
        **_facts(measured.manifest),
        "warnings": list(measured.warnings),
        "prompt_tokens": measured.prompt_tokens,
        "load_seconds": measured.load_seconds,
        "warmup_seconds": measured.warmup_seconds,
        "resident_bytes": measured.resident_bytes,
        "device_bytes": measured.device_bytes,
        "runs": [{**asdict(run), "audio_seconds": run.samples / rate} for run in measured.runs],
    }
    rows = [figures(run, rate) for run in measured.runs]
    described["medians"] = _spreads(rows)
    if measured is not first:
        others = [figures(run, first.manifest.geometry.sample_rate) for run in first.runs]
        described["ratios"] = _spreads([_divided(*pair) for pair in zip(rows, others, strict=True)])
    return described


def _facts(manifest: Manifest) -> dict[str, Any]:
    """What of a manifest says which engines these are; None or empty in a bundle, as it is there.

    `key` is that of everything which the engines were built from and with.
    """
    geometry = manifest.geometry
    return {
        "kind": manifest.kind,
        "family": manifest.family,
        "target": manifest.target,
        "precision": dict(manifest.precision),
        "backends": {name: entry.backend for name, entry in manifest.components.items()},
        "source_sha256": manifest.source.get("tensors_sha256"),
        "key": manifest.build.get("key"),
        "sample_rate": geometry.sample_rate,
        "samples_per_patch": geometry.samples_per_patch,
    }


def figures(run: Run, sample_rate: int) -> dict[str, float]:
    """What is told of a run, by name; of requests that share steps after their number of slots.

    The talker's time is shared among the steps but the first, whose hidden state is the prompt's;
    a step's is the whole request's but for reading the prompt.
    """
    audio, parts = run.samples / sample_rate, run.components
    reading = parts["prompt_embedding"] + parts["prefill"]
    found = {
        "first_audio_seconds": run.first_audio_seconds,
        "real_time_factor": run.seconds / audio,
        "prompt_embedding_ms": 1e3 * parts["prompt_embedding"],
        "prefill_ms": 1e3 * parts["prefill"],
        "step_ms": 1e3 * (run.seconds - reading) / run.steps,
        "talker_ms": 1e3 * parts["talker"] / (run.steps - 1),
        "tail_ms": 1e3 * parts["flow"] / run.steps,
        "audio_decoder_ms": 1e3 * parts["audio_decoder"] / run.steps,
    }
    for together in run.together:
        rate = together.audio_seconds / together.seconds
        found[f"{together.slots}_slots_audio_per_second"] = rate
        found[f"{together.slots}_slots_to_one_at_a_time"] = rate * run.seconds / audio
    return found


def _divided(row: Mapping[str, float], by: Mapping[str, float]) -> dict[str, float]:
    return {name: row[name] / by[name] for name in row}


def _spreads(rows: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {name: spread([row[name] for row in rows]) for name in rows[0]}
