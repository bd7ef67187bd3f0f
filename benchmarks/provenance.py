"""Where a figure comes from: what every result file says of the machine and the versions."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from training.folders import made_folder
from trt_runtime.machine import describe_machine
from trt_runtime.whole_file import check_replaceable_file, write_whole

ROOT = Path(__file__).resolve().parents[1]


def provenance(*packages: str) -> dict[str, Any]:
    """Machine, Python, versions of `packages`, and the commit, marked where files were changed."""
    described = subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
        stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    return {
        "machine": describe_machine(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "commit": described.stdout.strip(),
    }


def check_result(path: Path | None) -> None:
    """Raises UserError where no result can be written to `path`: before minutes are spent on it."""
    if path is None:
        return
    check_replaceable_file(path)
    made_folder(path.parent, f"{path} cannot be written")


def bundles_parser(description: str) -> argparse.ArgumentParser:
    """A parser of named bundles, `BUNDLE=NAME`, as pairs of name and path, and of `--out`."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("bundles", nargs="+", type=_named, metavar="BUNDLE=NAME")
    result.add_argument("--out", type=Path)
    return result


def _named(text: str) -> tuple[str, Path]:
    path, _, name = text.rpartition("=")
    return name, Path(path)


def write_result(path: Path | None, result: Mapping[str, Any], *, printed: bool = True) -> None:
    """Writes the result as JSON to `path` where one is given, and prints it too with `printed`."""
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    if path is not None:
        check_result(path)
        write_whole(path, text.encode("utf-8"))
    if printed:
        print(text)
