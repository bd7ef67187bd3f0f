"""`ming-trt doctor`: what is installed, what this machine can do, and how to mend what is wrong.

Packages are looked for by what can be imported, not by the name of a distribution: several
distributions provide the same module. Nothing heavier than ONNX Runtime is imported.
"""

from __future__ import annotations

import argparse
import importlib
import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from trt_runtime import __version__
from trt_runtime.cli import Command, standard_output
from trt_runtime.importable import is_importable
from trt_runtime.tensorrt_library import (
    MODULES,
    TENSORRT,
    install_command,
    installed_version,
)

#: Modules that each extra brings. `cpu` and `cuda` bring the same module and are told apart below.
EXTRAS: dict[str, tuple[str, ...]] = {
    "export": ("huggingface_hub", "ml_dtypes", "onnx", "onnx_ir", "onnxscript", "torch"),
    "engines": ("ml_dtypes", "onnx"),
    "compare": ("matplotlib", "ml_dtypes", "onnx", "polygraphy"),
    "text": ("wetext",),
    "tensorrt": ("cuda.bindings", "polygraphy", "tensorrt"),
    "tensorrt-rtx": ("cuda.bindings", "polygraphy", "tensorrt_rtx"),
}
#: By target: modules that building for it needs, with the command that installs each.
TARGETS: dict[str, dict[str, str]] = {
    "cpu": {
        "onnx": "pip install 'ming-trt[engines]'",
        "onnxruntime": "pip install 'ming-trt[cpu]'",
    },
    "cuda": {
        "onnx": "pip install 'ming-trt[engines]'",
        "onnxruntime": "pip install 'ming-trt[cpu]'",
        "ml_dtypes": "pip install 'ming-trt[engines]'",
    },
    **{
        target: {"onnx": "pip install 'ming-trt[engines]'", module: install_command(target)}
        for target, module in MODULES.items()
    },
}
#: Targets that build for the GPU that is here, with what to do where there is none.
_FOR_THE_GPU_HERE = {TENSORRT: "build where it is, or with --target tensorrt-rtx or cuda"}
#: Modules that the extra `cuda` brings beside ONNX Runtime.
_CUDA = ("torch", "triton")
#: Modules that everything here needs.
RUNTIME = (
    "numpy", "safetensors", "sentencex", "soundfile", "tokenizers",
)  # fmt: skip
_INSTALL_CPU = "pip install 'ming-trt[cpu]'"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def _run(arguments: argparse.Namespace) -> int:
    found = examine()
    if arguments.json:
        standard_output.print_json(found)
    else:
        for line in describe(found):
            standard_output.print_line(line)
    return 1 if found["problems"] else 0


def examine() -> dict[str, Any]:
    """Everything that doctor tells, as values that JSON holds; `problems` is empty if all is well.

    Each of `problems` has `what` is wrong and what to `do`.
    """
    from trt_runtime.cuda_devices import describe_cuda
    from trt_runtime.machine import describe_machine

    problems: list[dict[str, str]] = []
    onnxruntime = _examine_onnxruntime(problems)
    gpu = describe_cuda()
    return {
        "ming_trt": __version__,
        "python": platform.python_version(),
        "packages": _examine_packages(problems),
        "onnxruntime": onnxruntime,
        "tensorrt": {
            **{target: installed_version(target) for target in MODULES},
            "cuda-bindings": _distribution_version("cuda-bindings", "cuda.bindings"),
        },
        "machine": describe_machine(),
        "gpu": gpu,
        "extras": _examine_extras(onnxruntime),
        "targets": {name: _missing_for(name, has_gpu=bool(gpu["devices"])) for name in TARGETS},
        "problems": problems,
    }


def _examine_packages(problems: list[dict[str, str]]) -> dict[str, str | None]:
    """Version by module of what the runtime always needs; None where it cannot be imported."""
    versions: dict[str, str | None] = {}
    for name in RUNTIME:
        try:
            module = importlib.import_module(name)
            # sentencex is compiled and says no version; an empty remainder of it is no package.
            says_none = hasattr(module, "segment") and not hasattr(module, "__version__")
            versions[name] = _installed_version(name) if says_none else str(module.__version__)
        except Exception as error:  # a broken package may raise anything
            versions[name] = None
            problems.append(
                {
                    "what": f"{name} cannot be imported: {error}",
                    "do": f"pip install --force-reinstall {name}",
                }
            )
    return versions


