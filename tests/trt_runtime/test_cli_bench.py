"""`ming-trt bench`: its table, its JSON, and what it refuses before anything is timed."""

from __future__ import annotations

import json
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trt_runtime.test_cli_wording import PYTHON
from trt_runtime import measuring
from trt_runtime.cli import bench_table, main, standard_output
from trt_runtime.folder import EMBEDDED
from trt_runtime.manifest import ENGINES

STEPS, RUNS, SLOTS = 3, 2, [1, 3]
FEW = ["--steps", str(STEPS), "--runs", str(RUNS), "--slots", "1,3", "--threads", "1"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, str]:
    """The JSON of the embedded default next to itself, and both outputs of the command."""
    path = tmp_path_factory.mktemp("bench") / "found.json"
    path.write_text("what was there before")
    with pytest.MonkeyPatch.context() as patch:
        output: dict[str, list[str]] = {"out": [], "err": []}
        for name, lines in output.items():
            patch.setattr(f"sys.std{name}", Stream(lines))
        words = ["--peer", str(EMBEDDED), "--json", str(path), "--seed", "5", "--text", "Hello."]
        assert main.main(["bench", *FEW, *words]) == 0
    assert [file.name for file in path.parent.iterdir()] == ["found.json"]
    return json.loads(path.read_text("utf-8")), "".join(output["out"]), "".join(output["err"])


class Stream:
    """A text stream that keeps what is written to it, and is no terminal."""

    encoding = "utf-8"

    def __init__(self, parts: list[str]) -> None:
        self.write = parts.append

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


def test_the_json_says_what_was_asked_for(measured: Any) -> None:
    found = measured[0]
    assert found["format"] == "ming-trt-bench"
    assert found["options"] == {
        "engines": str(EMBEDDED), "peers": [str(EMBEDDED)], "text": "Hello.", "steps": STEPS,
        "slots": SLOTS, "runs": RUNS, "seed": 5, "threads": 1,
    }  # fmt: skip
    assert found["peak_bytes"] > 50e6
    assert [folder["folder"] for folder in found["folders"]] == [str(EMBEDDED)] * 2


def test_every_run_has_its_raw_values(measured: Any) -> None:
    for folder in measured[0]["folders"]:
        assert folder["load_seconds"] > 0
        assert folder["warmup_seconds"] > 0
        assert folder["resident_bytes"] > 0
        assert [run["number"] for run in folder["runs"]] == [1, 2]
        for run in folder["runs"]:
            assert run["steps"] == STEPS
            assert run["samples"] == STEPS * folder["samples_per_patch"]
            assert run["audio_seconds"] == run["samples"] / folder["sample_rate"]
            assert 0 < run["first_audio_seconds"] <= run["streamed_seconds"]
            assert 0 < sum(run["components"].values()) <= run["seconds"]
            assert [together["slots"] for together in run["together"]] == SLOTS
            for together in run["together"]:
                audio = together["slots"] * run["audio_seconds"]
                assert together["audio_seconds"] == pytest.approx(audio)


def test_medians_are_those_of_the_raw_values(measured: Any) -> None:
    figures: dict[str, Callable[[dict[str, Any]], float]] = {
        "first_audio_seconds": lambda run: run["first_audio_seconds"],
        "real_time_factor": lambda run: run["seconds"] / run["audio_seconds"],
        "prefill_ms": lambda run: 1e3 * run["components"]["prefill"],
        "talker_ms": lambda run: 1e3 * run["components"]["talker"] / (STEPS - 1),
        "tail_ms": lambda run: 1e3 * run["components"]["flow"] / STEPS,
        "audio_decoder_ms": lambda run: 1e3 * run["components"]["audio_decoder"] / STEPS,
        "3_slots_audio_per_second": lambda run: (
            run["together"][1]["audio_seconds"] / run["together"][1]["seconds"]
        ),
    }
    engines, peer = measured[0]["folders"]
    for name, figure in figures.items():
        values = [figure(run) for run in engines["runs"]]
        expected = {
            "median": statistics.median(values), "min": min(values), "max": max(values),
        }  # fmt: skip
        assert engines["medians"][name] == pytest.approx(expected)
        ratios = [figure(b) / figure(a) for a, b in zip(engines["runs"], peer["runs"], strict=True)]
        assert peer["ratios"][name]["median"] == pytest.approx(statistics.median(ratios))


