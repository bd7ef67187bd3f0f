from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import engines
from engines.cli import main, parser
from engines.options import flags
from engines.targets import TARGETS
from trt_runtime.manifest import MANIFEST, read_manifest

ROOT = Path(engines.__file__).parents[1]


def test_help_answers_at_once_and_imports_nothing_heavy():
    code = (
        "import sys; from engines.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'onnx', 'onnxruntime', 'torch'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.3


def test_builds_and_says_so(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "engines"
    assert main([str(bundle), "--target", "cpu", "--out", str(out)]) == 0
    assert "talker_1: " in capsys.readouterr().out
    assert read_manifest(out).target == "cpu"
    assert main([str(bundle), "--out", str(out), "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_list_targets(capsys: pytest.CaptureFixture[str]):
    assert main(["--list-targets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    named = [line.split()[0] for line in lines[::3]]
    assert named == sorted(TARGETS)
    for name, *paragraph in zip(named, lines[::3], lines[1::3], lines[2::3], strict=True):
        target = TARGETS[name]
        assert paragraph == [
            f"{name:<14}{target.description}",
            f"{'':<14}precisions  {', '.join(sorted(target.precisions))}",
            f"{'':<14}options     {flags(target.options)}",
        ]


def test_options_of_targets_are_options_of_the_command(capsys: pytest.CaptureFixture[str]):
    """Where two errors send a user: what is listed can be given as it is written."""
    assert main(["--list-targets"]) == 0
    listed = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {"--precision", "--slots", "--time-limit"} <= listed
    assert listed <= set(re.findall(r"--[a-z-]+", parser().format_help()))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "--out", "x"], "No such folder"),
        (["nowhere", "--out", "x", "--target", "tpu"], "Expected: cpu"),
        (["nowhere"], "source and an output folder"),
        ([], "source and an output folder"),
        (["no/where", "--out", "x"], "add --download"),
        (["no/where", "--out", "x", "--revision", "v1"], "without --download"),
    ],
)
def test_mistakes_are_exit_status_2(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["0", "-4", "many", "16,x"])
def test_sizes_are_whole_numbers(value: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        main(["a", "--out", "b", "--prefill-chunks", value])
    assert stopped.value.code == 2
    assert "--prefill-chunks" in capsys.readouterr().err


def test_a_request_to_end_is_said_and_has_its_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def build(*arguments: object, **options: object):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("engines.build.build_engines", build)
    assert main(["a", "--out", "b"]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "build-engines: interrupted; nothing was written\n"


def test_export_options_reach_the_builder(monkeypatch: pytest.MonkeyPatch):
    seen: dict[str, object] = {}
    monkeypatch.setattr("engines.build.build_engines", lambda *a, **options: seen.update(options))
    chosen = ["--cache-length", "512", "--max-steps", "90", "--prefill-chunks", "16,64"]
    assert main(["a", "--out", "b", *chosen]) == 0
    assert seen["export_options"] == {
        "cache_length": 512,
        "max_steps": 90,
        "prefill_chunks": (16, 64),
    }


def test_a_hub_id_is_fetched_when_that_is_asked_for(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[str, str]] = []

    def download(repo_id: str, *, revision: str, allow_patterns: list[str]) -> str:
        asked.append((repo_id, revision))
        return str(bundle)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    out = tmp_path / "engines"
    chosen = ["--download", "--revision", "v1", "--quiet"]
    assert main(["owner/model", "--out", str(out), *chosen]) == 0
    assert asked == [("owner/model", "v1")]
    assert read_manifest(out).build["source"] == str(bundle)


def test_what_a_bundle_calls_its_graphs_reaches_no_terminal_as_it_is(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    text = (bundle / MANIFEST).read_text()
    (bundle / MANIFEST).write_text(text.replace('"flow_step": {', '"flow\\u001b[2J": {'))
    assert main([str(bundle), "--out", str(tmp_path / "engines")]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert r"flow\x1b[2J: " in printed
