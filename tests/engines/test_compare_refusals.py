"""What cannot be compared is said before anything is done, and nothing is written."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import engines
from engines.comparison.inputs import recorded_inputs, seeded_inputs
from tests.conftest import Folders
from tests.engines.comparing import status_of
from trt_runtime.cli import main
from trt_runtime.errors import UserError
from trt_runtime.manifest import read_manifest


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """What is said of these words, which must end with status 2 and print no report."""
    assert status_of(*words) == 2
    said = capsys.readouterr()
    assert not said.out
    assert "What to do:" in said.err
    return said.err


def test_folders(
    dense: Folders, moe: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, empty, file = dense.bundle, tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.write_text("")
    assert "nothing there" in refused(capsys, good, tmp_path / "absent")
    assert "a file" in refused(capsys, file, good)
    assert "neither" in refused(capsys, good, empty)
    assert "different models" in refused(capsys, good, moe.bundle)
    assert "talker_layers" in refused(capsys, dense.checkpoint, moe.checkpoint)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "manifest.json").write_text("{}")
    assert "manifest" in refused(capsys, good, damaged)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--budget", "nonsense=1"), "There is no budget 'nonsense'"),
        (("--budget", "flow"), "NAME=VALUE"),
        (("--budget", "flow=small"), "NAME=VALUE"),
        (("--budget", "flow=1", "--budget", "flow=2"), "each name once"),
        (("--budget", "flow=-1"), "0 or more"),
        (("--budget", "flow=nan"), "0 or more"),
        (("--seed", "-1"), "seed"),
        (("--seed", str(2**64 - 1)), "seed"),
        (("--steps", "401"), "1 to 400"),
        (("--inputs", "absent.npz"), "absent.npz"),
        (("--plot", "drift.jpg"), "ends in .png"),
    ],
)
def test_options(
    dense: Folders, words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in refused(capsys, dense.bundle, dense.bundle, *words)


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_places_that_cannot_be_written(
    dense: Folders, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = (dense.bundle, dense.bundle, "--steps", "1")
    good = tmp_path / ("good.json" if option == "--plot" else "good.png")
    other = ("--json" if option == "--plot" else "--plot", good)
    assert "mkdir -p" in refused(capsys, *both, option, tmp_path / "absent" / "x.png", *other)
    (tmp_path / "folder.png").mkdir()
    assert "a folder" in refused(capsys, *both, option, tmp_path / "folder.png", *other)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


def test_a_null_character_in_a_place(dense: Folders) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        engines.compare(dense.bundle, dense.bundle, json="a\0b")


def test_two_files_of_one_name(
    dense: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("--json", tmp_path / "x.png", "--plot", tmp_path / "x.png")
    assert "two files" in refused(capsys, dense.bundle, dense.bundle, *files)


@pytest.mark.parametrize(
    ("option", "path", "named"),
    [
        ("--json", "bundle/manifest.json", "A"),
        ("--json", "bundle/tail.onnx", "A"),
        ("--json", "engines/manifest.json", "B"),
        ("--json", "checkpoint/config.json", "C"),
        ("--json", "inputs.npz", "--inputs"),
        ("--json", "link.json", "A"),
        ("--plot", "link.png", "A"),
    ],
)
def test_outputs_that_are_inputs(
    dense: Folders, option: str, path: str, named: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    a, b, checkpoint = (tmp_path / name for name in ("bundle", "engines", "checkpoint"))
    for folder, made in ((a, dense.bundle), (b, dense.engines), (checkpoint, dense.checkpoint)):
        shutil.copytree(made, folder)
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, speaker_embedding=np.zeros(192, np.float32))
    for link in ("link.json", "link.png"):
        (tmp_path / link).symlink_to(a / "manifest.json")
    files = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    # A checkpoint, which lists no files, as A.
    first, named = (checkpoint, "A") if named == "C" else (a, named)
    said = refused(capsys, first, b, "--inputs", inputs, option, tmp_path / path)
    assert f"{option} and {named} name one file" in said
    assert files == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}


def test_one_file_by_a_link_and_by_its_name(
    dense: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link").symlink_to("x.png")
    files = ("--json", tmp_path / "link", "--plot", tmp_path / "x.png")
    assert "two files" in refused(capsys, dense.bundle, dense.bundle, *files)


def test_a_link_is_followed_and_stays(dense: Folders, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    (tmp_path / "there").mkdir()
    link.symlink_to("there/report.json")
    assert status_of(dense.bundle, dense.bundle, "--steps", "1", "--json", link) == 0
    assert link.is_symlink()
    assert json.loads(link.read_text(encoding="utf-8"))["passed"]
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["report.json"]


def test_an_error_while_comparing_leaves_nothing(
    dense: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UserError("It cannot be drawn", do="stop")

    monkeypatch.setattr("engines.comparison.compare.drawn", fail)
    files = ("--json", tmp_path / "x.json", "--plot", tmp_path / "x.png")
    assert status_of(dense.bundle, dense.bundle, "--steps", "1", *files) == 2
    assert not list(tmp_path.iterdir())


def test_inputs(dense: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    geometry = read_manifest(dense.bundle).geometry
    drawn = seeded_inputs(geometry, geometry, 0)
    noise = drawn.initial_noise.copy()
    noise[0, 0, 0, 0] = np.nan
    wrong: list[tuple[dict[str, np.ndarray], str]] = [
        ({"tokens": drawn.token_ids}, "tokens"),
        ({}, "no array"),
        ({"token_ids": drawn.token_ids.astype(np.int32)}, "int32"),
        ({"token_ids": drawn.token_ids + geometry.vocab_size}, "token_ids from 0 to"),
        ({"token_ids": drawn.token_ids[0]}, "token_ids of shape"),
        ({"initial_noise": drawn.initial_noise[..., :1]}, "initial_noise of shape"),
        ({"initial_noise": noise}, "not finite"),
        ({"wave": np.zeros(0, np.float32)}, "wave of shape"),
    ]
    path = tmp_path / "inputs.npz"
    for arrays, told in wrong:
        np.savez(path, **arrays)
        assert told in refused(capsys, dense.bundle, dense.bundle, "--inputs", path)
    path.write_bytes(b"no archive")
    assert "inputs.npz" in refused(capsys, dense.bundle, dense.bundle, "--inputs", path)
    with path.open("wb") as file:
        np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    assert "inputs.npz" in refused(capsys, dense.bundle, dense.bundle, "--inputs", path)


@pytest.mark.parametrize("package", ["polygraphy", "onnx"])
def test_a_missing_package_is_told(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    plain = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == package else plain(name, *rest),
    )
    with pytest.raises(UserError, match=r"ming-trt\[cpu,compare\]"):
        engines.compare("a", "b")


def test_help_imports_nothing_heavy() -> None:
    import subprocess

    code = (
        "import sys, argparse, engines; from engines.comparison.cli import command; "
        "command.add_arguments(argparse.ArgumentParser()); "
        "print(sorted({'numpy', 'onnx', 'onnxruntime', 'polygraphy', 'torch'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_the_command_is_an_entry_point() -> None:
    import tomllib

    root = Path(__file__).resolve().parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"][main.GROUP]["compare"] == "engines.comparison.cli:command"


def _npz(path: Path, name: str, content: bytes, *, compressed: bool = False) -> Path:
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr(f"{name}.npy", content)
    return path


def _array(header: str) -> bytes:
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


HOSTILE = {
    "no header": b"nothing of numpy's",
    "a header of parentheses": _array("((((((((((((((((((((((((((((((((("),
    "a header that calls": _array("{'descr': __import__('os').getcwd(), 'shape': (1,)}"),
    "an array of terabytes": _array(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"
    ),
    "no axis": _array("{'descr': '<i8', 'fortran_order': False, 'shape': (), }") + bytes(8),
    "objects": _array("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + bytes(8),
}


@pytest.mark.parametrize("name", ["token_ids", "initial_noise"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_inputs(
    kind: str, name: str, dense: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _npz(tmp_path / "in.npz", name, HOSTILE[kind])
    assert "cannot be used" in refused(capsys, dense.bundle, dense.bundle, "--inputs", path)


def test_a_damaged_archive(
    dense: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _npz(tmp_path / "in.npz", "wave", bytes(range(256)) * 40, compressed=True)
    data = bytearray(path.read_bytes())
    data[60:90] = bytes(30)
    path.write_bytes(data)
    assert "cannot be used" in refused(capsys, dense.bundle, dense.bundle, "--inputs", path)


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_recorded_inputs_have_any_number_of_slots(
    slots: int, dense: Folders, tmp_path: Path
) -> None:
    """What is not recorded is drawn for as many."""
    g = read_manifest(dense.bundle).geometry
    path = tmp_path / "in.npz"
    np.savez(path, token_ids=np.arange(10 * slots).reshape(slots, 10))
    found = recorded_inputs(path, g, g, 0)
    assert found.initial_noise.shape[1] == slots
    np.savez(path, initial_noise=np.zeros((2, slots, g.patch, g.latent_dim), np.float32),
             diffusion_noise=np.zeros((2, slots, g.solver_steps - 1, g.patch, g.latent_dim),
                                      np.float32))  # fmt: skip
    assert recorded_inputs(path, g, g, 0).token_ids.shape[0] == slots
