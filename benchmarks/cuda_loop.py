"""Engines of target cuda on a GPU: held to what CPU engines recorded, and the time of a step.

    python -m benchmarks.cuda_loop record CPU_ENGINES recorded.npz
    python -m benchmarks.cuda_loop compare CUDA_ENGINES recorded.npz
    python -m benchmarks.cuda_loop time CUDA_ENGINES --talker dense --out results.json

`record` walks some slots through a prompt and a few steps, component by component; `compare` gives
each component the recorded inputs, so that the talker's bfloat16 is not blamed on the tail. `time`
runs whole steps (talker, tail, audio decoder of every slot, and what the loop reads) with random
weights of the released sizes for the talker; a hollow folder (benchmarks/hollow.py) is filled
first.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hollow import RECIPE, fill
from benchmarks.provenance import check_result, provenance, write_result
from tests.goldens import relative_error
from trt_runtime.audio_decoder import AudioDecoder
from trt_runtime.backends.interface import Backend
from trt_runtime.batch import Batch
from trt_runtime.contract import TAIL
from trt_runtime.cuda_devices import describe_cuda
from trt_runtime.exit_status import exit_status
from trt_runtime.folder import OpenFolder, check_contract, open_folder
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import read_manifest
from trt_runtime.spread import spread
from trt_runtime.synthesizer import Synthesizer
from trt_runtime.tail import make_tail

#: Slots of a recording, and how many of them a comparison runs at a time.
RECORDED_SLOTS, COMPARED = 4, (1, 2, 3, 4)
PROMPT, STEPS, SPOKEN = 70, 6, 8
TIMED_SLOTS = (1, 4, 8)
TIMED_PROMPT, WARM_UP, RUNS = 64, 5, 40
#: Largest relative error: float32 everywhere but in the talker, whose products are bfloat16. Its
#: rows are judged by their median: where two experts of a row are nearly even, rounding chooses.
TOLERANCES = {"talker": 0.05, "patch": 1e-4, "embedding": 1e-4, "stop": 1e-4, "audio": 1e-4}


def random_inputs(g: Geometry, slots: int) -> dict[str, np.ndarray]:
    """A prompt and noise for each slot, each its own."""
    rng = np.random.default_rng(5)
    draw = lambda *shape: rng.standard_normal(shape, dtype=np.float32)  # noqa: E731
    return {
        "prompt": 0.02 * draw(slots, PROMPT, g.talker_hidden),
        "initial": draw(STEPS, slots, g.patch, g.latent_dim),
        "diffusion": draw(STEPS, slots, g.solver_steps - 1, g.patch, g.latent_dim),
    }


def walk(
    backend: Backend,
    g: Geometry,
    inputs: Mapping[str, np.ndarray],
    slots: int,
    forced: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Prefill, then steps: what each component gives, (STEPS, slots, ...) each.

    With `forced`, what another backend gave, each component reads that backend's values.
    """
    talker = backend.talker(slots)
    tail = make_tail(backend, g, talker.hidden, talker.embedding, slots)
    decoders = [AudioDecoder(backend, g) for _ in range(slots)]
    for slot in range(slots):
        tail.start(slot, guidance=2.0, noise_scale=0.25)
        talker.prefill(inputs["prompt"][slot], slot)
    rows: dict[str, list[np.ndarray]] = {name: [] for name in TOLERANCES}
    for step in range(STEPS):
        if step:
            talker.decode(slots)
        rows["talker"].append(talker.hidden.read().copy())
        if forced is not None:
            talker.hidden.write(forced["talker"][step, :slots])
        tail.run(inputs["initial"][step, :slots], inputs["diffusion"][step, :slots])
        for name, buffer in (
            ("patch", tail.patch),
            ("embedding", talker.embedding),
            ("stop", tail.stop_probability),
        ):
            rows[name].append(buffer.read().copy())
        patches = rows["patch"][-1]
        if forced is not None:
            patches = forced["patch"][step, :slots]
            talker.embedding.write(forced["embedding"][step, :slots])
        audio = [
            decoder.decode(patch, last=step == STEPS - 1)
            for decoder, patch in zip(decoders, patches, strict=True)
        ]
        longest = 2 * g.samples_per_patch
        rows["audio"].append(np.stack([np.pad(a, (0, longest - len(a))) for a in audio]))
    return {name: np.stack(values) for name, values in rows.items()}


