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


def test_the_options_of_the_build_are_chosen_again() -> None:
    noted = {"precision": "mixed-bf16", "compute_capability": ["8.9"], "slots": [1, 2, 4], "x": 1}
    found = command(target="tensorrt-rtx", source="a", options=noted)
    chosen = ["--precision", "mixed-bf16", "--compute-capability", "8.9", "--slots", "1,2,4"]
    assert found == ["build-engines", "a", "--target", "tensorrt-rtx", *chosen, "--out", "out"]


def test_an_option_may_be_another_and_another_target_has_none_of_them() -> None:
    noted = {"precision": "mixed-bf16", "compute_capability": ["8.9"], "slots": "1; id"}
    manifest: Any = SimpleNamespace(
        kind=ENGINES, target="tensorrt-rtx", build={"source": "a", "options": noted}
    )
    changed = rebuild_command(
        manifest, Path("out"), options={"compute_capability": "8.6", "precision": None}
    )
    assert shlex.split(changed)[4:8] == ["--compute-capability", "8.6", "--slots", "1; id"]
    other = rebuild_command(manifest, Path("out"), target="cuda")
    assert shlex.split(other) == ["build-engines", "a", "--target", "cuda", "--out", "out"]


@pytest.mark.parametrize("options", [None, 3, ["slots"], "text", {"slots": None}])
def test_build_options_of_another_kind_are_left_out(options: Any) -> None:
    assert "--slots" not in command(source="a", options=options)
