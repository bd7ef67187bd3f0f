"""Measuring engines: what a plan may be, in which order runs are made, and what is told of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trt_runtime import measurements, measuring
from trt_runtime.cuda_devices import COMPUTE_CAPABILITY
from trt_runtime.errors import FolderError, UserError
from trt_runtime.folder import EMBEDDED
from trt_runtime.manifest import read_manifest
from trt_runtime.measurements import figures, report
from trt_runtime.measuring import Measured, Measurements, Plan, Run, Together, check, measure
from trt_runtime.spread import spread
from trt_runtime.tensorrt_library import MODULES

MANIFEST = read_manifest(EMBEDDED)
RATE = MANIFEST.geometry.sample_rate


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({"text": " "}, "text"),
        ({"text": b"a"}, "text"),
        ({"seed": -1}, "seed"),
        ({"threads": 0}, "threads"),
        ({"runs": 0}, "runs"),
        ({"runs": True}, "runs"),
        ({"steps": 1}, "steps"),
        ({"steps": 4.0}, "steps"),
        ({"slots": ()}, "slots"),
        ({"slots": (0,)}, "slots"),
        ({"slots": (1, "x")}, "slots"),
        ({"slots": (2, 2)}, "slots"),
        ({"slots": (257,)}, "slots"),
        ({"slots": (1, 8), "steps": 7}, "more slots than steps"),
    ],
)
def test_a_plan_is_refused_for(options: dict[str, Any], about: str) -> None:
    with pytest.raises(UserError, match=about):
        Plan(**options)


def test_requests_that_share_steps_have_seeds_of_their_own() -> None:
    assert Plan(seed=7).seeds(3) == [7, 8, 9]
    assert Plan(seed=(1 << 64) - 1).seeds(2) == [(1 << 64) - 1, 0]


def test_steps_and_text_must_fit_the_folder(tmp_path: Path) -> None:
    g = MANIFEST.geometry
    assert check(EMBEDDED, Plan(steps=g.max_steps)).prompt_tokens > 20
    with pytest.raises(UserError, match=f"at most {g.max_steps}"):
        check(EMBEDDED, Plan(steps=g.max_steps + 1))
    with pytest.raises(UserError, match="no room for the text"):
        check(EMBEDDED, Plan(text="a b " * g.cache_length))
    with pytest.raises(FolderError, match="No such folder"):
        check(tmp_path / "none", Plan())


class Speaker:
    """In place of a synthesizer: tells what it is asked for, and takes a second for everything."""

    def __init__(self, opened: Any, slots: int = 1) -> None:
        self.name, self.slots, self.warnings = opened.path, slots, ("a note",)
        self.clock, self.said = opened.clock, opened.said

    def __enter__(self) -> Speaker:
        return self

    def __exit__(self, *error: object) -> None:
        self.said.append((self.name, "closed"))

    def warmup(self) -> None:
        self.clock.now += 3

    def _speech(self, what: str, seed: int, options: dict[str, Any]) -> Any:
        assert options == {"min_steps": 4, "max_steps": 4, "split_limit": None}
        self.said.append((self.name, what, seed))
        self.clock.now += 1
        components = {"prompt_embedding": 0.1, "prefill": 0.1, "talker": 0.3, "flow": 0.2} | {
            "audio_decoder": 0.1
        }
        timings = SimpleNamespace(total=1.0, components=components)
        samples = 4 * MANIFEST.geometry.samples_per_patch
        return SimpleNamespace(
            audio=range(samples), steps=4, timings=timings, duration=samples / RATE
        )

    def stream(self, text: str, seed: int, **options: Any) -> Iterator[Any]:
        for size in (0, 5, 5):  # the first chunk without audio
            self.clock.now += 0.25
            yield SimpleNamespace(audio=range(size))
        self._speech("streamed", seed, options)

    def synthesize(self, text: str, seed: int, **options: Any) -> Any:
        return self._speech("whole", seed, options)

    def submit(self, text: str, seed: int, **options: Any) -> Any:
        speech = self._speech(f"of {self.slots}", seed, options)
        return SimpleNamespace(result=lambda: speech)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What stands in place of two loaded folders is asked for, in order; time is the speakers'."""
    said: list[Any] = []
    clock = SimpleNamespace(now=100.0)
    resident = iter(range(0, 10_000, 100))

    def open_folder(path: str, threads: int | None) -> Any:
        said.append((path, "opened", threads))
        clock.now += 2
        return SimpleNamespace(path=path, clock=clock, said=said)

    monkeypatch.setattr(measuring, "check", lambda path, plan: Measured(path, MANIFEST, 30))
    monkeypatch.setattr(measuring, "open_folder", open_folder)
    monkeypatch.setattr(measuring, "Synthesizer", Speaker)
    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(measuring, "resident_memory", lambda: next(resident))
    return said


