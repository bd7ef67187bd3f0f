"""The one file that imports TensorRT: what it says without, and the real one without a GPU."""

from __future__ import annotations

import logging
import mmap
import subprocess
import sys
import types
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from trt_runtime import tensorrt_library
from trt_runtime.errors import UserError
from trt_runtime.tensorrt_library import (
    MODULES,
    TensorrtError,
    installed_version,
    load_library,
    version_numbers,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("target", MODULES)
def test_a_library_that_is_missing_names_the_command(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, MODULES[target], None)
    with pytest.raises(UserError, match=rf"not installed(?s:.*)pip install 'ming-trt\[{target}\]'"):
        load_library.__wrapped__(target)


def test_a_package_of_that_name_that_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", types.ModuleType("tensorrt"))
    with pytest.raises(UserError, match=r"tensorrt is damaged, or another package"):
        load_library.__wrapped__("tensorrt")


def test_the_version_is_the_files_before_the_distributions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two distributions that install the same module, the files of one are there."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("tensorrt", "tensorrt_bindings"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("import absent\n")
    versions = {"tensorrt-cu13": "11.4.1.7"}

    def version(distribution: str) -> str:
        if distribution not in versions:
            raise metadata.PackageNotFoundError(distribution)
        return versions[distribution]

    monkeypatch.setattr(tensorrt_library.metadata, "version", version)
    assert installed_version("tensorrt") == "11.4.1.7"
    (tmp_path / "tensorrt_bindings" / "__init__.py").write_text("__version__ = '10.13.3.9'\n")
    assert installed_version("tensorrt") == "10.13.3.9"
    (tmp_path / "tensorrt_bindings" / "__init__.py").write_text("")
    versions.clear()
    assert installed_version("tensorrt") == "unknown"


def test_none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_library.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    assert installed_version("tensorrt") is None


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("1.7.1.116", (1, 7, 1, 116)), ("11.4.1.post1", (11, 4, 1)), ("13", (13,)), ("new", ())],
)
def test_numbers_of_a_version(version: str, numbers: tuple[int, ...]) -> None:
    assert version_numbers(version) == numbers


def test_asking_for_a_version_imports_nothing() -> None:
    program = (
        "import sys\n"
        "from trt_runtime.tensorrt_library import MODULES, installed_version\n"
        "print([installed_version(target) for target in MODULES])\n"
        "print(sorted({'tensorrt', 'tensorrt_rtx', 'cuda', 'numpy'} & set(sys.modules)))\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert printed.endswith("\n[]\n")


def test_the_real_library_says_what_is_wrong_with_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("tensorrt_rtx")
    library = load_library("tensorrt-rtx")
    assert load_library("tensorrt-rtx") is library
    assert library.is_rtx
    assert library.version == installed_version("tensorrt-rtx")
    runtime = library.make_runtime()
    (tmp_path / "engine").write_bytes(b"no engine" * 100)
    with (tmp_path / "engine").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with caplog.at_level(logging.DEBUG, "trt_runtime.tensorrt"):
        for serialized, why in ((mapped, "malformed engine"), (b"short", "within its header")):
            with pytest.raises(TensorrtError, match=rf"^the engine does not run here \(.*{why}"):
                library.deserialize(runtime, serialized)
        # Past the header, as engines of TensorRT are read at once.
        with pytest.raises(TensorrtError, match=r"could not be deserialised: tensorrt_rtx 1\."):
            replace(library, target="tensorrt").deserialize(runtime, mapped)
    assert {record.name for record in caplog.records} == {"trt_runtime.tensorrt"}
    assert not library.logger.errors
