"""What it costs to leave weights unpacked, so that several sessions can share one mapping of them.

    python -m benchmarks.shared_weights --out benchmarks/results/shared-weights.json

A stack of matrix products in the shapes of the 0.5B talker's MLP, about half a gigabyte of float32,
run by ONNX Runtime alone: once as it does by itself (weights packed for its kernels, a copy a
session), once as `trt_runtime/backends/onnxruntime_cpu.py` loads graphs that share weights (packing
off, initialisers in a memory-mapped file). Both take 1, 16 and 64 rows in turns, in one process,
so that what else the machine does hits both: only the ratios are meant to be read.

With `--engines DIR` it also times the whole talker of an engine folder, for what a prefill call
costs beside its rows (`CALL_COST` in `trt_runtime/talker.py`).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from benchmarks.provenance import provenance, write_result
from trt_runtime.backends.onnxruntime_cpu import CpuBackend
from trt_runtime.contract import talker_graph_name
from trt_runtime.machine import describe_machine
from trt_runtime.manifest import read_manifest

WIDTHS = (896, 4864)
PAIRS = 15
ROWS = (1, 16, 64)
WEIGHTS = "stack.weights"
BYTES = 2 * PAIRS * WIDTHS[0] * WIDTHS[1] * 4

#: Memory that sessions read for as long as they live.
KEPT: list[object] = []

#: "median" and "min" of some seconds.
Spread = dict[str, float]
Key = TypeVar("Key")


def write_stack(folder: Path) -> Path:
    """A graph of 2 * PAIRS products, wide and narrow in turns; every matrix has its own numbers."""
    rng = np.random.default_rng(0)
    nodes, initializers, offset = [], [], 0
    with (folder / WEIGHTS).open("wb") as file:
        for number in range(2 * PAIRS):
            shape = WIDTHS if number % 2 == 0 else WIDTHS[::-1]
            # Products keep their size, so that none becomes denormal or infinite.
            values = rng.standard_normal(shape, dtype=np.float32) / np.float32(shape[0] ** 0.5)
            file.write(values.tobytes())
            tensor = TensorProto(
                name=f"w{number}", data_type=TensorProto.FLOAT, dims=shape,
                data_location=TensorProto.EXTERNAL,
            )  # fmt: skip
            place = (("location", WEIGHTS), ("offset", offset), ("length", values.nbytes))
            for key, value in place:
                tensor.external_data.add(key=key, value=str(value))
            initializers.append(tensor)
            nodes.append(
                helper.make_node("MatMul", [f"x{number}", tensor.name], [f"x{number + 1}"])
            )
            offset += values.nbytes
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", WIDTHS[0]])
        for name in ("x0", f"x{2 * PAIRS}")
    ]
    graph = helper.make_graph(nodes, "stack", ends[:1], ends[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = folder / "stack.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def session(path: Path, threads: int, *, shared: bool) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if shared:
        options.add_session_config_entry("session.disable_prepacking", "1")
        mapped = np.memmap(path.with_name(WEIGHTS), np.float32, "r")
        size = WIDTHS[0] * WIDTHS[1]
        for number in range(2 * PAIRS):
            shape = WIDTHS if number % 2 == 0 else WIDTHS[::-1]
            values = mapped[number * size : (number + 1) * size].reshape(shape)
            value = ort.OrtValue.ortvalue_from_numpy(values)
            options.add_initializer(f"w{number}", value)
            KEPT.append((values, value))
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def measure(path: Path, threads: int, repeats: int) -> dict[str, dict[str, object]]:
    """By rows: seconds of a call either way, least and median, and the ratio of the medians."""
    sessions = {
        name: session(path, threads, shared=name == "unpacked") for name in ("packed", "unpacked")
    }
    inputs = {rows: np.full((rows, WIDTHS[0]), 0.5, np.float32) for rows in ROWS}
    outputs = {
        name: [each.run(None, {"x0": x})[0] for x in inputs.values()]  # warm-up, kept to compare
        for name, each in sessions.items()
    }
    for ours, theirs in zip(outputs["packed"], outputs["unpacked"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * np.abs(ours).max())
    calls = {
        (rows, name): lambda each=each, x=x: each.run(None, {"x0": x})
        for rows, x in inputs.items()
        for name, each in sessions.items()
    }
    seconds = timed(calls, repeats)
    result: dict[str, dict[str, object]] = {}
    for rows in ROWS:
        ways = {name: seconds[rows, name] for name in sessions}
        ratio = ways["unpacked"]["median"] / ways["packed"]["median"]
        result[str(rows)] = {**ways, "unpacked_to_packed": ratio}
    return result


def timed(calls: Mapping[Key, Callable[[], object]], repeats: int) -> dict[Key, Spread]:
    """Seconds of each call, all of them in turns."""
    seconds: dict[Key, list[float]] = {key: [] for key in calls}
    for _ in range(repeats):
        for key, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[key].append(time.perf_counter() - start)
    return {
        key: {"median": statistics.median(all_), "min": min(all_)} for key, all_ in seconds.items()
    }


def measure_talker(engines: Path, threads: int, repeats: int) -> dict[str, object]:
    """Seconds of the talker's calls by rows, and what a call costs beside its rows, in rows."""
    manifest = read_manifest(engines)
    chunks = manifest.geometry.prefill_chunks
    names = {rows: talker_graph_name(rows) for rows in (1, *chunks)}
    only = replace(manifest, graphs={name: manifest.graphs[name] for name in names.values()})
    backend = CpuBackend(engines, only, threads)
    calls = {rows: backend.bind(name, {}).run for rows, name in names.items()}
    for call in calls.values():
        call()
    seconds = timed(calls, repeats)
    # Seconds = a + b * rows over the prefill calls, and a / b.
    few, many = chunks[0], chunks[-1]
    slope = (seconds[many]["median"] - seconds[few]["median"]) / (many - few)
    return {
        "weights_bytes": (engines / "talker.weights").stat().st_size,
        "seconds_by_rows": {str(rows): spread for rows, spread in seconds.items()},
        "call_cost_rows": (seconds[few]["median"] - slope * few) / slope,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON to write")
    parser.add_argument("--engines", type=Path, help="an engine folder whose talker is timed too")
    parser.add_argument("--threads", type=int, default=describe_machine()["physical_cores"])
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shared-weights-") as folder:
        rows = measure(write_stack(Path(folder)), options.threads, options.repeats)
    result: dict[str, object] = {
        **provenance("onnxruntime", "numpy"),
        "threads": options.threads,
        "repeats": options.repeats,
        "weights_bytes": BYTES,
        "matrices": 2 * PAIRS,
        "seconds_by_rows": rows,
    }
    if options.engines:
        result["talker"] = measure_talker(options.engines, options.threads, options.repeats)
    write_result(options.out, result)


if __name__ == "__main__":
    main()
