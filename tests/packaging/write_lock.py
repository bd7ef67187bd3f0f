"""Write requirements.lock from a fresh install of every extra that runs without a GPU.

    python tests/packaging/write_lock.py --torch 2.13.0

Run by `make lock`, with the oldest Python that the project supports: a pin that installs
there has wheels for the newer ones too, and the reverse does not hold.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
EXTRA = "dev"  # has compare, cpu, engines, export, listen, plots and text in it
OLDEST = (3, 11)

HEADER = """\
# Constraints, not requirements: every package that `.[dev]` (with compare, cpu, engines, export,
# listen, plots and text) installs on Python 3.11 for Linux.
#
#   pip install -c requirements.lock -e '.[dev]'
#
# Renew with `make lock`; torch is chosen by hand: `make lock TORCH=2.14.0`. Its pin fits the CPU
# and the CUDA build; the CUDA packages that the latter adds are pinned by torch itself.
"""

# torch's CUDA build brings these and pins them itself; pip is the venv's own. CUDA's bindings for
# Python and what they need are of the extras tensorrt and tensorrt-rtx too.
UNPINNED = re.compile(r"pip|triton|nvidia-.*|cuda-(?!bindings$|pathfinder$).*")


def installed_versions(torch: str) -> dict[str, str]:
    """Name -> version of all that a fresh venv holds after installing the project's extra."""
    with tempfile.TemporaryDirectory(prefix="ming-trt-lock-") as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "--disable-pip-version-check"]
        wanted = ["-e", f"{ROOT}[{EXTRA}]", f"torch=={torch}"]
        subprocess.run([*pip, "install", "--quiet", *wanted], check=True)
        listing = subprocess.run(
            [*pip, "list", "--format=json", "--exclude-editable"],
            check=True,
            stdout=subprocess.PIPE,
        )
    return {row["name"]: row["version"] for row in json.loads(listing.stdout)}


def lock_text(versions: dict[str, str]) -> str:
    """The lock file's text: the header, then one `name==version` a line."""
    pins = [
        # A local label (+cpu) would tie the lock to one build of the same version.
        f"{name}=={version.partition('+')[0]}\n"
        for name, version in sorted(versions.items(), key=lambda item: item[0].lower())
        if not UNPINNED.fullmatch(name.lower())
    ]
    return HEADER + "\n" + "".join(pins)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", required=True, metavar="VERSION")
    torch = parser.parse_args().torch
    if sys.version_info[:2] != OLDEST:
        found, wanted = f"{sys.version_info[0]}.{sys.version_info[1]}", f"{OLDEST[0]}.{OLDEST[1]}"
        print(f"The lock is made with Python {wanted}, and this is {found}.", file=sys.stderr)
        print(f"Run: make lock PYTHON=python{wanted}", file=sys.stderr)
        return 1
    LOCK.write_text(lock_text(installed_versions(torch)), encoding="utf-8")
    print(f"wrote {LOCK}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