PLAN = Plan(steps=4, slots=(2,), runs=3, seed=7, threads=1)


def test_folders_take_turns_run_by_run(said: list[Any]) -> None:
    lines: list[str] = []
    measured = measure(["a", "b"], PLAN, lines.append)
    one_run = [("streamed", 7), ("whole", 7), ("of 2", 7), ("of 2", 8)]
    turns = ["a", "b", "a", "b", "b", "a", "a", "b"]  # unmeasured each; then who begins changes
    spoken = [event for event in said if event[1] not in ("opened", "closed")]
    assert spoken == [(name, *event) for name in turns for event in one_run]
    # Each folder is loaded and warmed up before the next, and all of them before the first run.
    opened = [said.index((name, "opened", 1)) for name in "ab"]
    assert opened == [0, 5]
    assert said[-4:] == [("b", "closed")] * 2 + [("a", "closed")] * 2
    assert lines[:3] == ["load and warm up: a", "load and warm up: b", "run 1 of 3: a"]
    assert len(lines) == 2 + 6
    began = [(run.began, f.path) for f in measured.folders for run in f.runs]
    assert [name for _, name in sorted(began)] == ["a", "b", "b", "a", "a", "b"]
    assert min(began) == (0.0, "a")


def test_what_is_measured_is_what_the_clock_says(said: list[Any]) -> None:
    (folder,) = measure(["a"], PLAN).folders
    assert (folder.load_seconds, folder.warmup_seconds) == (2, 3)
    assert (folder.resident_bytes, folder.device_bytes) == (100, None)
    assert folder.warnings == ("a note",)
    assert [run.number for run in folder.runs] == [1, 2, 3]
    run = folder.runs[0]
    assert (run.first_audio_seconds, run.streamed_seconds, run.seconds) == (0.5, 0.75, 1.0)
    audio = 2 * 4 * MANIFEST.geometry.samples_per_patch / RATE
    assert run.together == (Together(2, 2.0, audio),)