def test_peers_are_timed_in_turns(measured: Any) -> None:
    folders = enumerate(measured[0]["folders"])
    began = sorted((run["began"], index) for index, folder in folders for run in folder["runs"])
    assert [index for _, index in began] == [0, 1, 1, 0]


def test_the_table_has_every_median(measured: Any) -> None:
    found, output, error = measured
    lines = output.splitlines()
    assert lines == list(bench_table.lines(found))
    assert lines[0] == f"{STEPS} steps a request; medians of {RUNS} runs (least to most)"
    for shown in (
        "a request             0.24 s of audio from ",
        "load, s",
        "first audio, s",
        "prefill, ms",
        "  talker",
        "  tail",
        "3 slots, ",
    ):
        assert sum(line.startswith(shown) for line in lines) == 2, shown
    assert [line for line in lines if line.startswith("peak of the process ")]
    assert max(map(len, lines)) <= 120
    # What the folder's maker wants everybody to know, once.
    assert error.startswith("warning: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("precision", "shown"),
    [
        (dict.fromkeys(("talker", "flow", "audio_decoder"), "float32"), "float32"),
        (
            {"talker": "bfloat16", "tail": "mixed-fp16", "audio_decoder": "mixed-fp16"}
            | dict.fromkeys(("flow_advance", "speaker_projection"), "float32"),
            "talker bfloat16, tail mixed-fp16, audio_decoder mixed-fp16",
        ),
    ],
    ids=["looped", "unrolled"],
)
def test_the_table_has_the_precision_of_all_that_is_timed(
    measured: Any, precision: dict[str, str], shown: str
) -> None:
    folder = measured[0]["folders"][0] | {"target": "any", "precision": precision}
    lines = list(bench_table.lines(measured[0] | {"folders": [folder]}))
    assert lines[3].endswith(f" (target any, {shown})")


