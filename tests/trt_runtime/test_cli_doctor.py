"""`ming-trt doctor`: what it finds, and what it says to do."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
import types
from importlib import metadata
from pathlib import Path

import pytest

from trt_runtime import cuda_devices
from trt_runtime.cli import doctor, main

ROOT = Path(__file__).resolve().parents[2]


def test_doctor_tells_what_is_here(capsys):
    assert main.main(["doctor"]) == 0
    output = capsys.readouterr().out
    for line in (
        r"python +3\.", r"numpy +\d", r"tokenizers +\d", r"soundfile +\d", r"sentencex +\d",
        r"onnxruntime +\d\S+ \(from onnxruntime", r"providers .*CPUExecutionProvider",
        r"architecture +\w", r"logical_cores +\d", r"cpu +installed", r"tensorrt-rtx +",
        r"^tensorrt +(\d|not installed)", r"^tensorrt-rtx +(\d|not installed)",
        r"^cuda-bindings +(\d|not installed)",
        r"nothing is wrong",
    ):  # fmt: skip
        assert re.search(line, output, re.MULTILINE), line


def test_doctor_prints_json(capsys):
    assert main.main(["doctor", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["problems"] == []
    assert "CPUExecutionProvider" in printed["onnxruntime"]["providers"]
    assert printed["extras"]["cpu"] == []
    assert set(printed["machine"]) >= {"architecture", "features", "onnxruntime"}


def test_doctor_imports_no_torch():
    program = (
        "import sys\n"
        "from trt_runtime.cli.main import main\n"
        "main(['doctor'])\n"
        "print('loaded:', [n for n in ('torch', 'onnx', 'tensorrt') if n in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert result.stdout.endswith("loaded: []\n")


def test_doctor_finds_both_onnxruntimes(capsys, monkeypatch):
    both = {"onnxruntime": ["onnxruntime-gpu", "onnxruntime", "onnxruntime"]}
    monkeypatch.setattr(metadata, "packages_distributions", lambda: both)
    assert main.main(["doctor"]) == 1
    output = capsys.readouterr().out
    assert "onnxruntime and onnxruntime-gpu are both installed" in output
    assert (
        "pip uninstall -y onnxruntime onnxruntime-gpu, then pip install 'ming-trt[cpu]'" in output
    )


def test_doctor_finds_no_onnxruntime(capsys, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find_spec(name)
    )
    monkeypatch.setattr(metadata, "packages_distributions", dict)
    assert main.main(["doctor"]) == 1
    output = capsys.readouterr().out
    assert "onnxruntime is not installed" in output
    assert "what to do: pip install 'ming-trt[cpu]'" in output
    assert re.search(r"cpu +missing: onnxruntime", output)


@pytest.mark.parametrize("package", ["onnxruntime", "soundfile", "sentencex"])
def test_doctor_finds_a_package_that_cannot_be_imported(package, capsys, monkeypatch):
    empty = types.ModuleType(package)
    empty.__spec__ = importlib.machinery.ModuleSpec(package, None)
    monkeypatch.setitem(sys.modules, package, empty)
    assert main.main(["doctor"]) == 1
    assert f"{package} cannot be imported" in capsys.readouterr().out


#: Where a distribution's module is not its name with underscores.
MODULES = {
    "cuda-bindings": "cuda.bindings",
    "tensorrt-cu13": "tensorrt",
    "tensorrt-rtx-cu13": "tensorrt_rtx",
}


def modules_of(requirements):
    names = [re.split(r"[\[<>=;\s]", item)[0] for item in requirements]
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


#: Extras for work on the project, which a machine that speaks has no use for.
DEVELOPMENT = {"dev", "listen", "plots", "training"}


def test_doctor_knows_the_requirements_of_the_project():
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"]
    assert set(doctor.RUNTIME) == modules_of(project["dependencies"])
    assert {name: set(modules) for name, modules in doctor.EXTRAS.items()} == {
        name: modules_of(extras[name]) for name in set(extras) - {"cpu", "cuda"} - DEVELOPMENT
    }


GPU = {"name": "NVIDIA A GPU", "compute_capability": "9.0", "memory_bytes": 2**37}


@pytest.mark.parametrize(
    ("devices", "answer"),
    [
        ([GPU], r"yes"),
        ([], r"no: a GPU is missing \(build where it is, or with --target tensorrt-rtx or cuda\)"),
    ],
    ids=["a GPU", "none"],
)
def test_doctor_builds_for_the_gpu_that_is_here(devices, answer, capsys, monkeypatch):
    gpu = {"driver": None, "cuda": None, "devices": devices}
    monkeypatch.setattr(cuda_devices, "describe_cuda", lambda: gpu)
    monkeypatch.setattr(doctor, "is_importable", lambda module: True)
    assert main.main(["doctor"]) == 0
    targets = capsys.readouterr().out.partition("targets that can be built here\n")[2]
    assert re.search(rf"^  tensorrt +{answer}$", targets, re.MULTILINE)
    assert targets.count("a GPU is missing") == (not devices)
    for target in ("cpu", "cuda", "tensorrt-rtx"):
        assert re.search(rf"^  {target} +yes$", targets, re.MULTILINE)


def test_doctor_knows_the_targets_of_the_builders():
    from engines.targets import TARGETS

    assert {name: dict(target.needs) for name, target in TARGETS.items()} == doctor.TARGETS
