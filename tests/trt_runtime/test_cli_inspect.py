"""`ming-trt inspect`: a manifest as text and as JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trt_runtime.cli import main
from trt_runtime.cli.inspect import human_size
from trt_runtime.contract import graph_specs
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import (
    BUNDLE,
    ENGINES,
    FORMAT_VERSION,
    ComponentEntry,
    GraphEntry,
    Manifest,
)

ROOT = Path(__file__).resolve().parents[2]


def a_manifest(**changes):
    geometry = Geometry(
        sample_rate=44100, hop_length=882, n_fft=3528, frames_per_latent=4, latent_dim=16, patch=4,
        history=32, solver_steps=10, talker_hidden=64, talker_layers=2, talker_kv_heads=2,
        talker_head_dim=16, vocab_size=1024, speaker_dim=192, cache_length=512,
        prefill_chunks=(16, 128), max_steps=200, decoder_hidden=64, decoder_kv_heads=2,
        decoder_head_dim=16, decoder_cache_lengths=(33, 3200), encoder_hop=882, encoder_latents=16,
        encoder_kv_heads=2, encoder_head_dim=8, encoder_frame_cache_lengths=(4096,),
        encoder_latent_cache_lengths=(5120,), max_reference_latents=1024,
    )  # fmt: skip
    graphs = {
        name: GraphEntry(f"{name}.onnx", s.component, s.inputs, s.outputs, s.state, s.in_place)
        for name, s in graph_specs(geometry).items()
    }
    files = {graph.file: (1_234_567, "ab" * 32) for graph in graphs.values()}
    fields = {
        "kind": ENGINES, "family": "ming-omni-tts-dense", "geometry": geometry, "graphs": graphs,
        "files": files, "source": {"digest": "cd" * 32}, "target": "cpu",
        "components": {"talker": ComponentEntry(backend="onnxruntime-cpu")},
        "precision": {"talker": "float32"}, "build": {"seconds": 3.5},
        "machine": {"features": ["avx2", "avx512f"]},
    }  # fmt: skip
    return Manifest(**(fields | changes))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "manifest.json").write_text(a_manifest().to_json(), encoding="utf-8")
    return tmp_path


def test_inspect_prints_the_manifest(folder, capsys):
    assert main.main(["inspect", str(folder)]) == 0
    output = capsys.readouterr().out
    for line in (
        rf"{folder}: engine folder, format version {FORMAT_VERSION}",
        r"family +ming-omni-tts-dense", r"target +cpu", r"talker +onnxruntime-cpu",
        r"talker +float32", r"features +avx2, avx512f", r"sample_rate +44100",
        r"prefill_chunks +16, 128", r"talker_128 \(talker, talker_128\.onnx\)",
        r"in +embeddings float32 \[1, 128, 64\], position int64 \[1\]\n",
        r"out +hidden float32 \[1, 128, 64\]\n", r"state +4 tensors, 262\.1 kB",
        r"tail\.onnx +1\.2 MB  sha256 abababababab", r"files +11, 13\.6 MB together",
    ):  # fmt: skip
        assert re.search(line, output), line


def test_inspect_tells_what_engines_of_tensorrt_were_built_for(folder, capsys):
    operators = {"CachedAttention": "native", "MixtureOfExperts": "body"}
    components = {
        "talker": ComponentEntry(
            backend="tensorrt", profiles=((1, 1), (4, 1), (1, 16)), operators=operators
        ),
        "tail": ComponentEntry(backend="tensorrt", profiles=((1, 1), (4, 1))),
    }
    text = a_manifest(target="tensorrt", components=components).to_json()
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    assert main.main(["inspect", str(folder)]) == 0
    assert (
        "backends\n  tail    tensorrt\n  talker  tensorrt\n"
        "profiles, slots x tokens\n  tail    1x1, 4x1\n  talker  1x1, 4x1, 1x16\n"
        "operators\n  talker  CachedAttention native, MixtureOfExperts body\n"
    ) in capsys.readouterr().out


def test_inspect_tells_a_bundle(folder, capsys):
    text = a_manifest(kind=BUNDLE, target="", precision={}, machine={}, build={}).to_json()
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    assert main.main(["inspect", str(folder)]) == 0
    output = capsys.readouterr().out
    assert "bundle (runs on ONNX Runtime as it is)" in output
    assert not re.search("target|profiles|operators", output)


def test_inspect_prints_json(folder, capsys):
    assert main.main(["inspect", str(folder), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def test_inspect_loads_no_runtime(folder):
    program = (
        "import sys\n"
        "from trt_runtime.cli.main import main\n"
        "main(['inspect', sys.argv[1]])\n"
        "print('loaded:', [name for name in ('onnxruntime', 'numpy') if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, folder], capture_output=True, text=True, check=True,
        cwd=ROOT,
    )  # fmt: skip
    assert result.stdout.endswith("loaded: []\n")


def test_inspect_prints_no_escape_sequences(folder, capsys):
    text = a_manifest(source={"digest": "\x1b[2J"}).to_json()
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    assert main.main(["inspect", str(folder)]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert r"\x1b[2J" in output


def test_inspect_of_something_else_has_status_2(tmp_path, capsys):
    assert main.main(["inspect", str(tmp_path / "none")]) == 2
    assert "No such folder" in capsys.readouterr().err
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    assert main.main(["inspect", str(tmp_path)]) == 2


def test_human_size():
    sizes = [0, 999, 1000, 3_400_000, 2_950_000_000]
    assert [human_size(s) for s in sizes] == ["0 B", "999 B", "1.0 kB", "3.4 MB", "2.95 GB"]
