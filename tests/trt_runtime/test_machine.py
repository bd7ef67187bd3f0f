from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trt_runtime import machine
from trt_runtime.errors import FolderError
from trt_runtime.machine import FEATURES, UNKNOWN, check_machine, describe_machine
from trt_runtime.manifest import BUNDLE, ENGINES

HERE = {
    "architecture": "x86_64",
    "system": "Linux",
    "processor": "a processor",
    "features": ["avx2"],
    "features_unknown": ["amx_tile"],
    "logical_cores": 2,
    "physical_cores": 1,
    "onnxruntime": "1.32.0",
}
FOLDER = Path("my engines")
REBUILD = r"build-engines SOURCE --target cpu --out 'my engines'"


def engines_of(**changes: Any) -> Any:
    built_on = {**HERE, "needs": [], **changes}
    return SimpleNamespace(kind=ENGINES, target="cpu", build={}, machine=built_on)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "check" in request.node.name:
        monkeypatch.setattr(machine, "describe_machine", lambda: HERE)


def test_description_is_json_and_within_the_table():
    found = describe_machine()
    assert json.loads(json.dumps(found)) == found
    assert found.keys() == HERE.keys()
    candidates = FEATURES.get(found["architecture"], ())
    assert set(found["features"]) | set(found["features_unknown"]) <= set(candidates)
    assert found["features"] == sorted(found["features"])
    assert found["logical_cores"] == UNKNOWN or found["logical_cores"] >= 1


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is set the Linux way")
def test_cores_are_those_that_the_process_may_use():
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "from trt_runtime.machine import describe_machine\n"
        "found = describe_machine()\n"
        "print(found['logical_cores'], found['physical_cores'])"
    )
    root = Path(machine.__file__).parents[1]
    answer = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert answer.stdout.split()[0] == "1", answer.stderr
    assert answer.stdout.split()[1] in ("1", UNKNOWN)


def test_cpuinfo_of_x86():
    text = "processor : 0\nmodel name : Some CPU: v2\nflags : fpu avx2 avx512f avx512_vnni\n"
    name, features = machine._parse_cpuinfo(text, "x86_64")
    assert name == "Some CPU: v2"
    assert sorted(n for n, there in features.items() if there) == [
        "avx2",
        "avx512_vnni",
        "avx512f",
    ]


def test_cpuinfo_counts_what_big_and_little_cores_share():
    text = (
        "processor : 0\nFeatures : fp asimd asimddp i8mm sve\nCPU implementer : 0x41\n"
        "CPU part : 0xd40\n\nprocessor : 1\nFeatures : fp asimd asimddp\n"
    )
    name, features = machine._parse_cpuinfo(text, "aarch64")
    assert name == "implementer 0x41 part 0xd40"
    assert features == {
        "asimd": True,
        "asimddp": True,
        "bf16": False,
        "i8mm": False,
        "sve": False,
    }


def test_what_cannot_be_found_out_is_unknown(monkeypatch: pytest.MonkeyPatch):
    assert machine._parse_cpuinfo("", "x86_64") == (UNKNOWN, {})
    monkeypatch.setattr(machine.sys, "platform", "plan9")
    monkeypatch.setattr(machine.platform, "machine", lambda: "AMD64")
    found = describe_machine()
    assert found["architecture"] == "x86_64"
    assert found["processor"] == UNKNOWN
    assert found["features"] == []
    assert found["features_unknown"] == sorted(FEATURES["x86_64"])
    assert found["physical_cores"] == UNKNOWN


def test_macos_asks_sysctl(monkeypatch: pytest.MonkeyPatch):
    answers = {
        "machdep.cpu.brand_string": "Apple M9",
        "hw.optional.AdvSIMD": "1",
        "hw.optional.arm.FEAT_I8MM": "0",
        "hw.logicalcpu": "8",
    }

    def run(command: list[str], **options: object) -> SimpleNamespace:
        if command[-1] not in answers:
            raise subprocess.CalledProcessError(1, command)
        return SimpleNamespace(stdout=answers[command[-1]] + "\n")

    monkeypatch.setattr(machine.subprocess, "run", run)
    found = machine._describe_macos("aarch64")
    assert found["processor"] == "Apple M9"
    assert found["features"] == ["asimd"]
    assert "sve" in found["features_unknown"]
    assert "i8mm" not in found["features_unknown"]
    assert (found["logical_cores"], found["physical_cores"]) == (8, UNKNOWN)


def test_windows_asks_the_kernel(monkeypatch: pytest.MonkeyPatch):
    kernel = SimpleNamespace(IsProcessorFeaturePresent=lambda number: number == 40)
    monkeypatch.setattr(machine.ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    monkeypatch.setenv("PROCESSOR_IDENTIFIER", "Intel64 Family 6")
    found = machine._describe_windows("x86_64")
    assert found["processor"] == "Intel64 Family 6"
    assert found["features"] == ["avx2"]
    assert "avx512f" not in found["features_unknown"]
    assert "avx512_vnni" in found["features_unknown"]


def test_onnxruntime_is_found_without_importing_it(tmp_path: Path):
    package = tmp_path / "onnxruntime"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "7.8.9"\nraise ImportError("imported")\n')
    code = "from trt_runtime.machine import onnxruntime_version; print(onnxruntime_version())"
    root = Path(machine.__file__).parents[1]
    answer = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert answer.stdout.strip() == "7.8.9", answer.stderr


def test_no_onnxruntime_is_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
    assert machine.onnxruntime_version() is None


def test_check_passes_here_and_for_every_bundle():
    check_machine(engines_of(), FOLDER)
    check_machine(engines_of(onnxruntime="1.32.7", needs=["avx2"]), FOLDER)
    bundle = SimpleNamespace(kind=BUNDLE, target="", machine={})
    check_machine(bundle, FOLDER)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"architecture": "aarch64"},
            r"my engines was built for another processor(?s:.*)Expected: aarch64(?s:.*)"
            r"Found: x86_64",
        ),
        (
            {"needs": ["avx2", "avx512_vnni"]},
            r"lacks(?s:.*)Expected: avx2, avx512_vnni(?s:.*)Found: avx2\.",
        ),
        ({"needs": ["amx_tile"]}, r"Found: avx2 \(amx_tile: unknown on this system\)"),
        ({"needs": 5}, r"damaged(?s:.*)machine\.needs(?s:.*)5"),
        ({"onnxruntime": "1.31.2"}, r"Expected: onnxruntime 1\.31\.(?s:.*)Found: .* 1\.32\.0"),
    ],
)
def test_check_names_expected_found_and_the_command(changes: dict[str, Any], said: str):
    with pytest.raises(FolderError, match=said + rf"(?s:.*){REBUILD}"):
        check_machine(engines_of(**changes), FOLDER)


def test_check_says_how_to_install_onnxruntime(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "describe_machine", lambda: {**HERE, "onnxruntime": None})
    with pytest.raises(FolderError, match=r"no onnxruntime(?s:.*)ming-trt\[cpu\]"):
        check_machine(engines_of(), FOLDER)