def _installed_version(distribution: str) -> str:
    """Only to be shown: the module is there, whatever it was installed from."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "there"


def _distribution_version(distribution: str, module: str) -> str | None:
    """None where the module is not there."""
    return _installed_version(distribution) if is_importable(module) else None


def _examine_onnxruntime(problems: list[dict[str, str]]) -> dict[str, Any]:
    """Version, providers, and which distributions put the module there."""
    distributions = sorted(set(metadata.packages_distributions().get("onnxruntime", [])))
    found: dict[str, Any] = {"version": None, "distributions": distributions, "providers": []}
    if not is_importable("onnxruntime"):
        problems.append(
            {
                "what": "onnxruntime is not installed; only TensorRT's engines do without it",
                "do": f"{_INSTALL_CPU} (or 'ming-trt[cuda]', not both)",
            }
        )
        return found
    if len(distributions) > 1:
        problems.append(
            {
                "what": f"{' and '.join(distributions)} are both installed, and overwrite each "
                "other's files",
                "do": f"pip uninstall -y {' '.join(distributions)}, then {_INSTALL_CPU} "
                "(or 'ming-trt[cuda]', not both)",
            }
        )
    try:
        onnxruntime = importlib.import_module("onnxruntime")
        found["version"] = str(onnxruntime.__version__)
        found["providers"] = list(onnxruntime.get_available_providers())
    except Exception as error:  # half of a package may raise anything
        problems.append(
            {
                "what": f"onnxruntime cannot be imported: {error}",
                "do": f"pip uninstall -y {' '.join(distributions) or 'onnxruntime'}, then "
                f"{_INSTALL_CPU}",
            }
        )
    return found


def _examine_extras(onnxruntime: dict[str, Any]) -> dict[str, list[str]]:
    """By extra, the modules that are missing; none missing means it is installed."""
    providers = onnxruntime["providers"]
    missing = {
        "cpu": [] if "CPUExecutionProvider" in providers else ["onnxruntime"],
        "cuda": [] if "CUDAExecutionProvider" in providers else ["onnxruntime with CUDA"],
    }
    missing["cuda"] += [m for m in _CUDA if not is_importable(m)]
    for name, modules in EXTRAS.items():
        missing[name] = [m for m in modules if not is_importable(m)]
    return missing


def _missing_for(target: str, has_gpu: bool) -> dict[str, str]:
    """Of what building for a target needs, all that is missing, with what to do for each."""
    needs = TARGETS[target].items()
    missing = {module: command for module, command in needs if not is_importable(module)}
    if not is_importable("engines"):
        missing["engines"] = "install ming-trt from its wheel or its repository"
    if target in _FOR_THE_GPU_HERE and not has_gpu:
        missing["a GPU"] = _FOR_THE_GPU_HERE[target]
    return missing


def describe(found: dict[str, Any]) -> Iterator[str]:
    """What :func:`examine` found, as lines of text."""
    yield f"ming-trt     {found['ming_trt']}"
    yield f"python       {found['python']}"
    for name, installed in found["packages"].items():
        yield f"{name:<12} {installed or 'cannot be imported'}"
    runtime = found["onnxruntime"]
    provided = f" (from {', '.join(runtime['distributions'])})" if runtime["distributions"] else ""
    yield f"onnxruntime  {runtime['version'] or 'cannot be imported'}{provided}"
    yield f"providers    {', '.join(runtime['providers']) or 'none'}"
    for name, version in found["tensorrt"].items():
        yield f"{name:<13} {version or 'not installed'}"
    yield ""
    yield "this machine"
    for name, value in found["machine"].items():
        if name != "onnxruntime":
            shown = ", ".join(map(str, value)) or "none" if isinstance(value, list) else value
            yield f"  {name:<17} {shown}"
    yield from _describe_gpu(found["gpu"])
    yield ""
    yield "extras"
    for name, missing in found["extras"].items():
        yield f"  {name:<13} {'missing: ' + ', '.join(missing) if missing else 'installed'}"
    yield ""
    yield "targets that can be built here"
    for name, needs in found["targets"].items():
        answer = "no: " + "; ".join(f"{m} is missing ({c})" for m, c in needs.items())
        yield f"  {name:<13} {answer if needs else 'yes'}"
    yield ""
    yield "nothing is wrong" if not found["problems"] else "problems"
    for problem in found["problems"]:
        yield f"  {problem['what']}"
        yield f"    what to do: {problem['do']}"


def _describe_gpu(gpu: dict[str, Any]) -> Iterator[str]:
    for device in gpu["devices"]:
        memory = f"{device['memory_bytes'] / 2**30:.0f} GiB"
        capability = f"compute capability {device['compute_capability']}"
        yield f"  {'gpu':<17} {device['name']}, {capability}, {memory}"
    if not gpu["devices"]:
        yield f"  {'gpu':<17} none that CUDA can use"
    if gpu["driver"] or gpu["cuda"]:
        cuda = f", CUDA up to {gpu['cuda']}" if gpu["cuda"] else ""
        yield f"  {'driver':<17} {gpu['driver'] or 'unknown'}{cuda}"


command = Command("doctor", "print versions, providers and what is wrong", _add_arguments, _run)
