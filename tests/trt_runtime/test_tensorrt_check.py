"""Folders of engines that cannot run here: each named, with the command, before deserialisation."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings")
pytest.importorskip("tensorrt_rtx")

from tests.conftest import Folders
from tests.trt_runtime.backends.engine_folders import MAGIC, VERSION, write_folder
from tests.trt_runtime.backends.fake_cuda import FakeCuda
from tests.trt_runtime.backends.fake_tensorrt import fake_library
from trt_runtime import tensorrt_check
from trt_runtime.backends import cuda_memory, tensorrt
from trt_runtime.cuda_devices import CudaDevice
from trt_runtime.errors import FolderError
from trt_runtime.folder import open_folder
from trt_runtime.machine import describe_machine
from trt_runtime.manifest import FORMAT_VERSION, MANIFEST, sha256_of

ADA = CudaDevice("NVIDIA GeForce RTX 4090", "8.9", 24 << 30)
AMPERE = CudaDevice("NVIDIA A10", "8.6", 24 << 30)
H200 = CudaDevice("NVIDIA H200", "9.0", 141 << 30)
TURING = CudaDevice("NVIDIA T4", "7.5", 16 << 30)


def machine(**changes: Any) -> dict[str, Any]:
    """As build-engines notes it here, with what is changed; a field of None is left out."""
    here = describe_machine()
    noted = {
        "compute_capability": "8.9", "compute_capabilities": ["8.9"],
        "hardware_compatibility": "none", "library": "tensorrt_rtx", "library_version": VERSION,
        "version_compatible": False, "cuda": "13", "system": here["system"],
        "architecture": here["architecture"],
    } | changes  # fmt: skip
    return {name: value for name, value in noted.items() if value is not None}


class Here:
    """This machine, with a GPU, a driver and libraries; and whether an engine was deserialised."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.device: CudaDevice | None = ADA
        self.installed: dict[str, str | None] = {"tensorrt": None, "tensorrt-rtx": VERSION}
        self.cuda, self.target = "13.0", "tensorrt-rtx"
        self.state: Any = None
        patch.setattr(
            tensorrt_check, "cuda_devices", lambda: [] if self.device is None else [self.device]
        )
        patch.setattr(tensorrt_check, "driver_version", lambda: "580.1")
        patch.setattr(tensorrt_check, "driver_cuda_version", lambda: self.cuda)
        patch.setattr(tensorrt_check, "installed_version", lambda target: self.installed[target])
        fake = FakeCuda()
        patch.setattr(cuda_memory, "import_cuda", lambda: fake)

        def load(target: str) -> Any:
            library, self.state = fake_library(fake, target)
            return library

        patch.setattr(tensorrt, "load_library", load)

    @property
    def deserialised(self) -> bool:
        return self.state is not None and any("deserialize" in e for e in self.state.events)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Here:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Here(monkeypatch)


Make = Callable[..., Path]


@pytest.fixture
def make(dense: Folders, tmp_path: Path) -> Make:
    """Writes an engine folder, for a target and with changes of what its manifest says."""

    def write(target: str = "tensorrt-rtx", **changes: Any) -> Path:
        library = {"library": target.replace("-", "_")}
        return write_folder(
            dense.bundle, tmp_path / "engines", target=target, in_place=target == "tensorrt-rtx",
            machine=machine(**library | changes),
        )  # fmt: skip

    return write


def refused(here: Here, folder: Path, what: str, *, deserialised: bool = False) -> str:
    """The error of opening the folder, whose text has `what`."""
    with pytest.raises(FolderError, match=what) as raised:
        open_folder(folder)
    assert here.deserialised is deserialised
    return str(raised.value)


def commands(error: str) -> list[list[str]]:
    """The words of every build-engines command in a message."""
    found = re.findall(r"build-engines \S+ --target [^()]*?--out \S*[^\s.,)]", error)
    return [shlex.split(command) for command in found]


def rebuild(folder: Path, target: str = "tensorrt-rtx", *options: str) -> list[str]:
    options = options or ("--slots", "1,2,4")
    return ["build-engines", "CHECKPOINT", "--target", target, *options, "--out", str(folder)]


def test_a_folder_that_fits_is_opened(here: Here, make: Make) -> None:
    """Whatever it says of itself: engines of RTX carry no code that would have to be let run."""
    opened = open_folder(make(version_compatible=True))
    assert here.deserialised
    assert not any("host code" in event for event in here.state.events)
    assert opened.backend.has("talker_1")


