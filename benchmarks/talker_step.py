"""A talker's decode step and prefill on a CUDA GPU: the plugin loop, its peers, and the floor.

    python -m benchmarks.talker_step --out benchmarks/results/talker-step-h200.json

Random weights at the released sizes. A step is timed by GPU events around it, after as many rows
of context as --context. The floor is the time in which the weights of all layers, the experts in
use counted once each, and the caches pass through memory at the rate of a copy in the same run.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.provenance import check_result, provenance, write_result
from benchmarks.talker_peers import Peer, shared_down
from benchmarks.talker_reference import DENSE, EXPERTS, random_weights, reference
from trt_runtime.exit_status import exit_status
from trt_runtime.plugins.loop import PluginLoop
from trt_runtime.plugins.sizes import TalkerSizes
from trt_runtime.plugins.step import Step
from trt_runtime.spread import spread

MODELS = {"experts": EXPERTS, "dense": DENSE}
SLOTS = (1, 2, 4, 8, 16)
PROMPTS = (16, 64, 256, 500)
WARM_UP, RUNS = 5, 50
#: Slots → (form, mode) of each peer. Without experts the form says nothing.
PEERS: dict[str, dict[int, list[tuple[str, str]]]] = {
    "experts": {
        1: [("gather", "eager"), ("gather", "graph"), ("gather", "compiled"), ("gather", "tuned"),
            ("grouped", "graph"), ("grouped", "compiled")],
        2: [("gather", "compiled"), ("grouped", "compiled")],
        4: [("gather", "compiled"), ("grouped", "compiled"), ("all", "graph")],
        8: [("grouped", "eager"), ("grouped", "graph"), ("grouped", "compiled"),
            ("gather", "compiled"), ("gather", "tuned"), ("all", "graph"), ("all", "compiled")],
        16: [("grouped", "compiled"), ("all", "graph"), ("all", "compiled")],
    },
    "dense": {
        rows: [("", mode) for mode in ("eager", "graph", "compiled", "tuned")] for rows in (1, 8)
    },
}  # fmt: skip


def milliseconds(
    run: Callable[[], object], runs: int = RUNS, prepare: Callable[[], None] | None = None
) -> list[float]:
    """GPU time of each of `runs` calls after a warm-up; `prepare` goes before each."""
    found = []
    for number in range(WARM_UP + runs):
        if prepare is not None:
            prepare()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        if number >= WARM_UP:
            found.append(start.elapsed_time(end))
    return found


def copy_rate() -> float:
    """Bytes a second, read and written, of a copy of 4 GiB on the GPU."""
    source = torch.randint(0, 255, (2**32,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = milliseconds(lambda: target.copy_(source), 15)
    return 2 * 2**32 / statistics.median(times) * 1000


def decode_step(loop: PluginLoop, count: int) -> Step:
    """The captured step that `decode(count)` replays."""
    return loop._decode[count]._step


def experts_in_use(step: Step) -> list[int]:
    """Of each layer, how many routed experts a step of the loop's state reads."""
    found = []
    step.begin()
    for layer in range(step.sizes.layers):
        step.layer(layer)
        found.append(int(step.active.item()))
    return found


def bytes_read(sizes: TalkerSizes, rows: int, context: int, in_use: Sequence[int]) -> int:
    hidden, width = sizes.hidden, sizes.expert_width
    always = (sizes.qkv_width + sizes.query_width + sizes.routed_experts) * hidden
    expert = 3 * hidden * width
    cache = 2 * rows * context * sizes.kv_heads * sizes.head_dim
    return sum(2 * (always + (sizes.shared_experts + n) * expert + cache) for n in in_use)