@pytest.mark.parametrize("target", ["cuda", "tensorrt", "tensorrt-rtx"])
def test_the_memory_of_a_gpu_is_told_of_engines_of_every_target_that_needs_one(
    target: str, said: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = {"a": replace(MANIFEST, target=target, machine={COMPUTE_CAPABILITY: "8.0"})}
    in_use = iter([5_000, 5_700])
    monkeypatch.setattr(
        measuring, "check", lambda path, plan: Measured(path, manifests.get(path, MANIFEST), 30)
    )
    monkeypatch.setattr(measuring, "device_memory_in_use", lambda: next(in_use))
    measured = measure(["a", "b"], PLAN).folders
    assert [folder.device_bytes for folder in measured] == [700, None]


def test_engines_that_do_without_onnxruntime_are_measured_without(
    said: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert len(measure(["a"], PLAN).folders[0].runs) == PLAN.runs


def test_an_error_closes_what_was_loaded(said: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Any, *arguments: Any) -> Run:
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring._Candidate, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(["a", "b"], PLAN)
    assert said == [("a", "opened", 1), ("a", "closed"), ("a", "closed")]


COMPONENTS = {"prompt_embedding": 0.1, "prefill": 0.3, "talker": 0.6, "flow": 0.8}


def a_run(number: int = 1, slower: float = 1.0, **components: float) -> Run:
    """Four steps in 2 s, half a second of audio."""
    parts = COMPONENTS | {"audio_decoder": 0.2} | components
    return Run(
        number=number, began=0.0, first_audio_seconds=0.5 * slower, streamed_seconds=2.2 * slower,
        seconds=2.0 * slower, samples=RATE // 2, steps=4,
        components={name: seconds * slower for name, seconds in parts.items()},
        together=(Together(1, 2.5 * slower, 0.5), Together(4, 4.0 * slower, 2.0)),
    )  # fmt: skip


def test_figures_of_a_run() -> None:
    assert figures(a_run(), RATE) == pytest.approx(
        {
            "first_audio_seconds": 0.5,
            "real_time_factor": 4.0,
            "prompt_embedding_ms": 100.0,
            "prefill_ms": 300.0,
            "step_ms": 400.0,  # (2 - 0.1 - 0.3) / 4
            "talker_ms": 200.0,  # three decodes in four steps
            "tail_ms": 200.0,
            "audio_decoder_ms": 50.0,
            "1_slots_audio_per_second": 0.2,
            "1_slots_to_one_at_a_time": 0.8,
            "4_slots_audio_per_second": 0.5,
            "4_slots_to_one_at_a_time": 2.0,
        }
    )


def test_ratios_are_of_the_same_run() -> None:
    """A machine that slows down threefold in between changes no ratio."""
    first = Measured(Path("a"), MANIFEST, 30, runs=[a_run(1), a_run(2, 3.0)])
    peer = Measured(Path("b"), MANIFEST, 30, runs=[a_run(1, 2.0), a_run(2, 6.0)])
    found = report(Measurements(Plan(slots=(1, 4), runs=2), [first, peer], 5))
    engines, other = found["folders"]
    assert "ratios" not in engines
    for name, ratio in other["ratios"].items():
        expected = {"audio_per": 0.5, "to_one": 1.0}.get(
            next((key for key in ("audio_per", "to_one") if key in name), ""), 2.0
        )
        assert ratio == pytest.approx(dict.fromkeys(("median", "min", "max"), expected)), name
    assert other["ratios"].keys() == other["medians"].keys() == engines["medians"].keys()
    assert engines["medians"]["first_audio_seconds"] == spread([0.5, 1.5])


def test_a_report_is_json_and_says_where_it_comes_from() -> None:
    found = report(Measurements(Plan(), [Measured(Path("a"), MANIFEST, 30, runs=[a_run()])], 5))
    json.dumps(found, allow_nan=False)
    assert found["options"] | {"engines": "a", "peers": [], "steps": 32} == found["options"]
    assert found["machine"]["processor"]
    assert set(found["gpu"]) == {"driver", "cuda", "devices"}
    assert {"ming-trt", "numpy"} <= set(found["versions"])
    (folder,) = found["folders"]
    assert folder["source_sha256"] == MANIFEST.source["tensors_sha256"]
    assert (folder["kind"], folder["target"], folder["key"]) == ("ming-trt-bundle", "", None)


def test_packages_that_are_not_installed_have_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "_PACKAGES", ("numpy", "no-such-package-as-this"))
    monkeypatch.setattr(measurements, "installed_version", lambda target: None)
    assert set(measurements.versions()) == {"ming-trt", "onnxruntime", "numpy"}


def test_tensorrt_has_its_version_whatever_distribution_provides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for module in MODULES.values():
        monkeypatch.delitem(sys.modules, module, raising=False)
        (tmp_path / f"{module}.py").write_text("__version__ = '1.2.3'\n")
    assert measurements.versions().items() >= dict.fromkeys(MODULES, "1.2.3").items()
