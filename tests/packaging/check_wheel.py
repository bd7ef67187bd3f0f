"""Build the wheel, install it alone, and speak with it: a user's first minute.

    .venv/bin/python tests/packaging/check_wheel.py

Run by `make test`, in a venv that has `build`. The wheel goes into an empty venv with the extra
`cpu` and the versions of requirements.lock, and is used from a folder outside the repository,
so that nothing of the checkout is imported by accident.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"

MEGABYTE = 1e6
WHEEL_LIMIT_MB = 18
DOWNLOAD_LIMIT_MB = 150

PACKAGES = {"calibration", "engines", "export", "trt_runtime"}
WHEEL_FILES = [
    *[f"{package}/{name}" for package in sorted(PACKAGES) for name in ("__init__.py", "py.typed")],
    "trt_runtime/data/",
    ".dist-info/licenses/LICENSE",
    ".dist-info/licenses/NOTICE",
]
# The light runtime has none of these, installed or imported.
ABSENT = ["torch", "transformers", "onnx", "onnxscript"]
# Installed, since tokenizers asks for it; the runtime fetches nothing and never imports it.
UNUSED = ["huggingface_hub"]

SAMPLE_RATES = (16_000, 44_100)  # the embedded voice is small and may have the lower one
SECONDS = (0.2, 10.0)  # for "Hello."
QUIETEST_RMS = 1e-3  # -60 dB of full scale

IMPORT_PROBE = """
import importlib.util, json, sys
names = json.loads(sys.argv[1])
import trt_runtime
print(json.dumps({
    "file": trt_runtime.__file__,
    "importable": [name for name in names if importlib.util.find_spec(name)],
    "imported": [name for name in names if name in sys.modules],
}))
"""

SOUND_PROBE = """
import json, sys
import numpy, soundfile
samples, rate = soundfile.read(sys.argv[1], dtype="float32", always_2d=True)
print(json.dumps({
    "rate": rate,
    "channels": samples.shape[1],
    "seconds": len(samples) / rate,
    "finite": bool(numpy.isfinite(samples).all()),
    "peak": float(numpy.abs(samples).max(initial=0.0)),
    "rms": float(numpy.sqrt(numpy.square(samples, dtype="float64").mean())) if len(samples) else 0,
}))
"""


class CheckFailed(Exception):
    """What was checked, what was expected and what was found."""


def expect(held: bool, message: str) -> None:
    if not held:
        raise CheckFailed(message)


def run(*command: str | Path, cwd: Path, timeout_s: float = 600) -> str:
    """The command's standard output; CheckFailed with both outputs if it fails."""
    # The caller's venv and PYTHONPATH would let the checkout in.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env={**kept, "PYTHONNOUSERSITE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise CheckFailed(f"{words} did not end within {timeout_s:.0f} s") from error
    except OSError as error:
        raise CheckFailed(f"{words} did not start: {error}") from error
    expect(
        done.returncode == 0,
        f"{words} ended with status {done.returncode}, expected 0\n{done.stdout}{done.stderr}",
    )
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """The wheel, built from the checkout into `folder`."""
    # setuptools packs whatever an older build left here, deleted modules too.
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, cwd=ROOT)
    wheels = list(folder.glob("*.whl"))
    expect(len(wheels) == 1, f"expected one wheel in {folder}, found {wheels}")
    return wheels[0]