@pytest.mark.parametrize("words", [["--json"], ["--json", "-"]])
def test_json_goes_to_standard_output_alone(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--steps", "2", "--runs", "1", "--slots", "1"]
    assert main.main(["bench", *quick, *words, "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["folders"][0]["runs"]) == 1
    assert "ratios" not in found["folders"][0]


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_is_told_how_far_it_is(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    terminal = Stream(told)
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", terminal)
    quick = ["--steps", "2", "--runs", "1", "--slots", "1", *["--quiet"] * quiet]
    assert main.main(["bench", *quick]) == 0
    assert capsys.readouterr().out.startswith("2 steps a request; 1 run\n")
    error = "".join(told)
    assert ("\rload and warm up: " in error) is not quiet
    assert ("\rrun 1 of 1: " in error) is not quiet
    # Nothing is left of it before the warning.
    assert error.rpartition("\r")[2].startswith("warning: ")


def test_a_result_outlives_a_reader_that_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(line: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(standard_output, "print_line", gone)
    path = tmp_path / "found.json"
    quick = ["--steps", "2", "--runs", "1", "--slots", "1", "--json", str(path)]
    assert main.main(["bench", *quick]) == 141
    assert json.loads(path.read_text("utf-8"))["format"] == "ming-trt-bench"


def test_no_standard_output_is_told_before_anything_is_timed(
    untimed: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert main.main(["bench"]) == 2
    assert "There is no standard output" in capsys.readouterr().err


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is loaded, and so timed, is a failure."""

    def loaded(*arguments: Any, **options: Any) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(measuring, "open_folder", loaded)


def a_copy(folder: Path, **changes: Any) -> Path:
    """The embedded default with another manifest."""
    shutil.copytree(EMBEDDED, folder)
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text("utf-8")) | changes
    if manifest["format"] == ENGINES:
        for component in manifest["components"].values():
            component["backend"] = "onnxruntime-cpu"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    return folder


@pytest.mark.usefixtures("untimed")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engines", "none"], "No such folder: none"),
        (["--peer", "none"], "No such folder: none"),
        (["--peer", "other"], "was built for another processor architecture"),
        (["--peer", "gpu"], "was built for target 'gpu'"),
        (["--peer", "damaged"], "has changed since it was built"),
        (["--slots", "0"], "--slots cannot be used"),
        (["--slots", "1,two"], "--slots cannot be used"),
        (["--slots", ""], "--slots cannot be used"),
        (["--slots", "1,,2"], "--slots cannot be used"),
        (["--slots", "-1"], "--slots cannot be used"),
        (["--slots", "²"], "--slots cannot be used"),
        (["--slots", "257"], "from 1 to 256"),
        (["--slots", "4,4"], "each once"),
        (["--slots", "9", "--steps", "8"], "more slots than steps"),
        (["--steps", "1"], "--steps cannot be used"),
        (["--steps", "401"], "at most 400"),
        (["--threads", "5000"], "--threads cannot be used"),
        (["--seed", "-1"], "seed cannot be used"),
        (["--text", " "], "text"),
        (["--text", "a", "--text-file", "given.txt"], "more than one text"),
        (["--text-file", "none.txt"], "none.txt cannot be read"),
        (["--text", "@none.txt"], "none.txt cannot be read"),
        (["--text", "a b " * 3000], "no room for the text"),
        (["--json", "."], ". cannot be written"),
        (["--json", "none/a.json"], "cannot be written"),
        (["--json", "given.txt", "--text-file", "given.txt"], "--json and --text-file name one"),
        (["--json", "given.txt", "--text", "@given.txt"], "--json and --text name one"),
        (["--json", "gpu/manifest.json", "--peer", "gpu"], "--json and --peer name one"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_bad_input_is_refused_before_anything_is_timed(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given.txt").write_text("Hello.")
    if "other" in words:
        machine = {"architecture": "abacus"}
        a_copy(tmp_path / "other", format=ENGINES, target="cpu", machine=machine)
    if "gpu" in words:
        a_copy(tmp_path / "gpu", format=ENGINES, target="gpu")
    if "damaged" in words:
        graph = next(a_copy(tmp_path / "damaged").glob("*.onnx"))
        data = graph.read_bytes()
        graph.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    there = sorted(tmp_path.rglob("*"))
    words = words if "--json" in words else [*words, "--json", "new.json"]
    assert main.main(["bench", *words]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""
    ours = printed.err.replace(str(EMBEDDED), "DIR").replace("speaker_encoder.onnx", "FILE")
    assert not PYTHON.search(ours), ours
    assert sorted(tmp_path.rglob("*")) == there
    assert (tmp_path / "given.txt").read_text() == "Hello."


@pytest.mark.parametrize("words", [["--runs", "0"], ["--runs", "x"], ["--steps", "x"], ["extra"]])
def test_a_wrong_command_line_has_status_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main.main(["bench", *words])
    assert stopped.value.code == 2


def test_ctrl_c_leaves_nothing_and_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While submitted requests are waited for: in the last of the runs."""
    speak = measuring.speak_together

    def interrupted(speaker: Any, text: str, seeds: Any, options: Any) -> Any:
        if interrupted.calls:  # type: ignore[attr-defined]
            speaker.submit(text, seed=0, min_steps=300, max_steps=300)
            raise KeyboardInterrupt
        interrupted.calls += 1  # type: ignore[attr-defined]
        return speak(speaker, text, seeds, options)

    interrupted.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(measuring, "speak_together", interrupted)
    path = tmp_path / "found.json"
    path.write_text("what was there before")
    words = ["--steps", "2", "--runs", "1", "--slots", "1", "--json", str(path)]
    assert main.main(["bench", *words]) == 130
    assert capsys.readouterr().err == "ming-trt: interrupted\n"
    assert path.read_text() == "what was there before"
    assert list(tmp_path.iterdir()) == [path]
    # Cancelled: it ends after the step that is being made, perhaps before its thread has begun.
    deadline = time.monotonic() + 10
    while any(thread.name == "ming-trt speaks" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