def test_another_gpu(here: Here, make: Make) -> None:
    here.device = AMPERE
    folder = make()
    error = refused(here, folder, "another GPU")
    assert "Expected: a GPU of compute capability 8.9." in error
    assert "Found: NVIDIA A10, compute capability 8.6." in error
    options = ("--slots", "1,2,4", "--compute-capability", "8.6")
    assert commands(error) == [rebuild(folder, "tensorrt-rtx", *options)]


def test_a_gpu_that_rtx_does_not_run_on(here: Here, make: Make) -> None:
    here.device = H200
    folder = make()
    error = refused(here, folder, "another GPU")
    assert "NVIDIA H200, compute capability 9.0" in error
    assert commands(error) == [
        ["build-engines", "CHECKPOINT", "--target", target, "--out", f"{folder}-{target}"]
        for target in ("tensorrt", "cuda")
    ]


def test_engines_of_tensorrt_are_built_where_they_run(here: Here, make: Make) -> None:
    here.device, here.installed = H200, {"tensorrt": VERSION, "tensorrt-rtx": None}
    folder = make("tensorrt")
    assert commands(refused(here, folder, "another GPU")) == [rebuild(folder, "tensorrt")]


def test_engines_for_ampere_and_later_run_on_later_ones(here: Here, make: Make) -> None:
    here.device, here.installed = H200, {"tensorrt": VERSION, "tensorrt-rtx": None}
    folder = make(
        "tensorrt", hardware_compatibility="ampere_plus", compute_capability="8.0",
        compute_capabilities=None,
    )  # fmt: skip
    open_folder(folder)
    here.device, here.state = TURING, None
    assert "8.0 or later" in refused(here, folder, "another GPU")


def test_no_gpu(here: Here, make: Make) -> None:
    here.device = None
    folder = make()
    error = refused(here, folder, r"built for NVIDIA GPUs(?s:.*)no GPU that CUDA can use .*580\.1")
    assert commands(error) == [
        ["build-engines", "CHECKPOINT", "--target", "cpu", "--out", f"{folder}-cpu"]
    ]


def test_a_driver_that_is_too_old(here: Here, make: Make) -> None:
    here.cuda = "12.8"
    error = refused(here, make(), "newer driver")
    assert "a driver for CUDA 13 or later" in error
    assert "driver 580.1, which supports CUDA up to 12.8" in error
    assert "update the NVIDIA driver" in error


@pytest.mark.parametrize("found", ["1.7.2.1", "1.6.0.1", "2.0", "unknown"])
def test_another_version_of_rtx_is_none_that_is_compatible(
    here: Here, make: Make, found: str
) -> None:
    here.installed["tensorrt-rtx"] = found
    folder = make(version_compatible=True)
    error = refused(here, folder, "another version of tensorrt_rtx")
    assert f"Expected: tensorrt_rtx {VERSION}." in error
    assert f"Found: tensorrt_rtx {found}." in error
    assert f"pip install tensorrt-rtx-cu13=={VERSION}" in error
    assert commands(error) == [rebuild(folder)]


@pytest.mark.parametrize(
    ("built", "found", "compatible", "runs"),
    [
        ("11.4.1.7", "11.4.1.7", False, True),
        ("11.4.1.7", "11.4.2.1", False, False),
        ("11.4.1.7", "11.4.2.1", True, True),
        ("10.15.1.29", "11.4.1.7", True, True),
        ("10.15.1.29", "12.0.0.1", True, False),
        ("11.4.1.7", "11.3.0.1", True, False),
        ("11.4.1.7", "10.15.1.29", True, False),
    ],
)
def test_versions_of_tensorrt(
    here: Here, make: Make, built: str, found: str, compatible: bool, runs: bool
) -> None:
    here.installed = {"tensorrt": found, "tensorrt-rtx": None}
    folder = make("tensorrt", library_version=built, version_compatible=compatible)
    if runs:
        open_folder(folder)
        assert ("host code True" in here.state.events) is compatible
    else:
        error = refused(here, folder, "another version of tensorrt")
        assert f"{built}{' or later' if compatible else ''}." in error
        assert commands(error) == [rebuild(folder, "tensorrt")]


def test_the_other_library(here: Here, make: Make) -> None:
    here.installed = {"tensorrt": "11.4.1.7", "tensorrt-rtx": None}
    folder = make()
    error = refused(here, folder, "needs tensorrt_rtx, which is not installed")
    assert "Found: tensorrt 11.4.1.7." in error
    assert "pip install tensorrt-rtx-cu13==" in error
    assert "pip install 'ming-trt[tensorrt-rtx]'" in error
    here.installed["tensorrt"] = None
    assert "neither tensorrt nor tensorrt_rtx" in refused(here, folder, "not installed")


