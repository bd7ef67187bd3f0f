"""How much memory an export takes: measured by layers, mapped pages apart from the process's own.

    python -m benchmarks.export_memory WORK --out benchmarks/results/export-memory.json

For each number of layers: writes a random mixture of experts of the released widths into WORK, in
shards; exports it by `python -m export` in a process of its own, whose memory is read every few
milliseconds, once as it is and once with --no-values; deletes all of it. Pages of mapped checkpoint
files (RssFile) are the system's to take back at any time; the rest (RssAnon) is the process's own.
Linux only. Five layers take 18 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.full_size_checkpoint import NEVER_STOPS, SHARD_BYTES
from benchmarks.provenance import ROOT, check_result, provenance, write_result
from export.free_memory import free_memory
from export.synthetic import write_random_checkpoint
from trt_runtime.exit_status import exit_status

CONFIG = ROOT / "benchmarks" / "configs" / "ming-omni-tts-16.8b-a3b.json"
#: 4.2 and 8.8 GB in bfloat16: were memory to grow with layers, it would be seen.
LAYERS = (1, 5)
#: The options of each export.
WAYS = {"values compared": (), "form only": ("--no-values",)}
WEIGHTS = "weights of "
_SECONDS_BETWEEN_SAMPLES = 0.01


class Sampler(threading.Thread):
    """Reads a process's resident memory until it ends, and keeps the most of each kind in bytes."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self._status = Path(f"/proc/{process}/status")
        self._most: dict[str, int] = {}
        self._lock = threading.Lock()

    def run(self) -> None:
        while sample := _resident(self._status):
            with self._lock:
                for kind, size in sample.items():
                    self._most[kind] = max(self._most.get(kind, 0), size)
            time.sleep(_SECONDS_BETWEEN_SAMPLES)

    def most_since_last(self) -> dict[str, int]:
        """The most of each kind since this was last asked."""
        with self._lock:
            most, self._most = self._most, {}
        return most


def _resident(status: Path) -> dict[str, int]:
    """Bytes of the process's own, of mapped files and in all; nothing once it has ended."""
    try:
        text = status.read_text()
    except OSError:
        return {}
    sizes = {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(":") for line in text.splitlines())
        if name in ("VmRSS", "RssAnon", "RssFile")
    }
    if len(sizes) < 3:
        return {}
    return {"own": sizes["RssAnon"], "mapped": sizes["RssFile"], "all": sizes["VmRSS"]}


def export(checkpoint: Path, bundle: Path, *options: str) -> dict[str, Any]:
    """Exports in a process of its own: its peaks in all, and for each progress line.

    The bundle is deleted.
    """
    began = last = time.perf_counter()
    free = free_memory()
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "export", checkpoint, bundle, *options],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    sampler = Sampler(process.pid)
    sampler.start()
    parts: list[dict[str, Any]] = []
    assert process.stdout is not None
    for line in process.stdout:
        now = time.perf_counter()
        parts.append(
            {
                "line": line.strip(),
                "seconds": round(now - last, 2),
                "peak_bytes": sampler.most_since_last(),
            }
        )
        last = now
    if process.wait() != 0:
        raise SystemExit(f"the export ended with status {process.returncode}")
    size = _size(bundle, "*")
    shutil.rmtree(bundle)
    return {
        "bundle_bytes": size,
        "free_memory": free,
        "seconds": round(time.perf_counter() - began, 1),
        "peak_bytes": _peaks(parts),
        "weights_peak_bytes": _peaks([part for part in parts if part["line"].startswith(WEIGHTS)]),
        "not_compared": [
            part["line"].split(":")[0] for part in parts if "NOT compared" in part["line"]
        ],
        "parts": parts,
    }


def _peaks(parts: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    kinds = ("own", "mapped", "all")
    return {kind: max(part["peak_bytes"].get(kind, 0) for part in parts) for kind in kinds}


def measure(work: Path, layers: int) -> dict[str, Any]:
    """Generates, exports in each way, and deletes a checkpoint of so many layers."""
    config = json.loads(CONFIG.read_text(encoding="utf-8"))
    config["llm_config"]["num_hidden_layers"] = layers
    checkpoint, bundle = work / f"checkpoint-{layers}", work / f"bundle-{layers}"
    try:
        with tqdm(unit="B", unit_scale=True, desc=f"{layers} layers", disable=None) as bar:

            def on_progress(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            write_random_checkpoint(
                checkpoint, config, shard_bytes=SHARD_BYTES, stop_bias=NEVER_STOPS,
                on_progress=on_progress,
            )  # fmt: skip
        return {
            "layers": layers,
            "checkpoint_bytes": _size(checkpoint, "*.safetensors"),
            "shards": len(list(checkpoint.glob("*.safetensors"))),
            "exports": {way: export(checkpoint, bundle, *given) for way, given in WAYS.items()},
        }
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def _size(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.export_memory", description=__doc__.splitlines()[0]
    )
    parser.add_argument("work", type=Path, help="folder for the checkpoints and bundles")
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON to write")
    options = parser.parse_args(arguments)

    def run() -> int:
        check_result(options.out)
        result = {
            "runs": [measure(options.work.resolve(), layers) for layers in options.layers],
            **provenance("torch", "onnx", "numpy"),
        }
        write_result(options.out, result, printed=options.out is None)
        return 0

    return exit_status(run, "error", interrupted="interrupted")


if __name__ == "__main__":
    sys.exit(main())
