"""Makes the documents' tables from benchmarks/results.

python -m benchmarks.tables            # rewrite them
python -m benchmarks.tables --check    # fail where one is not what the results say
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import tensorrt_tables
from trt_runtime.cli import bench_table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
END = "<!-- end -->"

PEERS = {
    "engines": "engines, float32",
    "bundle": "bundle as it is, float32",
    "torch-float32": "PyTorch eager, float32",
    "torch-bfloat16": "PyTorch eager, bfloat16",
}
COMPONENTS = ("prefill", "talker", "flow", "audio_decoder")


def full_size(data: Mapping[str, Any]) -> str:
    """Steps, then speech by peer: medians, with the range where there was more than one run."""
    machine, speech = data["machine"], data["speech"]
    disk, weights = data["disk_bytes"], data["weights_bytes"]
    lines = [
        f"Random weights in the sizes of Ming-omni-tts-0.5B ({data['parameters'] / 1e9:.2f} "
        f"billion parameters stored, {data['used_parameters'] / 1e9:.2f} billion used in plain "
        f"speech; {disk['checkpoint'] / 1e9:.2f} GB in bfloat16), {machine['processor']}, "
        f"{data['threads']} cores, {', '.join(machine['features'])}; "
        f"ONNX Runtime {data['versions']['onnxruntime']}, PyTorch {data['versions']['torch']}.",
        "",
        "| step | seconds | peak memory | disk |",
        "|---|---|---|---|",
    ]
    sizes = {"export": disk["bundle"], "build": disk["engines"], "build again": 0}
    for step, figures in data["steps"].items():
        size = f"{sizes[step] / 1e9:.2f} GB" if sizes[step] else "–"
        peak = figures["peak_bytes"] / 1e9
        lines.append(f"| {step} | {figures['seconds']:.0f} | {peak:.1f} GB | {size} |")
    first = next(iter(data["runs"].values()))
    audio, count = first[0]["audio_seconds"], len(first)
    lines += [
        "",
        f"{audio:.2f} s of speech from {data['prompt_tokens']} prompt tokens, medians of {count} "
        "runs in rotation (least–most); real-time factors are seconds a second of audio.",
        "",
        "| | real-time factor | " + " | ".join(COMPONENTS) + " | first audio, s | load, s | peak |",
        "|---" * (len(COMPONENTS) + 5) + "|",
    ]
    for peer, figures in speech.items():
        parts = [figures["component_real_time_factor"][name] for name in COMPONENTS]
        cells = [
            PEERS[peer],
            _spread(figures["real_time_factor"]),
            *(f"{part['median']:.2f}" for part in parts),
            _spread(figures["first_audio_seconds"]),
            f"{figures['load_seconds']['median']:.1f}",
            f"{figures['peak_bytes']['max'] / 1e9:.2f} GB",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    peak = speech["engines"]["peak_bytes"]["max"]
    once = "they are resident once" if peak <= 1.3 * weights else "more than resident once"
    factor = speech["engines"]["real_time_factor"]["median"]
    real_time = "faster" if factor < 1 else "slower"
    lines += [
        "",
        f"The engines' weights are {weights / 1e9:.2f} GB in the precision they are computed in; "
        f"peak memory while speaking is {peak / weights:.2f} times that: {once}. PyTorch eager "
        f"needs {_ratio(speech, 'torch-float32'):.2f} times the engines' time in float32 and "
        f"{_ratio(speech, 'torch-bfloat16'):.2f} times in bfloat16. In float32 these engines are "
        f"{real_time} than real time on this machine.",
    ]
    encode = {peer: speech[peer] for peer in PEERS if peer in speech}
    seconds = first[0]["reference_seconds"]
    lines += [
        "",
        f"A reference of {seconds} s to clone is encoded in "
        + ", ".join(
            f"{_spread(figures['encode_seconds'])} s ({PEERS[peer]})"
            for peer, figures in encode.items()
        )
        + f"; the first one also loads the encoder, "
        f"{speech['engines']['first_encode_seconds']['median']:.1f} s and a peak of "
        f"{speech['engines']['encode_peak_bytes']['max'] / 1e9:.2f} GB with the engines. A stored "
        "voice costs none of that.",
    ]
    return "\n".join(lines)


def parity(data: Mapping[str, Any]) -> str:
    """Arrays of whole requests, then of single components: how many, and the largest error."""
    versions = data["versions"]
    lines = [
        f"Tiny random checkpoints, {data['goldens']} of recordings; target {data['target']}, "
        f"{data['precision']}, {data['machine']['processor']}; ONNX Runtime "
        f"{versions['onnxruntime']}, exported with PyTorch {versions['torch']}.",
        "",
        "| checkpoint | array | recordings | worst relative error |",
        "|---|---|---|---|",
    ]
    for part in ("requests", "components"):
        for checkpoint, kinds in data[part].items():
            for kind, found in kinds.items():
                error = found["worst_relative_error"]
                shown = f"{error:.1e}" if error else "equal"
                lines.append(f"| {checkpoint} | {kind} | {found['arrays']} | {shown} |")
    return "\n".join(lines)


def export_memory(data: Mapping[str, Any]) -> str:
    """A row for each size and way; then what does not grow."""
    runs, machine = data["runs"], data["machine"]
    lines = [
        f"Random mixtures of experts of the released widths, {machine['processor']}, PyTorch "
        f"{data['versions']['torch']}. Peaks of resident memory: the process's own pages, those of "
        "mapped checkpoint files, which the system may take back at any time, and both together.",
        "",
        "| layers | checkpoint | export | seconds | own | mapped | both | "
        "both, while weights are written |",
        "|---" * 8 + "|",
    ]
    for run in runs:
        for way, found in run["exports"].items():
            peaks, weights = found["peak_bytes"], found["weights_peak_bytes"]
            cells = [
                f"{run['layers']}",
                f"{run['checkpoint_bytes'] / 1e9:.1f} GB",
                way,
                f"{found['seconds']:.0f}",
                *(f"{peaks[kind] / 1e9:.1f} GB" for kind in ("own", "mapped", "all")),
                f"{weights['all'] / 1e9:.2f} GB",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    small, large = runs[0], runs[-1]
    grown = {
        way: (large["exports"][way]["peak_bytes"]["all"] - found["peak_bytes"]["all"]) / 1e9
        for way, found in small["exports"].items()
    }
    compared = large["exports"]["values compared"]
    graphs = [part for part in compared["parts"] if part["line"].startswith("graph ")]
    lines += [
        "",
        f"The checkpoint grew by {_grown(small, large):.1f} GB, the peak by "
        + ", ".join(f"{size:.2f} GB ({way})" for way, size in grown.items())
        + ": what is held is one layer's experts while weights are written, and one graph's "
        "weights while its values are compared. "
        f"{len(compared['not_compared'])} graphs of {len(graphs)}, "
        "the talker's, were not compared, and said so: `--memory` allows 6 GB where nobody says "
        "more.",
    ]
    return "\n".join(lines)


def _grown(small: Mapping[str, Any], large: Mapping[str, Any]) -> float:
    return float(large["checkpoint_bytes"] - small["checkpoint_bytes"]) / 1e9


#: A row of intelligibility's result: how it is shown, with its voice.
SPOKEN_BY = {
    "source": "the source, {}",
    "codec": "{} through the audio codec",
    "speech": "engines, voice {}",
}


def intelligibility(data: Mapping[str, Any]) -> str:
    """A row for each way to say the sentences; then the two voices, where they were compared."""
    engines, sentences, machine = data["engines"], data["sentences"], data["machine"]
    precisions = ", ".join(sorted(set(engines["precision"].values()))) or "as stored"
    lines = [
        f"{sentences['count']} sentences ({sentences['file']}), seed "
        f"{', '.join(map(str, data['seeds']))}; heard by PocketSphinx "
        f"{data['versions']['pocketsphinx']}, whose own mistakes the source's row shows. Target "
        f"{engines['target']}, {precisions}, {machine['processor']}; ONNX Runtime "
        f"{data['versions']['onnxruntime']}. In brackets 95 % of a bootstrap over sentences, or "
        "the range.",
        "",
        "| | word error rate | sentences without an error | stopped by itself | "
        f"length within {data['length_tolerance']:.0%} of the source's | "
        "real-time factor | first audio, s |",
        "|---" * 7 + "|",
    ]
    for row in data["rows"]:
        rate, count = row["word_error_rate"], row["utterances"]
        cells = [
            SPOKEN_BY[row["row"]].format(row["voice"]),
            f"{rate['rate']:.3f} ({rate['low']:.3f}–{rate['high']:.3f})",
            f"{row['exact']} of {count}",
        ]
        if "stopped" in row:
            ratio = row["length_ratio"]
            cells += [
                f"{row['stopped']} of {count}",
                "–" if ratio is None else f"{ratio['near']} of {count}",
                _spread(row["real_time_factor"]),
                f"{row['first_audio_seconds']['median']:.2f}",
            ]
        else:
            cells += ["–"] * 4
        lines.append("| " + " | ".join(cells) + " |")
    for row, reason in data["skipped"].items():
        lines += ["", f"No {row} row: {' '.join(reason.split())}"]
    if voices := data["voices"]:
        within, between = voices["within"], voices["between"]
        first, second = voices["names"]
        overlap = "never" if voices["separated"] else "now and then, at the extremes,"
        lines += [
            "",
            f"Voices {first} and {second}, {voices['sentences']['count']} sentences each: both are "
            f"more alike to themselves than to each other in {voices['pairs_told_apart']} of "
            f"{voices['sentence_pairs']} pairs of sentences. Cosines {_range(within)} within a "
            f"voice, {_range(between)} between them, which {overlap} overlap; by "
            f"{voices['encoder_is']}.",
        ]
    return "\n".join(lines)


def cloning(data: Mapping[str, Any]) -> str:
    """A row for each recording and each way to use it."""
    voices = list(data["rows"][0]["similarity"])
    lines = [
        f"{data['rows'][0]['sentences']} sentences a row. Cosines to the mean of each source voice "
        f"saying the same, median and range, by {data['encoder_is']}. Unknown to talker and codec: "
        f"{', '.join(data['unheard']) or 'none of these'}.",
        "",
        "| recording of | used | word error rate | stopped by itself | "
        + " | ".join(f"likeness to {voice}" for voice in voices)
        + " |",
        "|---" * (4 + len(voices)) + "|",
    ]
    for row in data["rows"]:
        cells = [
            row["recording"] or "none",
            row["way"] or "–",
            f"{row['word_error_rate']['rate']:.3f}",
            f"{row['stopped']} of {row['sentences']}" if "stopped" in row else "–",
            *(_spread(row["similarity"][voice]) for voice in voices),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


#: How benchmarks/talker_step.py names its models: what they are.
TALKERS = {
    "experts": "Mixture of experts, Ming-omni-tts-16.8B-A3B",
    "dense": "Dense, Ming-omni-tts-0.5B",
}


def talker_step(data: Mapping[str, Any]) -> str:
    """A row for each number of slots, a talker after the other; then parity and prefill."""
    gpu, versions = data["gpu"], data["versions"]
    lines = [
        f"{gpu['name']} at {gpu['clocks.sm']}, driver {gpu['driver_version']}, PyTorch "
        f"{versions['torch']}, Triton {versions['triton']}; random weights, {data['context']} "
        f"entries in each cache, medians of {data['runs']} replays; the memory copies "
        f"{data['copy_bytes_per_second'] / 1e12:.2f} TB/s in the same run. The floor is what a "
        "step must read, its weights and those experts that were chosen, at that rate. Peers are "
        "PyTorch's bfloat16 layers of the same weights, each in the form that is quickest for it, "
        "eager, as a CUDA graph and compiled.",
    ]
    for name, model in data["models"].items():
        lines += [
            "",
            f"{TALKERS[name]}:",
            "",
            "| slots | ms a step | floor, ms | share of floor | best peer, ms | times as fast |",
            "|---" * 6 + "|",
        ]
        for step in model["steps"]:
            time, peers = step["milliseconds"], step.get("peers") or {}
            cells = [
                str(step["slots"]),
                f"{time['median']:.3f} ({time['min']:.3f}–{time['max']:.3f})",
                f"{step['floor_milliseconds']:.3f}",
                f"{step['share_of_floor']:.0%}",
            ]
            if peers:
                best = step["best_peer"]
                cells += [f"{peers[best]['median']:.2f} ({best})", f"{step['speedup']:.2f}"]
            else:
                cells += ["–", "–"]
            lines.append("| " + " | ".join(cells) + " |")
        errors = [
            f"{max(part['median'] for part in row['relative_error'].values()):.4f} over "
            f"{row['layers']}"
            for row in model["parity"]
        ]
        agreements = [
            value
            for row in model["parity"]
            for figure, value in row.items()
            if figure.startswith("expert_agreement")
        ]
        agreed = f"; at least {min(agreements):.1%} of choices agree" if agreements else ""
        lines += [
            "",
            f"Against float32 PyTorch at full width, ‖ours − reference‖ / ‖reference‖, medians: "
            f"{', '.join(errors)} layers{agreed}.",
        ]
    return "\n".join(lines)


def cuda_loop(data: Mapping[str, Any]) -> str:
    """Whole steps of target cuda, a row for each number of slots."""
    versions, gpu = data["versions"], data["gpu"]
    lines = [
        f"{TALKERS[data['talker']]}, {data.get('precision', 'float32')}: "
        f"{gpu['devices'][0]['name']}, driver {gpu['driver']}; ONNX "
        f"Runtime {versions['onnxruntime-gpu']}, PyTorch {versions['torch']}, Triton "
        f"{versions['triton']}; random weights. Milliseconds, median and range.",
        "",
        "| slots | talker | tail | tail not captured | audio decoder of every slot | "
        "whole step | seconds of audio a second |",
        "|---" * 7 + "|",
    ]
    for name, figures in data["results"].items():
        if not name.endswith(" slots"):
            continue
        parts = ("talker", "tail", "tail_not_captured", "audio decoder", "step")
        cells = [
            name.removesuffix(" slots"),
            *(_spread(figures[f"{part}_ms"]) for part in parts),
            f"{figures['audio_seconds_a_second']:.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


#: The components of benchmarks/cuda_loop.py's comparison.
COMPARED = {
    "talker": "talker, hidden states",
    "patch": "tail, patch",
    "embedding": "aggregator",
    "stop": "stop head",
    "audio": "audio decoder",
}


def cuda_compare(data: Mapping[str, Any]) -> str:
    """A row for each component: the worst over all numbers of slots."""
    versions, results = data["versions"], data["results"]
    rows = results["rows"]
    slots = sorted({row["slots"] for row in rows})
    lines = [
        f"{data['talker'].capitalize()}, tiny and random, {slots[0]} to {slots[-1]} slots; "
        f"{data['gpu']['devices'][0]['name']}, ONNX Runtime {versions['onnxruntime-gpu']}, Triton "
        f"{versions['triton']}:",
        "",
        "| component | relative error to the CPU engines | a slot against itself alone |",
        "|---|---|---|",
    ]
    for name, shown in COMPARED.items():
        of_it = [row for row in rows if row["component"] == name]
        error, worst, apart = (
            max(row[figure] for row in of_it)
            for figure in ("error", "worst", "first_slot_against_itself_alone")
        )
        beside = f", at most {worst:.1e}" if worst > error else ""
        lines.append(f"| {shown} | {error:.1e}{beside} | {apart:.1e} |")
    lines += [
        "",
        f"{results['speech_steps']} steps of speech by themselves: latents off by "
        f"{results['speech_latents_error']:.1e}.",
    ]
    return "\n".join(lines)


def throughput(data: Mapping[str, Any]) -> str:
    """A row for each way to speak several requests."""
    machine = data["machine"]
    several = data["runs"] > 1
    runs = f"medians of {data['runs']} runs in turns, with the range" if several else "one run"
    lines = [
        f"{data['requests']} requests of {data['steps']} steps each, engines of {data['what']}, "
        f"{machine['processor']}, {machine['physical_cores']} cores; ONNX Runtime "
        f"{data['versions']['onnxruntime']}; {runs}.",
        "",
        "| | seconds of audio a second | times one after the other |",
        "|---|---|---|",
    ]
    for name, figures in data["ways"].items():
        rate, ratio = figures["audio_per_second"], figures["to_one_after_the_other"]
        cells = [
            _spread(figure) if several else f"{figure['median']:.2f}" for figure in (rate, ratio)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _range(figures: Mapping[str, float]) -> str:
    return f"{figures['min']:.2f} to {figures['max']:.2f}"


def _spread(figures: Mapping[str, float]) -> str:
    return f"{figures['median']:.2f} ({figures['min']:.2f}–{figures['max']:.2f})"


def _ratio(speech: Mapping[str, Any], peer: str) -> float:
    medians = [float(speech[name]["real_time_factor"]["median"]) for name in (peer, "engines")]
    return medians[0] / medians[1]


def bench(data: Mapping[str, Any]) -> str:
    """What `ming-trt bench` prints."""
    return "\n".join(["```", *bench_table.lines(data), "```"])


Tables = Mapping[str, Callable[[Mapping[str, Any]], str]]

#: What each document shows: the name in its marker, which is the result file's, and how.
DOCUMENTS: Mapping[Path, Tables] = {
    ROOT / "README.md": {
        "parity": parity,
        "bench": bench,
        "full-size-cpu": full_size,
        "export-memory": export_memory,
    },
    ROOT / "docs" / "gpu.md": {
        "talker-step-h200": talker_step,
        "cuda-loop-dense": cuda_loop,
        "cuda-loop-dense-mixed": cuda_loop,
        "cuda-loop-experts": cuda_loop,
        "cuda-compare-dense": cuda_compare,
        "cuda-compare-experts": cuda_compare,
    },
    ROOT / "docs" / "tensorrt.md": {
        "tensorrt-build": tensorrt_tables.build,
        "precision-h200": tensorrt_tables.precision,
        "compare-h200": tensorrt_tables.compared,
    },
    ROOT / "docs" / "speaking.md": {
        "throughput": throughput,
        "throughput-full-size": throughput,
    },
    ROOT / "docs" / "demonstration-voice.md": {
        "intelligibility": intelligibility,
        "cloning": cloning,
    },
}


def rendered(text: str, tables: Tables, results: Path = RESULTS) -> str:
    """`text` with the part between each table's markers made anew."""
    for name, table in tables.items():
        start = f"<!-- {name}: made by benchmarks/tables.py -->"
        head, found, rest = text.partition(start)
        _, closed, tail = rest.partition(END)
        if not (found and closed):
            raise SystemExit(f"the document lacks the markers of {name}: {start} and {END}")
        data = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
        text = f"{head}{start}\n{table(data)}\n{END}{tail}"
    return text


def main() -> None:
    for path, tables in DOCUMENTS.items():
        text = path.read_text(encoding="utf-8")
        new = rendered(text, tables)
        if "--check" not in sys.argv[1:]:
            path.write_text(new, encoding="utf-8")
        elif new != text:
            raise SystemExit(f"{path} is not what the results say: python -m benchmarks.tables")


if __name__ == "__main__":
    main()