def check_contents(wheel: Path) -> None:
    """Ours, all of it, and nothing else: every module and data file, no tests, no training."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    expect(tops <= PACKAGES, f"the wheel holds {sorted(tops - PACKAGES)}, expected only {PACKAGES}")
    for wanted in WHEEL_FILES:
        expect(
            any(name.startswith(wanted) or name.endswith(wanted) for name in names),
            f"the wheel lacks {wanted}: see [tool.setuptools] in pyproject.toml",
        )
    data = (path for path in (ROOT / "trt_runtime" / "data").rglob("*") if path.is_file())
    modules = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    for path in [*data, *modules]:
        name = path.relative_to(ROOT).as_posix()
        expect(name in names, f"the wheel lacks {name}: is an __init__.py missing beside it?")


def download(wheel: Path, python: Path, folder: Path) -> int:
    """Bytes that installing the wheel with `cpu` fetches, the wheel among them; kept in folder."""
    command = [python, "-m", "pip", "download", "--quiet", "--dest", folder, "-c", LOCK]
    run(*command, f"{wheel}[cpu]", cwd=folder.parent)
    sizes = {path.name: path.stat().st_size for path in [wheel, *folder.iterdir()]}
    for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:5]:
        print(f"  {size / MEGABYTE:6.1f} MB  {name}")
    return sum(sizes.values())


def install(wheel: Path, python: Path, downloads: Path) -> None:
    """Install the files that were measured, and no others."""
    command = [python, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", downloads]
    run(*command, "-c", LOCK, f"{wheel}[cpu]", cwd=downloads.parent)


def check_imports(python: Path, cwd: Path) -> None:
    names = json.dumps(ABSENT + UNUSED)
    found = json.loads(run(python, "-c", IMPORT_PROBE, names, cwd=cwd))
    venv = python.parents[1]
    expect(
        Path(found["file"]).is_relative_to(venv),
        f"trt_runtime was imported from {found['file']}, expected it under {venv}",
    )
    present = sorted(set(found["importable"]) & set(ABSENT))
    expect(not present, f"the light install brings {present}: see `dependencies` and `cpu`")
    expect(not found["imported"], f"`import trt_runtime` imports {found['imported']}, expected not")


def check_commands(scripts: Path, cwd: Path) -> None:
    usage = run(scripts / "ming-trt", "--help", cwd=cwd, timeout_s=60)
    for subcommand in ("speak", "normalize", "voices", "inspect", "bench", "doctor"):
        expect(subcommand in usage, f"`ming-trt --help` does not name {subcommand}:\n{usage}")
    run(scripts / "build-engines", "--help", cwd=cwd, timeout_s=60)
    run(scripts / "ming-trt", "doctor", cwd=cwd, timeout_s=120)
    none = ("--voices", cwd / "none")
    listed = json.loads(run(scripts / "ming-trt", "voices", "list", "--json", *none, cwd=cwd))
    shipped = sorted(path.stem for path in (ROOT / "trt_runtime" / "data" / "voices").iterdir())
    found = sorted(voice["name"] for voice in listed if voice["shipped"])
    expect(found == shipped, f"expected the shipped voices {shipped}, found {found}")


def check_speech(python: Path, cwd: Path) -> str:
    """Speak with the embedded voice; the sound in words."""
    wave = cwd / "hello.wav"
    run(python.parent / "ming-trt", "speak", "Hello.", "-o", wave, cwd=cwd, timeout_s=300)
    expect(wave.is_file(), f"`ming-trt speak` ended well and wrote no {wave.name}")
    sound = json.loads(run(python, "-c", SOUND_PROBE, wave, cwd=cwd))
    shortest, longest = SECONDS
    expect(
        sound["rate"] in SAMPLE_RATES,
        f"expected a sample rate of {SAMPLE_RATES} Hz, found {sound['rate']}",
    )
    expect(sound["channels"] == 1, f"expected one channel, found {sound['channels']}")
    expect(
        shortest <= sound["seconds"] <= longest,
        f'"Hello." takes {sound["seconds"]:.2f} s, expected {shortest} to {longest} s',
    )
    expect(sound["finite"], "the wave holds NaN or infinity")
    expect(
        sound["rms"] >= QUIETEST_RMS,
        f"the wave is silent: RMS {sound['rms']:.1e}, expected {QUIETEST_RMS} or more",
    )
    expect(sound["peak"] <= 1.0, f"the wave clips: peak {sound['peak']:.3f}, expected up to 1")
    other = cwd / "other.wav"
    command = ("speak", "Hello.", "--voice", "slt", "--voices", cwd / "none", "-o", other)
    run(python.parent / "ming-trt", *command, cwd=cwd, timeout_s=300)
    expect(other.read_bytes() != wave.read_bytes(), "--voice slt gives the default voice's samples")
    return f"{sound['seconds']:.2f} s, RMS {sound['rms']:.3f}, peak {sound['peak']:.3f}"


def check_size(what: str, size: int, limit_mb: float) -> None:
    print(f"{what}: {size / MEGABYTE:.1f} MB (limit {limit_mb} MB)")
    expect(
        size < limit_mb * MEGABYTE,
        f"{what} is {size / MEGABYTE:.1f} MB, expected under {limit_mb} MB",
    )


def check(folder: Path) -> None:
    """All checks, cheapest first; `folder` is empty and outside the repository."""
    dist, downloads, venv, cwd = (folder / name for name in ("dist", "downloads", "venv", "cwd"))
    for path in (dist, downloads, cwd):
        path.mkdir()
    wheel = build_wheel(dist)
    check_size("the wheel", wheel.stat().st_size, WHEEL_LIMIT_MB)
    check_contents(wheel)
    run(sys.executable, "-m", "venv", venv, cwd=folder)
    python = venv / "bin" / "python"
    check_size("the whole download", download(wheel, python, downloads), DOWNLOAD_LIMIT_MB)
    install(wheel, python, downloads)
    check_imports(python, cwd)
    check_commands(python.parent, cwd)
    print(f'"Hello.": {check_speech(python, cwd)}')


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ming-trt-wheel-") as folder:
        try:
            check(Path(folder).resolve())
        except CheckFailed as failure:
            print(f"wheel check failed: {failure}", file=sys.stderr)
            return 1
    print("wheel check: good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
