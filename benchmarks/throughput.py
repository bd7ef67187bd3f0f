"""Eight requests that share each step, next to one after the other and to a thread each.

    python -m benchmarks.throughput ENGINES --out benchmarks/results/throughput.json

Every request speaks as many steps; the ways take turns, so that a busy machine hits them alike.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.provenance import check_result, provenance, write_result
from trt_runtime import Speech, Synthesizer, load
from trt_runtime.exit_status import exit_status
from trt_runtime.measuring import TEXT, speak_together
from trt_runtime.spread import spread

REQUESTS = 8


def ways(speakers: dict[int, Synthesizer], steps: int) -> dict[str, Callable[[], list[Speech]]]:
    """How the requests can be spoken; each call speaks all of them. Speakers by their slots."""
    options: dict[str, Any] = {"min_steps": steps + 1, "max_steps": steps}
    one = speakers[1]

    def submitted(speaker: Synthesizer) -> list[Speech]:
        return speak_together(speaker, TEXT, range(REQUESTS), options)

    def alone(seed: int) -> Speech:
        return one.synthesize(TEXT, seed=seed, **options)

    def threads() -> list[Speech]:
        with ThreadPoolExecutor(REQUESTS) as pool:
            return list(pool.map(alone, range(REQUESTS)))

    return {
        "one after the other": lambda: [alone(seed) for seed in range(REQUESTS)],
        "a thread each": threads,
    } | {
        f"{slots} slots": lambda speaker=speaker: submitted(speaker)
        for slots, speaker in speakers.items()
        if slots > 1
    }


def measure(engines: str | None, steps: int, runs: int, threads: int | None) -> dict[str, Any]:
    """Seconds of audio a second by way, and how long the first audio of a request took."""
    with load(engines, threads=threads) as whole:
        opened = whole._require_open()
        # One set of weights for all of them.
        speakers = {slots: Synthesizer(opened, slots=slots) for slots in (1, 2, 4, 8)}
        found: dict[str, dict[str, list[float]]] = {}
        for run in tqdm(range(runs + 1), desc="runs, the first to warm up", disable=None):
            for name, speak in ways(speakers, steps).items():
                start = time.perf_counter()
                speeches = speak()
                seconds = time.perf_counter() - start
                if run:
                    kept = found.setdefault(name, {"audio_per_second": [], "first_audio": []})
                    audio = sum(speech.duration for speech in speeches)
                    kept["audio_per_second"].append(audio / seconds)
                    kept["first_audio"].append(max(s.timings.first_audio for s in speeches))
    alone = found["one after the other"]["audio_per_second"]
    return {
        name: {
            **{figure: spread(values) for figure, values in figures.items()},
            "to_one_after_the_other": spread(
                [a / b for a, b in zip(figures["audio_per_second"], alone, strict=True)]
            ),
        }
        for name, figures in found.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.throughput", description=__doc__.splitlines()[0]
    )
    parser.add_argument("engines", nargs="?", help="engine folder or bundle (default: embedded)")
    parser.add_argument(
        "--what", default="the demonstration voice", help="what the engines are of, for the table"
    )
    parser.add_argument("--steps", type=int, default=40, help="steps of each request")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of one graph call (default: every core)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON to write")
    options = parser.parse_args(arguments)

    def run() -> int:
        check_result(options.out)
        found = measure(options.engines, options.steps, options.runs, options.threads)
        for name, figures in found.items():
            ratio, rate = figures["to_one_after_the_other"], figures["audio_per_second"]
            print(
                f"{name}: {rate['median']:.2f} s of audio a second, {ratio['median']:.2f} times "
                f"one after the other ({ratio['min']:.2f} to {ratio['max']:.2f})"
            )
        result = {
            "what": options.what, "requests": REQUESTS, "steps": options.steps,
            "runs": options.runs, "ways": found,
            **provenance("numpy", "onnxruntime"),
        }  # fmt: skip
        write_result(options.out, result, printed=False)
        return 0

    return exit_status(run, parser.prog, interrupted=f"{parser.prog}: interrupted")


if __name__ == "__main__":
    sys.exit(main())
