"""What `ming-trt bench` measured, as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trt_runtime.cli.inspect import human_size

#: Rows of every folder: what is shown, and its name among the medians.
_ROWS = (
    ("first audio, s", "first_audio_seconds"),
    ("real-time factor", "real_time_factor"),
    ("prefill, ms", "prefill_ms"),
    ("a step, ms", "step_ms"),
    ("  talker", "talker_ms"),
    ("  tail", "tail_ms"),
    ("  audio decoder", "audio_decoder_ms"),
)
_NAME, _VALUE = 22, 30
#: Components whose precision is told.
_TIMED = ("talker", "flow", "tail", "audio_decoder")


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The report of `trt_runtime.measurements.report`, readably: medians, with least and most."""
    options, folders = found["options"], found["folders"]
    runs = "1 run" if options["runs"] == 1 else f"medians of {options['runs']} runs (least to most)"
    yield f"{options['steps']} steps a request; {runs}"
    yield _machine(found)
    for index, folder in enumerate(folders):
        yield ""
        name = f"peer {index}" if index else "engines"
        yield f"{name:<{_NAME}}{folder['folder']} ({_kind(folder)})"
        yield f"{'a request':<{_NAME}}{_request(folder)}"
        if index:
            yield " " * (_NAME + _VALUE) + "times engines"
        yield from _folder(folder, options["slots"])
    if found["peak_bytes"] is not None:
        yield ""
        yield f"{'peak of the process':<{_NAME}}{human_size(found['peak_bytes'])}"


def _folder(folder: Mapping[str, Any], slots: list[int]) -> Iterator[str]:
    yield f"{'load, s':<{_NAME}}{_number(folder['load_seconds'])}"
    yield f"{'warm-up, s':<{_NAME}}{_number(folder['warmup_seconds'])}"
    for shown, name in _ROWS:
        yield _row(shown, folder, name)
    for count in slots:
        at_once = f"{count} slot{'s' * (count > 1)}"
        yield _row(f"{at_once}, audio s/s", folder, f"{count}_slots_audio_per_second")
        yield _row("  times one at a time", folder, f"{count}_slots_to_one_at_a_time")
    for shown, name in (("memory", "resident_bytes"), ("GPU memory", "device_bytes")):
        if folder[name] is not None:
            yield f"{shown:<{_NAME}}{human_size(folder[name])}"


def _row(shown: str, folder: Mapping[str, Any], name: str) -> str:
    line = f"{shown:<{_NAME}}{_spread(folder['medians'][name], len(folder['runs']))}"
    if "ratios" not in folder:
        return line
    return f"{line:<{_NAME + _VALUE}}{_spread(folder['ratios'][name], len(folder['runs']))}"


def _spread(values: Mapping[str, float], runs: int) -> str:
    if runs == 1:
        return _number(values["median"])
    least, most = _number(values["min"]), _number(values["max"])
    return f"{_number(values['median'])} ({least} to {most})"


def _number(value: float) -> str:
    """Three digits that say something, and no exponent."""
    decimals = next((d for d, least in ((0, 100), (1, 10), (2, 1)) if value >= least), 3)
    return f"{value:.{decimals}f}"


def _request(folder: Mapping[str, Any]) -> str:
    audio = folder["runs"][0]["audio_seconds"]
    return f"{audio:.2f} s of audio from {folder['prompt_tokens']} prompt tokens"


def _kind(folder: Mapping[str, Any]) -> str:
    """The target, and the precisions of what is timed, once where it is one."""
    named = {n: folder["precision"][n] for n in _TIMED if n in folder["precision"]}
    shown = [f"{n} {precision}" for n, precision in named.items()]
    one = sorted(set(named.values()))
    target = f"target {folder['target']}" if folder["target"] else "bundle"
    return ", ".join([target, *(one if len(one) == 1 else shown)])


def _machine(found: Mapping[str, Any]) -> str:
    machine, threads = found["machine"], found["options"]["threads"]
    words = [str(machine["processor"]), f"{machine['physical_cores']} cores"]
    words += [f"{threads} threads"] if threads else []
    words += [str(device["name"]) for device in found["gpu"]["devices"]]
    words += [f"{name} {version}" for name, version in found["versions"].items() if name != "numpy"]
    return ", ".join(words)