@pytest.mark.parametrize(("field", "value"), [("system", "Windows"), ("architecture", "aarch64")])
def test_another_system(here: Here, make: Make, field: str, value: str) -> None:
    folder = make(**{field: value})
    error = refused(here, folder, "was built for another")
    assert f"Expected: {value}." in error
    assert f"Found: {describe_machine()[field]}." in error
    assert commands(error) == [rebuild(folder)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("library", "tensorrt"), ("library", None), ("library_version", 1),
        ("library_version", "new; id"), ("cuda", None), ("cuda", 13), ("system", ["Linux"]),
        ("architecture", None), ("version_compatible", "no"), ("compute_capability", None),
        ("compute_capability", 8.9), ("compute_capabilities", None), ("compute_capabilities", []),
        ("compute_capabilities", "8.9"), ("compute_capabilities", ["8.9", 9]),
        ("hardware_compatibility", "all"), ("hardware_compatibility", ["none"]),
        ("weights_on_gpu", "all"), ("weights_on_gpu", -1), ("weights_on_gpu", True),
    ],
)  # fmt: skip
def test_damaged_fields(here: Here, make: Make, field: str, value: Any) -> None:
    folder = make(**{field: value})
    error = refused(here, folder, r"manifest of .* is damaged")
    assert f"under machine.{field}" in error
    assert commands(error) == [rebuild(folder)]


def test_a_package_that_does_not_say_its_cuda(here: Here, make: Make) -> None:
    """As in JetPack: the driver is not judged, and the version is asked for by its plain name."""
    here.cuda = "9.0"
    folder = make(cuda="")
    open_folder(folder)
    here.state, here.installed["tensorrt-rtx"] = None, "1.6"
    assert f"pip install tensorrt-rtx=={VERSION}" in refused(here, folder, "another version")


def test_what_a_strangers_manifest_says_is_quoted(here: Here, make: Make) -> None:
    here.installed["tensorrt-rtx"] = "1.6"
    error = refused(here, make(library_version="1.7; rm -rf ~", cuda="13"), "another version")
    assert "pip install 'tensorrt-rtx-cu13==1.7; rm -rf ~'" in error


def test_a_changed_engine(here: Here, make: Make) -> None:
    folder = make()
    content = (folder / "tail.engine").read_bytes()
    (folder / "tail.engine").write_bytes(content.replace(b"tail", b"tale"))
    error = refused(here, folder, r"tail\.engine has changed since it was built")
    assert commands(error) == [rebuild(folder)]


def test_a_truncated_engine(here: Here, make: Make) -> None:
    folder = make()
    content = (folder / "talker.engine").read_bytes()
    (folder / "talker.engine").write_bytes(content[:-7])
    error = refused(here, folder, r"talker\.engine has another size")
    assert commands(error) == [rebuild(folder)]


@pytest.mark.parametrize("content", [b"GIF89a, a picture", b"", MAGIC + b"{"])
def test_a_file_that_is_no_engine(here: Here, make: Make, content: bytes) -> None:
    """With another hash it is not even tried; with its own the library refuses it."""
    folder = make()
    path = folder / "tail.engine"
    path.write_bytes(content)
    refused(here, folder, "has another size|has changed")
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][path.name] = {"bytes": len(content), "sha256": sha256_of(path)}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    error = refused(here, folder, rf"tensorrt_rtx .* cannot load .*{path.name}", deserialised=True)
    whole = content.startswith(MAGIC)
    reason = "Serialization error" if whole else "malformed engine" if content else "empty file"
    assert reason in error
    assert commands(error) == [rebuild(folder)]


def test_a_newer_format(here: Here, make: Make) -> None:
    folder = make()
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"format_version": FORMAT_VERSION + 1}))
    error = refused(here, folder, rf"Found: format version {FORMAT_VERSION + 1}")
    assert commands(error) == [rebuild(folder)]


@pytest.mark.parametrize(
    ("graph", "tensor", "dtype"),
    [("tail", 0, "bfloat16"), ("talker_1", 2, "int64"), ("talker_1", 0, "float16")],
)
def test_only_caches_may_take_less(
    here: Here, make: Make, graph: str, tensor: int, dtype: str
) -> None:
    folder = make()
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["graphs"][graph]["inputs"][tensor][1] = dtype
    (folder / MANIFEST).write_text(json.dumps(manifest))
    refused(here, folder, f"Graph {graph} of .* does not fit the folder's geometry")
