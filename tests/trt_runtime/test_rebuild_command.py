"""The command that makes a folder again: exact where it is known, and safe to paste."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trt_runtime.manifest import BUNDLE, ENGINES, export_command, rebuild_command


def command(folder: str = "out", target: str = "cpu", **build: Any) -> list[str]:
    """The words that a shell makes of it."""
    manifest: Any = SimpleNamespace(kind=ENGINES, target=target, build=build)
    return shlex.split(rebuild_command(manifest, Path(folder)))


def test_a_bundle_names_itself() -> None:
    manifest: Any = SimpleNamespace(kind=BUNDLE, target="", build={})
    wanted = "python -m export CHECKPOINT 'my bundle'"
    assert rebuild_command(manifest, Path("my bundle")) == wanted
    assert export_command(Path("my bundle")) == wanted


def test_engines_name_their_source_and_what_was_chosen() -> None:
    found = command(
        "my engines",
        source="my checkpoint",
        export_options={"cache_length": 512, "prefill_chunks": [16, 64]},
    )
    chosen = ["--cache-length", "512", "--prefill-chunks", "16,64"]
    wanted = ["build-engines", "my checkpoint", "--target", "cpu", *chosen, "--out", "my engines"]
    assert found == wanted


@pytest.mark.parametrize("source", [None, "", 3, ["a"], "-rf"])
def test_an_unknown_source_is_a_placeholder(source: Any) -> None:
    assert command(source=source)[1] == "SOURCE"


def test_what_a_strangers_manifest_says_is_one_word() -> None:
    found = command(
        source="x; rm -rf ~ $(id)",
        target="cpu\nrm -rf ~",
        export_options={"cache_length": "1; id", "out": "elsewhere", "max_steps": [{"a": 1}]},
    )
    assert found == [
        "build-engines",
        "x; rm -rf ~ $(id)",
        "--target",
        r"cpu\nrm -rf ~",
        "--cache-length",
        "1; id",
        "--max-steps",
        "{'a': 1}",
        "--out",
        "out",
    ]


@pytest.mark.parametrize("options", [None, 3, ["cache_length"], "text"])
def test_options_of_another_kind_are_left_out(options: Any) -> None:
    assert "--cache-length" not in command(source="a", export_options=options)