def speak(opened: OpenFolder) -> np.ndarray:
    """(steps, patch, latent_dim) of a request, each step after the one before."""
    speech = Synthesizer(opened).synthesize(
        "Hello.", seed=3, max_steps=SPOKEN, min_steps=SPOKEN, trace=True
    )
    assert speech.trace is not None
    return speech.trace.latents


def record(folder: Path, out: Path) -> None:
    opened = open_folder(folder)
    g = opened.manifest.geometry
    inputs = random_inputs(g, RECORDED_SLOTS)
    found = walk(opened.backend, g, inputs, RECORDED_SLOTS)
    np.savez_compressed(out, **inputs, **found, spoken=speak(opened))


def compare(folder: Path, recorded: Path) -> dict[str, Any]:
    """The errors of each component at each number of slots, and whether each is small enough."""
    with np.load(recorded) as file:
        arrays = {name: file[name] for name in file.files}
    opened = open_folder(folder)
    # Not held to anything: a difference of the talker's grows from step to step.
    error = relative_error(speak(opened), arrays["spoken"])
    print(f"{SPOKEN} steps of speech, latents off by {error:.2e}")
    alone: dict[str, np.ndarray] = {}
    rows: list[dict[str, Any]] = []
    for slots in COMPARED:
        found = walk(opened.backend, opened.manifest.geometry, arrays, slots, forced=arrays)
        for name, values in found.items():
            wanted = arrays[name][:, :slots]
            judged = worst = relative_error(values, wanted)
            if name == "talker":
                each = zip(*(a.reshape(-1, *a.shape[2:]) for a in (values, wanted)), strict=True)
                judged = float(np.median([relative_error(*pair) for pair in each]))
            apart = relative_error(values[:, :1], alone.setdefault(name, values[:, :1]))
            good = judged <= TOLERANCES[name]
            print(
                f"{slots} slots, {name:<9}: {judged:.2e}{'' if good else ' TOO LARGE'}, at most "
                f"{worst:.2e}; first slot against itself alone {apart:.2e}"
            )
            rows.append(
                {
                    "slots": slots, "component": name, "error": judged, "worst": worst,
                    "first_slot_against_itself_alone": apart, "good": bool(good),
                }
            )  # fmt: skip
    return {"speech_steps": SPOKEN, "speech_latents_error": error, "rows": rows}


def timed(folder: Path, kind: str, slots: tuple[int, ...], runs: int) -> dict[str, Any]:
    """Milliseconds of a step and of its parts, by number of slots."""
    import torch

    from benchmarks.talker_reference import DENSE, EXPERTS, random_weights
    from trt_runtime.backends.onnxruntime_cuda import CudaBackend
    from trt_runtime.plugins.loop import PluginLoop

    manifest = read_manifest(folder)
    if (folder / RECIPE).exists():
        fill(folder)
    check_contract(folder, manifest)
    sizes = {"dense": DENSE, "experts": EXPERTS}[kind]
    entry = replace(manifest.components["talker"], tensors={})
    g = manifest.geometry

    def make_loop(weights: dict[str, Any], slots: int) -> PluginLoop:
        weights = weights or random
        return PluginLoop(sizes, weights, slots=slots, cache_length=g.cache_length)

    started = time.perf_counter()
    manifest = replace(manifest, components={**manifest.components, "talker": entry})
    backend = CudaBackend(folder, manifest, make_loop=make_loop)
    loaded = time.perf_counter() - started
    random = dict(random_weights(sizes, 1, "cuda"))
    torch.cuda.synchronize()
    results: dict[str, Any] = {"load_seconds": loaded}
    for count in slots:
        results[f"{count} slots"] = _steps(backend, g, count, torch.cuda.synchronize, runs)
        results[f"{count} slots"]["tail_not_captured_ms"] = _not_captured(backend, count, runs)
        print(f"{kind}, {count} slots: {results[f'{count} slots']}", flush=True)
    results["memory_bytes"] = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
    return results


def _not_captured(backend: Any, count: int, runs: int) -> dict[str, float]:
    """The tail's graph launched node by node, as a peer of its replay."""
    import onnxruntime

    lane = backend._lanes[TAIL, count]
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "-1")
    times = []
    for _ in range(WARM_UP + runs):
        started = time.perf_counter()
        backend.call(lambda: lane._session.run_with_iobinding(lane._binding, options))
        times.append(1e3 * (time.perf_counter() - started))
    return spread(times[WARM_UP:])


