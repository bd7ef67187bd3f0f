"""`ming-trt` itself: how it starts, and how it finds its subcommands."""

from __future__ import annotations

import logging
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from trt_runtime.cli import Command, main

ROOT = Path(__file__).resolve().parents[2]


def test_help_names_the_subcommands_and_loads_nothing_heavy():
    program = (
        "import sys\n"
        "from trt_runtime.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "heavy = ('numpy', 'onnxruntime', 'tokenizers', 'soundfile', 'onnx', 'torch')\n"
        "print('loaded:', [name for name in heavy if name in sys.modules])\n"
    )
    for arguments in (["--help"], ["speak", "--help"], ["--version"], []):
        result = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True, text=True, check=True, cwd=ROOT,
        )  # fmt: skip
        assert "loaded: []" in result.stdout
        if arguments in (["--help"], []):
            for name in main.OWN:
                assert name in result.stdout


def test_an_unknown_subcommand_lists_those_that_exist(capsys):
    with pytest.raises(SystemExit) as caught:
        main.main(["calibrate", "x"])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert "calibrate" in error
    assert all(name in error for name in main.OWN)


class Entry:
    def __init__(self, name, load):
        self.name, self.load, self.value = name, load, f"elsewhere:{name}"


def test_subcommands_of_other_packages_are_found(capsys, monkeypatch):
    ran = []
    command = Command(
        "compare",
        "compare two folders",
        lambda parser: parser.add_argument("folder"),
        lambda arguments: ran.append(arguments.folder) or 5,
    )
    monkeypatch.setattr(metadata, "entry_points", lambda group: [Entry("compare", lambda: command)])
    assert main.main(["compare", "x"]) == 5
    assert ran == ["x"]


def test_a_broken_subcommand_leaves_the_others_alone(capsys, monkeypatch):
    def broken():
        raise ImportError("No module named 'onnx'")

    monkeypatch.setattr(metadata, "entry_points", lambda group: [Entry("calibrate", broken)])
    assert main.main([]) == 0
    assert "speak" in capsys.readouterr().out
    assert main.main(["calibrate", "--anything"]) == 2
    assert "No module named 'onnx'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["sing"], ["speak"], ["speak", "a", "-o", "b", "--sing"]])
def test_a_wrong_command_line_has_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main.main(arguments)
    assert stopped.value.code == 2


@pytest.mark.parametrize(("option", "level"), [("-v", logging.INFO), ("-vv", logging.DEBUG)])
def test_verbose_turns_logging_on(option, level, monkeypatch, capsys):
    set_up = []
    monkeypatch.setattr(logging, "basicConfig", lambda **options: set_up.append(options["level"]))
    assert main.main(["doctor"]) == 0
    assert set_up == []
    assert main.main(["doctor", option]) == 0
    assert set_up == [level]
