"""An export needs memory for a checkpoint's largest few tensors, not for the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import export
from export.synthetic import write_random_checkpoint

ROOT = Path(export.__file__).parents[1]

# VmHWM, not getrusage: that one also counts the process that started this one.
_EXPORT = """
import sys
from pathlib import Path
import export.export_plan
from export import ExportOptions, export_checkpoint
sources = export.export_plan.graph_sources
# The graph of the large weights: tracing the small ones takes half a minute and no memory.
export.export_plan.graph_sources = lambda g: [s for s in sources(g) if s.spec.name == "talker_1"]
options = ExportOptions(256, 8, (16,))
export_checkpoint(sys.argv[1], sys.argv[2], options=options, check_values=False)
status = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in status if line.startswith("VmHWM:")))
"""


def peak(checkpoint: Path, bundle: Path) -> int:
    """Most bytes that an export in a process of its own has resident."""
    done = subprocess.run(
        [sys.executable, "-c", _EXPORT, checkpoint, bundle],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return int(done.stdout) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says what was resident")
def test_a_large_export_needs_little_more_memory_than_a_small_one(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    write_random_checkpoint(tmp_path / "small", config)
    # Few layers, so that it is quick, and wide ones, so that it is large.
    config["llm_config"] |= {
        "hidden_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 3072,
    }
    write_random_checkpoint(tmp_path / "large", config)
    weights = (tmp_path / "large" / "model.safetensors").stat().st_size
    assert weights > 140_000_000
    small = peak(tmp_path / "small", tmp_path / "a")
    large = peak(tmp_path / "large", tmp_path / "b")
    assert large - small < weights / 2, f"{(large - small) / 1e6:.0f} of {weights / 1e6:.0f} MB"