def _steps(
    backend: Any, g: Geometry, count: int, wait: Callable[[], None], runs: int
) -> dict[str, dict[str, float]]:
    rng = np.random.default_rng(2)
    draw = lambda *shape: rng.standard_normal(shape, dtype=np.float32)  # noqa: E731
    started = time.perf_counter()
    batch = Batch(backend, g, count)
    wait()
    made = time.perf_counter() - started
    history = np.zeros((g.history, g.latent_dim), np.float32)
    rows = [batch.join(guidance=2.0, noise_scale=0.0, history=history) for _ in range(count)]
    decoders = [AudioDecoder(backend, g) for _ in range(count)]
    prefill = []
    for slot in rows:
        prompt = draw(TIMED_PROMPT, g.talker_hidden)
        wait()
        started = time.perf_counter()
        slot.prefill(prompt)
        wait()
        prefill.append(1e3 * (time.perf_counter() - started))
    parts: dict[str, list[float]] = {"talker": [], "tail": [], "audio decoder": [], "step": []}
    for step in range(WARM_UP + 2 * runs):
        for slot in rows:
            slot.draw(draw(g.patch, g.latent_dim), draw(g.solver_steps - 1, g.patch, g.latent_dim))
        noise = (
            np.stack([slot.initial_noise for slot in rows]),
            np.stack([slot.diffusion_noise for slot in rows]),
        )
        apart = step >= WARM_UP + runs
        wait()
        marks = [time.perf_counter()]
        if apart:
            # The parts, each waited for.
            batch.talker.decode(count)
            wait()
            marks.append(time.perf_counter())
            batch.tail.run(*noise)
            wait()
        else:
            batch.step()
        marks.append(time.perf_counter())
        for slot, decoder in zip(rows, decoders, strict=True):
            assert np.isfinite(slot.hidden).all()
            assert np.isfinite(slot.embedding).all()
            patch, _ = slot.patch, slot.stop_probability
            decoder.decode(patch, last=False)
        marks.append(time.perf_counter())
        if apart:
            for name, begin, end in zip(parts, marks, marks[1:], strict=False):
                parts[name].append(1e3 * (end - begin))
        elif step >= WARM_UP:
            parts["step"].append(1e3 * (marks[-1] - marks[0]))
    result = {f"{name}_ms": spread(values) for name, values in parts.items()}
    seconds = g.samples_per_patch / g.sample_rate
    median = sorted(parts["step"])[len(parts["step"]) // 2]
    return {
        "made_seconds": made,
        "prefill_ms": spread(prefill),
        **result,
        "audio_seconds_a_second": count * seconds / (1e-3 * median),
    }


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = result.add_subparsers(dest="command", required=True)
    for name in ("record", "compare", "time"):
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path)
        if name != "time":
            command.add_argument("recorded", type=Path)
        if name != "record":
            command.add_argument("--talker", choices=("dense", "experts"), default="dense")
            command.add_argument("--out", type=Path)
            command.add_argument("--commit", help="what is measured, where git cannot tell: a copy")
    command.add_argument("--slots", type=int, nargs="+", default=TIMED_SLOTS)
    command.add_argument("--runs", type=int, default=RUNS)
    return result


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "record":
        record(arguments.folder, arguments.recorded)
        return 0
    check_result(arguments.out)
    if arguments.command == "compare":
        result = compare(arguments.folder, arguments.recorded)
        good = all(row["good"] for row in result["rows"])
    else:
        slots = tuple(arguments.slots)
        result, good = timed(arguments.folder, arguments.talker, slots, arguments.runs), True
    described = {
        **provenance("onnxruntime-gpu", "torch", "triton"),
        "gpu": describe_cuda(),
        "talker": arguments.talker,
        "graph": TAIL,
        "precision": read_manifest(arguments.folder).precision.get(TAIL, ""),
        "results": result,
    }
    described["commit"] = arguments.commit or described["commit"]
    write_result(arguments.out, described, printed=False)
    return int(not good)


if __name__ == "__main__":
    sys.exit(
        exit_status(
            lambda: _run(parser().parse_args()), "cuda_loop", interrupted="cuda_loop: interrupted"
        )
    )