def of_kernels(step: Step) -> dict[str, float]:
    """Microseconds a layer of each kernel, from graphs that hold one kind alone.

    gate_up has to follow what resets the router's flag, and is the difference of two graphs. The
    order matters: down waits for the flag that gate_up leaves. Overlaps are lost here.
    """

    def run(*names: str) -> None:
        step.begin()
        for layer in range(step.sizes.layers):
            for name in names:
                step.one(layer, name)

    def graph(*names: str) -> float:
        captured = torch.cuda.CUDAGraph()
        run(*names)
        torch.cuda.synchronize()
        with torch.cuda.graph(captured):
            run(*names)
        return 1000 * statistics.median(milliseconds(captured.replay, 20)) / step.sizes.layers

    qkv = graph("qkv")
    return {
        "qkv": qkv, "attend": graph("attend"), "gate_up": graph("qkv", "gate_up") - qkv,
        "out": graph("out"), "down": graph("down"),
    }  # fmt: skip


def steps(
    name: str, sizes: TalkerSizes, weights: Mapping[str, Tensor], context: int, rate: float
) -> dict[str, Any]:
    """Of each number of slots: the loop's time, the floor, the peers' times."""
    loop = PluginLoop(sizes, weights, slots=max(SLOTS), cache_length=2 * context)
    generator = torch.Generator("cuda").manual_seed(2)
    for slot in range(max(SLOTS)):
        shape = (context, sizes.hidden)
        x = torch.randn(shape, generator=generator, device="cuda")
        loop.prefill(slot, x[:-1])
        loop.embedding[slot, 0] = x[-1]
    prefills = {}
    for length in PROMPTS:
        x = torch.randn((length, sizes.hidden), generator=generator, device="cuda")
        run = lambda x=x: loop.prefill(max(SLOTS) - 1, x)  # noqa: E731
        prefills[str(length)] = spread(milliseconds(run, 10))
    loop.prefill(max(SLOTS) - 1, torch.randn((context - 1, sizes.hidden), device="cuda"))
    shared = shared_down(sizes, weights)
    found: list[dict[str, Any]] = []
    for rows in SLOTS:
        loop._count.fill_(rows)
        loop._counted = rows
        in_use = experts_in_use(decode_step(loop, rows))
        size = bytes_read(sizes, rows, context, in_use)
        floor = 1000 * size / rate

        def back(rows: int = rows) -> None:  # each step at the same position
            loop._caches.positions.fill_(context - 1)
            loop._positions = [context - 1] * loop.slots

        loop.decode(rows)
        ours = spread(milliseconds(lambda rows=rows: loop.decode(rows), prepare=back))
        back()
        result: dict[str, Any] = {
            "slots": rows, "milliseconds": ours, "distinct_experts": spread(in_use),
            "bytes": size, "floor_milliseconds": floor, "share_of_floor": floor / ours["median"],
        }  # fmt: skip
        peers: dict[str, Any] = {}
        inputs = torch.randn((rows, sizes.hidden), generator=generator, device="cuda")
        for form, mode in PEERS[name].get(rows, []):
            label = ", ".join(filter(None, (form, mode)))
            start = time.perf_counter()
            try:
                torch._dynamo.reset()
                peer = Peer(sizes, weights, shared, inputs, context, form=form, mode=mode)
                peers[label] = spread(milliseconds(peer.run, 5 if mode == "eager" else 20))
                del peer
            except Exception as error:  # one peer that fails leaves the others
                peers[label] = {"error": f"{type(error).__name__}: {error}"[:300]}
            gc.collect()
            print(
                name, rows, label, peers[label], f"{time.perf_counter() - start:.0f} s", flush=True
            )
        timed = {label: peer["median"] for label, peer in peers.items() if "median" in peer}
        if timed:
            best = min(timed, key=lambda label: timed[label])
            result |= {"peers": peers, "best_peer": best, "speedup": timed[best] / ours["median"]}
        result["kernels_microseconds_a_layer"] = of_kernels(decode_step(loop, rows))
        found.append(result)
        print(name, {k: v for k, v in result.items() if k != "peers"}, flush=True)
    print(name, "prefill", prefills, flush=True)
    return {"steps": found, "prefill_milliseconds": prefills}


