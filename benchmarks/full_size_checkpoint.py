"""Write a random checkpoint of full size, so that everybody times the same thing.

    python benchmarks/full_size_checkpoint.py OUT [--config CONFIG] [--seed SEED]

The default is the 0.5B model: 1.47 billion parameters, bfloat16 shards of at most 1 GB. Prints JSON
with the time and the peak memory of writing it. It needs the `export` extra.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that it runs from a clone that is not installed

from tqdm import tqdm  # noqa: E402

from export.synthetic import write_random_checkpoint  # noqa: E402
from trt_runtime.errors import UserError  # noqa: E402

CONFIG = ROOT / "benchmarks" / "configs" / "ming-omni-tts-0.5b.json"
SHARD_BYTES = 10**9
#: Below any logit that the random head gives, so that speech goes on to its step limit.
NEVER_STOPS = -100.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--config", type=Path, default=CONFIG, help="config.json of the sizes")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began = time.perf_counter()
    try:
        config = json.loads(arguments.config.read_text(encoding="utf-8"))
        with tqdm(unit="B", unit_scale=True, desc="writing", disable=None) as bar:

            def on_progress(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            write_random_checkpoint(
                arguments.out,
                config,
                seed=arguments.seed,
                shard_bytes=SHARD_BYTES,
                stop_bias=NEVER_STOPS,
                on_progress=on_progress,
            )
    except (OSError, ValueError, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    shards = sorted(arguments.out.glob("*.safetensors"))
    result = {
        "folder": str(arguments.out),
        "shards": len(shards),
        "bytes": sum(path.stat().st_size for path in shards),
        "seconds": round(time.perf_counter() - began, 1),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
