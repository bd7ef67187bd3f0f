"""The tables of docs/tensorrt.md, for benchmarks/tables.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = {
    "tiny-dense": "tiny dense (golden, random)",
    "tiny-experts": "tiny experts (golden, random)",
    "demo": "demonstration voice (trained, 7.3 M)",
    "0.5b": "0.5B, random",
}
PRECISIONS = ("float32", "mixed", "mixed-bf16", "mixed-fp16", "float16 throughout")


def _device(data: Mapping[str, Any]) -> str:
    gpu, versions = data["gpu"], data["versions"]
    return (
        f"{gpu['devices'][0]['name']}, driver {gpu['driver']}, ONNX Runtime "
        f"{versions['onnxruntime-gpu']}, PyTorch {versions['torch']}"
    )


def precision(data: Mapping[str, Any]) -> str:
    """Errors and times of each precision, then the decisions to stop."""
    lines = [
        f"{_device(data)}. Against float32 on the same GPU with the same noise, {data['steps']} "
        "patches of 10 solver steps: the largest patch error with shared history, the last with "
        "histories of their own, the decoder's signal-to-noise ratio; milliseconds of a replay, "
        "medians.",
        "",
        "| model | precision | patch error, largest | after 50 steps by itself | stop head | "
        "decoder, dB | tail, 1 slot | tail, 8 slots | decoder |",
        "|---" * 9 + "|",
    ]
    for name, result in data["results"].items():
        for kind in PRECISIONS:
            row = result["precisions"][kind]
            snr = row["audio_decoder_snr_db"]
            cells = [
                NAMES[name],
                kind,
                f"{row['patch_error']['max']:.2%}",
                f"{row['patch_error_of_last_free_step']:.2%}",
                f"{row['stop_probability_error']:.0e}",
                "–" if snr is None else f"{snr:.1f}",
                *(f"{row['tail_ms'][slots]['median']:.2f}" for slots in ("1", "8")),
                f"{row['audio_decoder_ms']['median']:.2f}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    for name, result in data["results"].items():
        if "stop_decisions" not in result:
            continue
        rows = result["stop_decisions"]
        first = rows["float32"]
        differ = ", ".join(f"{kind} {row['differ']}" for kind, row in rows.items())
        lines.append(
            f"Of {first['decisions']} decisions to stop in the {first['requests']} recorded "
            f"requests of {NAMES[name]}, with the recorded noise and the bfloat16 talker of "
            f"`cuda`, differ: {differ}."
        )
    return "\n".join(lines)


def compared(data: Mapping[str, Any]) -> str:
    """What `ming-trt compare` finds of each precision."""
    rows = {
        "talker_decode.median": "talker, hidden states, median",
        "flow.patch_error": "flow, patch error",
        "aggregator.norm": "aggregator",
        "stop_head": "stop head, absolute",
        "audio_decoder.snr": "audio decoder, dB",
        "loop.latents": "loop: latents, largest of all steps",
        "loop.stops": "loop: stop decisions that differ",
        "loop.rows": "loop: identical rows apart by",
    }
    lines = [
        f"{_device(data)}; the bundle in float32 on the CPU against engines of target `cuda`, "
        f"whose talker is bfloat16 in both; {data['steps']} steps of the loop.",
        "",
        "| model | precision | " + " | ".join(rows.values()) + " | drift at step 1, 10, 50 | |",
        "|---" * (len(rows) + 4) + "|",
    ]
    for name, reports in data["results"].items():
        for kind, report in reports.items():
            found = {row["name"]: row["value"] for row in report["rows"]}
            drift = report["drift"]["latents"]
            cells = [
                NAMES[name],
                kind,
                *(_shown(row, found[row]) for row in rows),
                ", ".join(f"{drift[step]:.1e}" for step in (0, 9, 49)),
                "within every budget" if report["passed"] else "outside a budget",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(name: str, value: float | None) -> str:
    if value is None:  # no noise at all
        return "–"
    if name.endswith(".stops"):
        return f"{value:.0f}"
    return f"{value:.1f}" if name.endswith(".snr") else f"{value:.1e}"


def build(data: Mapping[str, Any]) -> str:
    """Seconds, size and memory of each component's engine."""
    lines = [
        f"TensorRT-RTX {data['library']}, {data['machine']['processor']}, "
        f"{data['machine']['physical_cores']} cores; for "
        f"compute capabilities {', '.join(data['compute_capabilities'])} at once, slots "
        f"{', '.join(map(str, data['slots']))}. Seconds, megabytes of the engine, gigabytes of "
        "memory at the most:",
        "",
        "| component | profiles | "
        + " | ".join(
            f"{NAMES[name].partition(' (')[0]}, {kind}"
            for name, results in data["results"].items()
            for kind in results
        )
        + " |",
    ]
    columns = [figures for results in data["results"].values() for figures in results.values()]
    lines.append("|---" * (2 + len(columns)) + "|")
    for component, first in columns[0]["components"].items():
        cells = [component, str(first["profiles"])]
        cells += [_cell(figures["components"][component]) for figures in columns]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("| **all** | | " + " | ".join(f"**{_cell(column)}**" for column in columns) + " |")
    return "\n".join(lines)


def _cell(figures: Mapping[str, Any]) -> str:
    memory = figures["peak_memory_bytes"] / 1e9
    return f"{figures['seconds']:.1f} s, {figures['bytes'] / 1e6:,.1f} MB, {memory:.1f} GB"