def parity(sizes: TalkerSizes, weights: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """The first layers at full width against float32: prefill of 70 rows, and 8 slots' step."""
    found = []
    for layers in (1, 2, 4):
        part = replace(sizes, layers=layers)
        loop = PluginLoop(part, weights, slots=8, cache_length=128, prefill_chunks=(64,))
        generator = torch.Generator("cuda").manual_seed(3)
        x = torch.randn((8, 71, sizes.hidden), generator=generator, device="cuda")
        errors: dict[str, list[float]] = {"prefill": [], "step of 8": [], "step of 1": []}
        expected = [reference(part, weights, rows) for rows in x]
        for slot, rows in enumerate(x):
            loop.prefill(slot, rows[:70])
            errors["prefill"].append(_error(loop.hidden[slot], expected[slot][0][69]))
            loop.embedding[slot, 0] = rows[70]
        step = decode_step(loop, 8)
        loop._count.fill_(8)
        loop._counted = 8
        same = total = 0
        of_prefill: list[float] = []
        if sizes.experts is not None:  # the last layer's choices of the last chunk, of slot 7
            groups = loop._prefill[64][1]._step.groups
            for ours, theirs in zip(groups.chosen[:6], expected[7][1][-1][64:70], strict=True):
                common = set(ours.tolist()) & set(theirs.tolist())
                of_prefill.append(len(common) / sizes.experts.chosen)
        step.begin()
        for layer in range(layers):
            step.layer(layer)
            if sizes.experts is None:
                continue
            active = int(step.active.item())
            numbers = step.expert[sizes.shared_experts :][:active].tolist()
            shares = step.shares[:active].tolist()
            for slot in range(8):
                ours = {n for n, share in zip(numbers, shares, strict=True) if share[slot] > 0}
                same += len(ours & set(expected[slot][1][layer][70].tolist()))
                total += sizes.experts.chosen
        loop.decode(1)
        errors["step of 1"].append(_error(loop.hidden[0], expected[0][0][70]))
        loop.prefill(0, x[0, :70])
        loop.decode(8)
        for slot in range(8):
            errors["step of 8"].append(_error(loop.hidden[slot], expected[slot][0][70]))
        result: dict[str, Any] = {"layers": layers}
        result["relative_error"] = {kind: spread(values) for kind, values in errors.items()}
        if total:
            result["expert_agreement"] = same / total
            result["expert_agreement_of_prefill"] = statistics.mean(of_prefill)
        found.append(result)
        print("parity", result, flush=True)
    return found


def _error(found: Tensor, expected: Tensor) -> float:
    return ((found.flatten() - expected).norm() / expected.norm()).item()


def gpu() -> dict[str, str]:
    fields = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm")
    answer = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],
        stdout=subprocess.PIPE, text=True, check=False,
    ).stdout.splitlines()  # fmt: skip
    return dict(zip(fields, answer[0].split(", "), strict=False)) if answer else {}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.talker_step", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--commit", help="what is measured, where git cannot tell: a copy")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON to write")
    options = parser.parse_args(arguments)

    def run() -> int:
        check_result(options.out)
        torch.backends.cuda.matmul.allow_tf32 = False
        rate = copy_rate()
        result: dict[str, Any] = {
            "context": options.context, "runs": RUNS, "copy_bytes_per_second": rate, "models": {},
        }  # fmt: skip
        print(f"copy: {rate / 1e12:.2f} TB/s", flush=True)
        for name in options.models:
            sizes = MODELS[name]
            weights = dict(random_weights(sizes, 0, "cuda"))
            checked = parity(sizes, weights)
            measured = steps(name, sizes, weights, options.context, rate)
            result["models"][name] = {"parity": checked, **measured}
            del weights
            gc.collect()
            torch.cuda.empty_cache()
            now = {"gpu": gpu(), **provenance("torch", "triton", "numpy")}
            now["commit"] = options.commit or now["commit"]
            write_result(options.out, {**result, **now}, printed=False)
        return 0

    return exit_status(run, parser.prog, interrupted=f"{parser.prog}: interrupted")


if __name__ == "__main__":
    sys.exit(main())
