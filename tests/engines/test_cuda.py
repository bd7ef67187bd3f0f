"""Building for a GPU, on a machine without one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from engines import build_engines
from engines.graph_file import all_graphs
from engines.onnxruntime_cuda import KERNELS
from engines.stored_dtypes import numpy_dtype
from engines.targets import find_target
from tests.conftest import Folders
from tests.engines.folders import contents
from trt_runtime.errors import FolderError, UserError
from trt_runtime.folder import check_contract, open_folder
from trt_runtime.manifest import MANIFEST, StoredTensor, check_files, read_manifest
from trt_runtime.plugins.layout import kernel_tensors
from trt_runtime.talker_kernels import kernel_sizes

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def built(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_engines(folders.bundle, tmp_path_factory.mktemp("cuda") / "engines", target="cuda")


def _array(folder: Path, tensor: StoredTensor) -> np.ndarray:
    dtype, count = numpy_dtype(tensor.dtype), int(np.prod(tensor.shape))
    values = np.fromfile(folder / tensor.file, dtype, count, offset=tensor.offset)
    return values.reshape(tensor.shape).astype(np.float32)


def test_cuda_leaves_out_the_solver_step_and_the_talkers_graphs(built: Path) -> None:
    manifest = read_manifest(built)
    assert "tail" in manifest.graphs
    assert "flow_advance" in manifest.graphs
    assert "flow_step" not in manifest.graphs
    assert not [name for name in manifest.graphs if name.startswith("talker")]
    check_contract(built, manifest)
    check_files(built, manifest)


def test_the_manifest_names_what_runs_each_component(built: Path, folders: Folders) -> None:
    entries = read_manifest(built).components
    assert entries["talker"].backend == "plugin-loop"
    others = {entry.backend for name, entry in entries.items() if name != "talker"}
    assert others == {"onnxruntime-cuda"}
    assert entries["talker"].sizes == read_manifest(folders.bundle).components["talker"].sizes
    assert {e.backend for e in read_manifest(folders.engines).components.values()} == {
        "onnxruntime-cpu"
    }


def test_precision_is_bfloat16_where_the_kernels_multiply(built: Path) -> None:
    precision = read_manifest(built).precision
    assert (precision["talker"], precision["tail"]) == ("bfloat16", "float32")


def test_the_talkers_tensors_are_those_that_the_kernels_want(built: Path, folders: Folders) -> None:
    entry, bundle = read_manifest(built).components["talker"], read_manifest(folders.bundle)
    wanted = {t.name: (t.dtype, t.shape) for t in kernel_tensors(kernel_sizes(entry.sizes))}
    assert {n: (t.dtype, t.shape) for n, t in entry.tensors.items()} == wanted
    parameters = bundle.graphs["talker_1"].initializers
    for ours, theirs in (("qkv", "qkv_weight"), ("out", "out_weight")):
        expected = _array(folders.bundle, parameters[f"talker.layers.1.{theirs}"]).T
        found = _array(built, entry.tensors[f"layers.1.{ours}"])
        np.testing.assert_array_equal(found, expected.astype(ml_dtypes.bfloat16), ours)
    norm = _array(built, entry.tensors["norm"])
    np.testing.assert_array_equal(norm, _array(folders.bundle, parameters["talker.norm"]))


def test_graphs_hold_what_a_gpu_can_run_and_nothing_of_a_cpus(built: Path) -> None:
    for name, entry in read_manifest(built).graphs.items():
        model = onnx.load(built / entry.file, load_external_data=False)
        kinds = {(n.domain, n.op_type) for g in all_graphs(model.graph) for n in g.node}
        assert {domain for domain, _ in kinds} == {""}, name
        assert {kind for _, kind in kinds} <= set(KERNELS), name
        # Casts of weights were folded; a looked-up row of a table is cast when it is known.
        casts = sum(n.op_type == "Cast" for n in model.graph.node)
        assert casts <= 3, name


def test_equal_bundles_give_equal_engines(folders: Folders, built: Path, tmp_path: Path) -> None:
    again = build_engines(folders.bundle, tmp_path / "again", target="cuda")
    first, second = contents(built), contents(again)
    manifests = [json.loads(c.pop(MANIFEST)) for c in (first, second)]
    assert first == second
    for manifest in manifests:
        for key in ("graphs", "peak_memory_bytes", "seconds"):
            del manifest["build"][key]
    assert manifests[0] == manifests[1]


def test_what_is_up_to_date_is_kept(folders: Folders, tmp_path: Path) -> None:
    said: list[str] = []
    out = build_engines(folders.bundle, tmp_path / "engines", target="cuda")
    build_engines(folders.bundle, out, target="cuda", progress=said.append)
    assert said == [f"{out} is up to date: nothing to do (--force builds it again)"]
    # Another key of the whole, and those of the components.
    text = (out / MANIFEST).read_text(encoding="utf-8")
    (out / MANIFEST).write_text(text.replace('"key": "', '"key": "0'), encoding="utf-8")
    said.clear()
    before = (out / "talker.weights").stat().st_ino
    build_engines(folders.bundle, out, target="cuda", progress=said.append)
    assert "talker: unchanged, kept" in said
    assert (out / "talker.weights").stat().st_ino == before
    assert read_manifest(out).build["graphs"]["talker"]["bytes"]


def test_other_sizes_build_the_talker_again(folders: Folders, tmp_path: Path) -> None:
    bundle = _copy(folders.bundle, tmp_path, lambda s: s.update(rms_eps=0.5))
    out = build_engines(folders.bundle, tmp_path / "engines", target="cuda")
    said: list[str] = []
    build_engines(bundle, out, target="cuda", progress=said.append)
    assert "talker: unchanged, kept" not in said
    assert "tail: unchanged, kept" in said
    sizes = read_manifest(out).components["talker"].sizes
    assert sizes is not None
    assert sizes.rms_eps == 0.5


def _copy(bundle: Path, parent: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The bundle with other sizes of its talker."""
    copy = parent / "bundle"
    copy.mkdir()
    for path in bundle.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    data = json.loads((copy / MANIFEST).read_text(encoding="utf-8"))
    change(data["components"]["talker"]["sizes"])
    (copy / MANIFEST).write_text(json.dumps(data), encoding="utf-8")
    return copy


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s["window"].__setitem__(0, 16), r"sliding window(?s:.*)layer 0"),
        (lambda s: s.update(head_dim=24), "head_dim 24"),
    ],
)
def test_a_talker_that_the_kernels_cannot_run_is_refused(
    dense: Folders, tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    bundle = _copy(dense.bundle, tmp_path, change)
    with pytest.raises(UserError, match=rf"{said}(?s:.*)another target"):
        build_engines(bundle, tmp_path / "engines", target="cuda")
    assert not (tmp_path / "engines").exists()


def test_a_bundle_without_its_talkers_sizes_is_refused(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"sizes of its talker(?s:.*)export the checkpoint again"):
        build_engines(bundle, tmp_path / "engines", target="cuda")


def test_parameters_that_the_kernels_do_not_know_are_refused(
    dense: Folders, tmp_path: Path
) -> None:
    bundle = _copy(dense.bundle, tmp_path, lambda s: s.update(qkv_bias=False))
    with pytest.raises(UserError, match=r"no use for(?s:.*)qkv_bias"):
        build_engines(bundle, tmp_path / "engines", target="cuda")


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (helper.make_node("Bernoulli", ["velocity_f"], ["velocity_t"]), "Bernoulli"),
        (
            helper.make_node("Reshape", ["velocity_f", "shape"], ["velocity_t"], name="turn"),
            r"Reshape \(turn\)(?s:.*)reads shape, computed, on the host",
        ),
    ],
)
def test_a_node_that_a_gpu_cannot_run_is_named(node: onnx.NodeProto, said: str) -> None:
    from engines.onnxruntime_cuda import check_kernels

    graph = helper.make_graph([node], "tail", [], [])
    job: Any = type("Job", (), {"name": "tail"})
    with pytest.raises(UserError, match=rf"Graph tail cannot run on a GPU(?s:.*){said}"):
        check_kernels(helper.make_model(graph), job)


def test_building_needs_nothing_of_a_gpu() -> None:
    code = (
        "import sys, engines.onnxruntime_cuda, engines.plugin_loop; "
        "print(sorted({'torch', 'triton'} & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert found.stdout.strip() == "[]"
    assert "onnxruntime-gpu" not in str(find_target("cuda").needs)


def test_engines_for_a_gpu_are_refused_without_one(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trt_runtime.cuda_devices.cuda_devices", list)
    with pytest.raises(FolderError, match=r"compute capability 8\.0(?s:.*)--target cpu"):
        open_folder(built)


def test_the_processor_that_built_them_says_nothing(built: Path) -> None:
    assert read_manifest(built).machine == {"compute_capability": "8.0"}
