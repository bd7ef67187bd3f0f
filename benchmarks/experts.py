"""What more experts cost where as many of them are chosen: the operator on a CPU, by its kernel.

    python -m benchmarks.experts --out benchmarks/results/experts.json

One MixtureOfExperts of half the released width both ways, run by ONNX Runtime's kernel and, for
the few experts, by the operator's function, in turns. A decode step has one row, a prefill many.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from tqdm import tqdm

from benchmarks.provenance import check_result, provenance, write_result
from engines.onnxruntime_kernels import use_kernels
from export.operator_bodies import body_of
from trt_runtime.exit_status import exit_status
from trt_runtime.operators import DOMAIN, MIXTURE_OF_EXPERTS, VERSION
from trt_runtime.spread import spread

HIDDEN, WIDTH, CHOSEN = 1024, 704, 6
FEW, MANY = 8, 64
ROWS = (1, 16, 64)
RUNS, WARM_UP = 30, 5


def session(experts: int, rows: int, kernel: bool, threads: int) -> ort.InferenceSession:
    """A session of the one operator, its weights random and its choice spread over all experts."""
    generator = np.random.default_rng(experts)

    def drawn(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape, dtype=np.float32) * np.float32(shape[-1] ** -0.5)

    weights = {"gate_up": drawn(experts, 2 * WIDTH, HIDDEN), "down": drawn(experts, HIDDEN, WIDTH)}
    node = helper.make_node(
        MIXTURE_OF_EXPERTS, ["x", "router_logits", *weights], ["y"], domain=DOMAIN,
        chosen=CHOSEN, normalized=1,
    )  # fmt: skip
    shapes = {"x": [rows, HIDDEN], "router_logits": [rows, experts]}
    graph = helper.make_graph(
        [node], "one",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shapes["x"])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, VERSION)],
        functions=[body_of(MIXTURE_OF_EXPERTS, [])],
        ir_version=10,
    )
    if kernel:
        use_kernels(model)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def measure(threads: int) -> list[dict[str, Any]]:
    """For each number of rows: medians in milliseconds, the three in turns, and their ratios."""
    found = []
    for rows in tqdm(ROWS, desc="rows", disable=None):
        peers = {
            "few": session(FEW, rows, True, threads),
            "many": session(MANY, rows, True, threads),
            "few, by the function": session(FEW, rows, False, threads),
        }
        times: dict[str, list[float]] = {name: [] for name in peers}
        generator = np.random.default_rng(rows)
        for _ in range(WARM_UP + RUNS):
            x = generator.standard_normal((rows, HIDDEN), dtype=np.float32)
            for name, peer in peers.items():
                experts = MANY if name == "many" else FEW
                logits = generator.standard_normal((rows, experts), dtype=np.float32)
                start = time.perf_counter()
                peer.run(None, {"x": x, "router_logits": logits})
                times[name].append(1000 * (time.perf_counter() - start))
        kept = {name: values[WARM_UP:] for name, values in times.items()}
        spreads = {name: spread(values) for name, values in kept.items()}
        medians = {name: values["median"] for name, values in spreads.items()}
        found.append(
            {
                "rows": rows,
                "milliseconds": spreads,
                "many_to_few": medians["many"] / medians["few"],
                "function_to_kernel": medians["few, by the function"] / medians["few"],
            }
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.experts", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON to write")
    options = parser.parse_args(arguments)

    def run() -> int:
        check_result(options.out)
        result = {
            "hidden": HIDDEN, "expert_width": WIDTH, "chosen": CHOSEN, "few": FEW, "many": MANY,
            "threads": options.threads, "runs": RUNS, "rows": measure(options.threads),
            **provenance("numpy", "onnxruntime"),
        }  # fmt: skip
        for row in result["rows"]:
            print(
                f"{row['rows']} rows: {MANY} experts cost {row['many_to_few']:.2f} times {FEW}; "
                f"the function {row['function_to_kernel']:.1f} times the kernel"
            )
        write_result(options.out, result, printed=False)
        return 0

    return exit_status(run, parser.prog, interrupted=f"{parser.prog}: interrupted")


if __name__ == "__main__":
    sys.exit(main())
