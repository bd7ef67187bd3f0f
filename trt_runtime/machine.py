"""This machine, as far as an engine folder depends on it, and whether a folder may be used here.

Standard library only: the answer is needed before a runtime is imported, and `doctor` gives it
where none is installed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from trt_runtime.cuda_devices import COMPUTE_CAPABILITY
from trt_runtime.errors import FolderError
from trt_runtime.manifest import ENGINES, Manifest, rebuild_command

UNKNOWN = "unknown"

#: The instruction sets that a precision or a kernel may rely on, by architecture.
FEATURES = {
    "x86_64": (
        "amx_bf16",
        "amx_int8",
        "amx_tile",
        "avx2",
        "avx512_bf16",
        "avx512_vnni",
        "avx512f",
        "avx_vnni",
    ),
    "aarch64": ("asimd", "asimddp", "bf16", "i8mm", "sve"),
    "arm": ("neon",),
}
_SAME_ARCHITECTURE = {"amd64": "x86_64", "arm64": "aarch64", "armv7l": "arm", "armv8l": "arm"}

# macOS and Windows name the same features in their own ways; what a table lacks stays unknown.
_MACOS_NAMES = {
    "avx2": "hw.optional.avx2_0",
    "avx512f": "hw.optional.avx512f",
    "avx512_vnni": "hw.optional.avx512vnni",
    "asimd": "hw.optional.AdvSIMD",
    "asimddp": "hw.optional.arm.FEAT_DotProd",
    "bf16": "hw.optional.arm.FEAT_BF16",
    "i8mm": "hw.optional.arm.FEAT_I8MM",
}
_WINDOWS_NUMBERS = {"avx2": 40, "avx512f": 41, "asimd": 19, "asimddp": 43, "sve": 46}


def describe_machine() -> dict[str, Any]:
    """What a manifest records of the machine that built it, as values that JSON holds.

    `architecture`, `system`, `processor`; `features`, sorted, of those in :data:`FEATURES`, and
    `features_unknown`, those that this system does not tell; `logical_cores` and `physical_cores`
    that this process may use (affinity and container limits counted); `onnxruntime`, the version
    that an import would give, or None. What cannot be found out is the text "unknown".
    """
    architecture = _architecture()
    if sys.platform == "linux":
        found = _describe_linux(architecture)
    elif sys.platform == "darwin":
        found = _describe_macos(architecture)
    elif sys.platform == "win32":
        found = _describe_windows(architecture)
    else:
        found = _description(architecture, UNKNOWN, {}, os.cpu_count() or UNKNOWN, UNKNOWN)
    return {**found, "onnxruntime": onnxruntime_version()}


def check_machine(manifest: Manifest, folder: Path) -> None:
    """Raises FolderError where an engine folder was built for another kind of machine than this.

    Compared are the architecture, the features listed under `machine["needs"]` and ONNX Runtime's
    major and minor version. A bundle is the same on every machine and always passes; so do engines
    for a GPU, which :func:`trt_runtime.cuda_devices.check_cuda` looks at.
    """
    if manifest.kind != ENGINES or COMPUTE_CAPABILITY in manifest.machine:
        return
    here, built = describe_machine(), manifest.machine
    rebuild = f"build it again here: {rebuild_command(manifest, folder)}"
    if built.get("architecture") != here["architecture"]:
        raise FolderError(
            f"{folder} was built for another processor architecture",
            expected=str(built.get("architecture", UNKNOWN)),
            found=here["architecture"],
            do=rebuild,
        )
    needs = built.get("needs", [])
    if not isinstance(needs, list) or not all(isinstance(name, str) for name in needs):
        raise FolderError(
            f"The manifest of {folder} is damaged",
            expected="a list of processor features under machine.needs",
            found=repr(needs),
            do=rebuild,
        )
    missing = set(needs) - set(here["features"])
    if missing:
        unknown = sorted(missing & set(here["features_unknown"]))
        raise FolderError(
            f"{folder} needs processor features that this machine lacks",
            expected=", ".join(needs),
            found=(", ".join(here["features"]) or "none of them")
            + (f" ({', '.join(unknown)}: {UNKNOWN} on this system)" if unknown else ""),
            do=rebuild,
        )
    wanted = built.get("onnxruntime")
    if wanted is None:
        return
    if here["onnxruntime"] is None:
        raise FolderError(
            f"{folder} needs ONNX Runtime",
            expected=f"onnxruntime {wanted}",
            found="no onnxruntime",
            do="pip install 'ming-trt[cpu]'",
        )
    if _minor(wanted) != _minor(here["onnxruntime"]):
        raise FolderError(
            f"{folder} was built with another version of ONNX Runtime",
            expected=f"onnxruntime {'.'.join(_minor(wanted))}",
            found=f"onnxruntime {here['onnxruntime']}",
            do=rebuild,
        )


def onnxruntime_version() -> str | None:
    """The version of the `onnxruntime` that an import would give, without importing it.

    Several distributions install this module over each other, so the module's own file is asked
    first, and a distribution only where that does not say.
    """
    loaded = getattr(sys.modules.get("onnxruntime"), "__version__", None)
    if isinstance(loaded, str):
        return loaded
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None:
        return None
    if spec.origin is not None:
        try:
            text = Path(spec.origin).read_text(encoding="utf-8")
        except (OSError, ValueError):
            text = ""
        if match := re.search(r"^__version__\s*=\s*[\"']([^\"']+)[\"']", text, re.MULTILINE):
            return match[1]
    for distribution in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return UNKNOWN


def _minor(version: Any) -> list[str]:
    return str(version).split(".")[:2]


def _architecture() -> str:
    name = platform.machine().lower()
    return _SAME_ARCHITECTURE.get(name, name or UNKNOWN)


def _description(
    architecture: str,
    processor: str,
    features: dict[str, bool],
    logical: int | str,
    physical: int | str,
) -> dict[str, Any]:
    """`features` has an entry for each feature whose presence is known."""
    candidates = FEATURES.get(architecture, ())
    return {
        "architecture": architecture,
        "system": platform.system() or UNKNOWN,
        "processor": processor,
        "features": sorted(name for name in candidates if features.get(name)),
        "features_unknown": sorted(name for name in candidates if name not in features),
        "logical_cores": logical,
        "physical_cores": physical,
    }


def _describe_linux(architecture: str) -> dict[str, Any]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    processor, features = _parse_cpuinfo(text, architecture)
    allowed = sorted(os.sched_getaffinity(0))
    logical = len(allowed)
    quota = _container_cores()
    if quota is not None:
        logical = min(logical, max(1, math.ceil(quota)))
    try:
        cores = {_core_of(cpu) for cpu in allowed}
    except OSError:
        return _description(architecture, processor, features, logical, UNKNOWN)
    return _description(architecture, processor, features, logical, min(len(cores), logical))


def _parse_cpuinfo(text: str, architecture: str) -> tuple[str, dict[str, bool]]:
    """Processor name and features out of /proc/cpuinfo.

    Only what every core has counts: a thread may move from a big core to a little one.
    """
    fields = [line.partition(":")[::2] for line in text.splitlines()]
    rows = [(key.strip(), value.strip()) for key, value in fields]
    sets = [set(value.split()) for key, value in rows if key in ("flags", "Features")]
    common = set.intersection(*sets) if sets else set()
    features = {name: name in common for name in FEATURES.get(architecture, ())} if sets else {}
    values = dict(reversed(rows))  # reversed, so that the first of each key stays
    name = values.get("model name") or values.get("Model") or values.get("cpu model")
    if not name and "CPU part" in values:
        name = f"implementer {values.get('CPU implementer', UNKNOWN)} part {values['CPU part']}"
    return name or UNKNOWN, features


def _core_of(cpu: int) -> tuple[str, str]:
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    return (
        (topology / "physical_package_id").read_text().strip(),
        (topology / "core_id").read_text().strip(),
    )


def _container_cores() -> float | None:
    """The processor time that a control group allows, in cores; None where nothing limits it."""
    limits = []
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
        for folder in (root / own, *(root / own).parents):
            if folder.is_relative_to(root) and (folder / "cpu.max").is_file():
                quota, period = (folder / "cpu.max").read_text().split()
                if quota != "max":
                    limits.append(int(quota) / int(period))
        first_version = root / "cpu" / "cpu.cfs_quota_us"
        if first_version.is_file() and (quota_us := int(first_version.read_text())) > 0:
            limits.append(quota_us / int((root / "cpu" / "cpu.cfs_period_us").read_text()))
    except (OSError, ValueError, ZeroDivisionError):
        return None
    return min(limits, default=None)


def _describe_macos(architecture: str) -> dict[str, Any]:
    def ask(name: str) -> str | None:
        try:
            answer = subprocess.run(
                ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        return answer.stdout.strip() or None

    def count(name: str) -> int | str:
        value = ask(name)
        return int(value) if value and value.isdigit() else UNKNOWN

    answers = {
        name: ask(_MACOS_NAMES[name])
        for name in FEATURES.get(architecture, ())
        if name in _MACOS_NAMES
    }
    features = {name: value == "1" for name, value in answers.items() if value is not None}
    return _description(
        architecture,
        ask("machdep.cpu.brand_string") or UNKNOWN,
        features,
        count("hw.logicalcpu"),
        count("hw.physicalcpu"),
    )


def _describe_windows(architecture: str) -> dict[str, Any]:
    features: dict[str, bool] = {}
    try:
        present = getattr(ctypes, "windll").kernel32.IsProcessorFeaturePresent  # noqa: B009
        for name in FEATURES.get(architecture, ()):
            if name in _WINDOWS_NUMBERS:
                features[name] = bool(present(_WINDOWS_NUMBERS[name]))
    except (AttributeError, OSError):
        features = {}
    processor = os.environ.get("PROCESSOR_IDENTIFIER") or UNKNOWN
    return _description(architecture, processor, features, os.cpu_count() or UNKNOWN, UNKNOWN)
