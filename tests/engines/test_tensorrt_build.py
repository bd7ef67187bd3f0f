"""Engines of TensorRT-RTX, really built, on a machine without a GPU: and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import onnx
import pytest
from onnx import TensorProto, helper

from engines import build_engines, machines, tensorrt_build, tensorrt_process
from engines.options import BuildOptions
from engines.tensorrt_job import EngineJob
from engines.tensorrt_network import (
    Refused,
    _use_timing_cache,
    check_network,
    configure,
    keep_timing_cache,
    parse,
)
from tests.conftest import Folders
from tests.engines.folders import contents, leftovers
from tests.engines.prepared import prepared
from trt_runtime.contract import TAIL
from trt_runtime.errors import FolderError, UserError
from trt_runtime.folder import check_contract
from trt_runtime.manifest import check_files, read_manifest
from trt_runtime.tensorrt_library import TENSORRT_RTX, Library, load_library

pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")

ALL = ("8.0", "8.6", "8.9", "12.0")
#: The quickest component to build.
SMALL = "speaker_projection"


@pytest.fixture(scope="module", params=["dense", "moe"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every component of both tiny checkpoints, in the mixed precision of each."""
    folders: Folders = request.getfixturevalue(request.param)
    precision = {"dense": "mixed-bf16", "moe": "mixed-fp16"}[request.param]
    return build_engines(
        folders.bundle,
        tmp_path_factory.mktemp("rtx") / "engines",
        target=TENSORRT_RTX,
        options=BuildOptions(precision, slots=(1, 2), compute_capability=ALL),
    )


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library(TENSORRT_RTX)


def test_every_component_is_an_engine_of_its_buckets(built: Path) -> None:
    manifest = read_manifest(built)
    check_files(built, manifest)
    check_contract(built, manifest)
    assert manifest.machine["compute_capabilities"] == list(ALL)
    assert set(manifest.graphs) == {
        "audio_decoder", "audio_encoder", "flow_advance", "language_head", "prompt_embedding",
        "speaker_projection", "tail", "talker_1", "talker_16", "talker_64",
    }  # fmt: skip
    components = manifest.components
    assert {entry.backend for entry in components.values()} == {"tensorrt"}
    assert components["talker"].profiles == ((1, 1), (2, 1), (1, 16), (1, 64))
    assert components["tail"].profiles == ((1, 1), (2, 1))
    assert components["audio_decoder"].profiles == ((1, 1),)
    # One engine for all of a talker's buckets: its weights once.
    talker = {graph.file for name, graph in manifest.graphs.items() if "talker" in name}
    assert talker == {"talker.engine"}
    for component in components:
        assert (built / f"{component}.engine").stat().st_size > 1000
        assert "Engine generation completed" in (built / f"{component}.build.log").read_text()


def test_the_manifest_says_what_was_built_how(built: Path) -> None:
    manifest = read_manifest(built)
    low = manifest.precision["tail"]
    assert low in ("mixed-bf16", "mixed-fp16")
    assert manifest.precision["talker"] == low
    assert manifest.precision["prompt_embedding"] == "float32"
    dtype = {"mixed-bf16": "bfloat16", "mixed-fp16": "float16"}[low]
    graph = manifest.graphs["talker_16"]
    assert {t.dtype for t in graph.inputs if "cache" in t.name} == {dtype}
    assert set(graph.in_place) == {t.name for t in graph.inputs if "cache" in t.name}
    assert manifest.components["talker"].operators["CachedAttention"] == "native"
    figures = manifest.build["graphs"]["talker"]
    assert figures["peak_memory_bytes"] > 10**8
    assert figures["bytes"] > 10**6
    assert {"parse_seconds", "build_seconds", "layers"} <= set(figures)


def test_a_build_with_nothing_to_do_does_nothing(built: Path) -> None:
    before = contents(built)
    manifest = read_manifest(built)
    said: list[str] = []
    build_engines(
        manifest.build["source"], built, target=TENSORRT_RTX, progress=said.append,
        options=BuildOptions(manifest.precision["tail"], (1, 2), ALL),
    )  # fmt: skip
    assert len(said) == 1
    assert "up to date" in said[0]
    assert contents(built) == before


class _Parsed:
    """A graph of a bundle parsed in this process: nothing is built, nothing can crash."""

    def __init__(self, library: Library, folders: Folders, tmp_path: Path, graph: str) -> None:
        made = prepared(
            folders.bundle, graph, "bfloat16", native=graph == "talker_1", any_tokens=True
        )
        for file in {t.file for t in made.entry.initializers.values()}:
            os.link(folders.bundle / file, tmp_path / file)
        self.model, self.types, self.library = made.model, made.types, library
        self.path = tmp_path / "graph.onnx"
        kinds = [node.op_type for node in made.model.graph.node]
        self.job = EngineJob(
            TENSORRT_RTX, graph, str(self.path), str(tmp_path / "engine"), ((1, 1),), made.types,
            tuple(made.casts), {"KV_CACHE_UPDATE": kinds.count("TensorScatter")}, made.sources,
        )  # fmt: skip

    def check(self, job: EngineJob | None = None) -> None:
        self.path.write_bytes(self.model.SerializeToString())
        builder = self.library.module.Builder(self.library.logger)
        check_network(parse(self.library, builder, self.job), job or self.job)


@pytest.fixture(params=["talker_1", TAIL, "audio_decoder", "audio_encoder", "language_head"])
def parsed(
    request: pytest.FixtureRequest, library: Library, folders: Folders, tmp_path: Path
) -> _Parsed:
    return _Parsed(library, folders, tmp_path, request.param)


def test_the_networks_types_are_the_plans(parsed: _Parsed) -> None:
    parsed.check()
    assert set(parsed.types.values()) == {"float32", "bfloat16"}


@pytest.mark.parametrize("planned", ["float32", "bfloat16", "float16"])
def test_a_broken_plan_is_caught(parsed: _Parsed, planned: str) -> None:
    """One node of the plan has another type than the network: an engine would be another."""
    node = next(name for name, kind in parsed.types.items() if kind != planned)
    job = replace(parsed.job, types={**parsed.types, node: planned})
    with pytest.raises(Refused, match=node) as refused:
        parsed.check(job)
    assert f"planned {planned}" in refused.value.found


def test_a_cast_that_got_lost_is_caught(parsed: _Parsed) -> None:
    """As a graph that was converted twice: everything float32, and no error anywhere else."""
    for node in parsed.model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.BFLOAT16:
                attribute.i = TensorProto.FLOAT
    stored = {t.name: t for t in parsed.model.graph.initializer}
    # Parameters that are read as they are stored, too.
    for node in list(parsed.model.graph.node):
        for index, name in enumerate(node.input):
            low = name in stored and stored[name].data_type == TensorProto.BFLOAT16
            if low and node.op_type != "Cast":
                node.input[index] = f"{name}.float32"
    for value in (*parsed.model.graph.input, *parsed.model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    with pytest.raises(Refused, match=r"is float32, planned bfloat16"):
        parsed.check()


def test_a_cast_that_nobody_planned_is_caught(parsed: _Parsed) -> None:
    """A sum that is rounded on its way: every planned node has its type all the same."""
    graph = parsed.model.graph
    node = next(n for n in graph.node if parsed.types.get(n.name) and n.op_type != "Cast")
    for reader in graph.node:
        reader.input[:] = ["rounded" if name == node.output[0] else name for name in reader.input]
    place = list(graph.node).index(node) + 1
    for name, given, made, kind in (
        ("Wide", "narrow", "rounded", TensorProto.FLOAT),
        ("Narrow", node.output[0], "narrow", TensorProto.BFLOAT16),
    ):
        graph.node.insert(place, helper.make_node("Cast", [given], [made], name=name, to=kind))
    with pytest.raises(Refused, match=r"cast that nobody planned: (Narrow|Wide)"):
        parsed.check()


def test_native_layers_that_are_missing_are_caught(
    library: Library, dense: Folders, tmp_path: Path
) -> None:
    talker = _Parsed(library, dense, tmp_path, "talker_1")
    with pytest.raises(Refused, match="KV_CACHE_UPDATE, planned 99"):
        talker.check(replace(talker.job, layers={"KV_CACHE_UPDATE": 99}))


def test_an_input_that_the_parser_drops_is_caught(
    library: Library, dense: Folders, tmp_path: Path
) -> None:
    """TensorRT-RTX 1.7 ignores the valid length of ONNX's attention, and only warns of it."""
    talker = _Parsed(library, dense, tmp_path, "talker_1")
    graph = talker.model.graph
    graph.input.append(helper.make_tensor_value_info("lengths", TensorProto.INT64, ["slots"]))
    for node in graph.node:
        if node.op_type == "Attention":
            del node.input[3:]
            node.input.extend(["", "", "", "lengths"])
    with pytest.raises(Refused, match="lengths"):
        talker.check()


def test_a_parser_error_names_node_and_source(
    library: Library, dense: Folders, tmp_path: Path
) -> None:
    tail = _Parsed(library, dense, tmp_path, TAIL)
    node = next(n for n in tail.model.graph.node if n.name in tail.job.sources)
    node.op_type = "NoSuchOperator"
    with pytest.raises(Refused) as refused:
        tail.check()
    assert node.name in refused.value.found
    assert "NoSuchOperator" in refused.value.found
    assert tail.job.sources[node.name] in refused.value.found


@pytest.fixture
def no_build(monkeypatch: pytest.MonkeyPatch) -> list[EngineJob]:
    """No engine is built: what would have been is kept."""
    jobs: list[EngineJob] = []

    def run(engine: EngineJob, job: Any) -> dict[str, Any]:
        jobs.append(engine)
        Path(engine.engine).write_bytes(b"engine")
        return {}

    monkeypatch.setattr(tensorrt_build, "run_job", run)
    return jobs


def test_only_what_changed_is_built_again(
    dense: Folders, tmp_path: Path, no_build: list[EngineJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(**options: Any) -> list[str]:
        no_build.clear()
        build_engines(
            dense.bundle, tmp_path / "out", target=TENSORRT_RTX,
            options=BuildOptions(**{"compute_capability": ("8.9",), **options}),
        )  # fmt: skip
        return [job.component for job in no_build]

    assert len(build()) == 8
    assert build() == []
    assert build(time_limit=99) == []
    assert len(build(compute_capability=("8.6",))) == 8
    assert len(build(compute_capability=("8.6",), precision="mixed-bf16")) == 8
    assert len(build(compute_capability=("8.6",), precision="mixed-bf16", slots=(1, 8))) == 8
    # What the runtime refuses on another system, the command that it prints builds again.
    here = machines.describe_machine()
    monkeypatch.setattr(machines, "describe_machine", lambda: {**here, "system": "Windows"})
    assert len(build(compute_capability=("8.6",), precision="mixed-bf16", slots=(1, 8))) == 8


def test_an_input_that_decides_sizes_is_refused(
    library: Library, dense: Folders, tmp_path: Path
) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (int64[1] count, float[1] x) => (float[n] y) { y = Expand (x, count) }"""
    )
    path = tmp_path / "sizes.onnx"
    path.write_bytes(model.SerializeToString())
    job = EngineJob(TENSORRT_RTX, "sizes", str(path), "", ((1, 1),), {})
    with pytest.raises(Refused, match="count"):
        check_network(parse(library, library.module.Builder(library.logger), job), job)


def test_float32_is_without_tf32(library: Library, dense: Folders, tmp_path: Path) -> None:
    tail = _Parsed(library, dense, tmp_path, TAIL)
    tail.path.write_bytes(tail.model.SerializeToString())
    builder = library.module.Builder(library.logger)
    network = parse(library, builder, tail.job)
    job = replace(tail.job, compute_capability=("8.9",), profiles=((1, 1), (4, 1)))
    config = configure(library, builder, network, job, lambda **said: None)
    assert not config.get_flag(library.module.BuilderFlag.TF32)
    assert config.get_flag(library.module.BuilderFlag.REQUIRE_USER_ALLOCATION)
    assert config.num_optimization_profiles == 2
    assert config.num_compute_capabilities == 1


def _child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    """Another program in the place of the one that builds."""
    (tmp_path / "fake_child.py").write_text(text)
    popen = tensorrt_process.subprocess.Popen

    def started(command: list[str], **rest: Any) -> Any:
        return popen([command[0], str(tmp_path / "fake_child.py"), command[-1]], **rest)

    monkeypatch.setattr(tensorrt_process.subprocess, "Popen", started)


FAILURES: dict[str, tuple[str, str]] = {
    "crash": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    "refusal": (
        "import json, sys; print(json.dumps({'refused': 'No', 'found': 'node X'})); sys.exit(3)",
        "node X",
    ),
    "nothing": ("import json; print(json.dumps({'result': {}}))", "exit status 0"),
    "words": ("import sys; sys.stderr.write('out of luck\\n'); sys.exit(1)", "out of luck"),
    "hang": ("import time; time.sleep(600)", "still building after 1 s"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_build_that_fails_is_told_and_leaves_its_log(
    kind: str, dense: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, said = FAILURES[kind]
    _child(monkeypatch, tmp_path, program)
    out = tmp_path / "out"
    with pytest.raises(UserError) as raised:
        build_engines(
            dense.bundle, out, target=TENSORRT_RTX,
            options=BuildOptions(
                compute_capability=("8.9",), time_limit=1 if kind == "hang" else 60
            ),
        )  # fmt: skip
    assert said in str(raised.value)
    assert not out.exists()
    assert not leftovers(out)
    (log,) = tmp_path.glob("out-*.build.log")
    assert str(log) in raised.value.do


def test_an_interrupted_build_leaves_no_process_and_no_folder(
    dense: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    _child(
        monkeypatch, tmp_path,
        f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid()))\n"
        "print('x', flush=True); time.sleep(600)",
    )  # fmt: skip

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(tensorrt_process, "_follow", interrupted_when(pid, interrupted))
    with pytest.raises(KeyboardInterrupt):
        build_engines(
            dense.bundle, tmp_path / "out", target=TENSORRT_RTX,
            options=BuildOptions(compute_capability=("8.9",)),
        )  # fmt: skip
    assert not (tmp_path / "out").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), signal.SIGCONT)


def interrupted_when(there: Path, then: Callable[..., Any]) -> Callable[..., Any]:
    """Calls `then` once the file is there and not empty."""

    def follow(child: Any, component: str) -> Any:
        child.stdout.readline()
        assert there.read_text()
        return then(child, component)

    return follow


def test_no_module_of_the_current_folder_is_run(tmp_path: Path) -> None:
    """A user may be in a stranger's folder, with a `json.py` in it."""
    for name in ("json", "engines", "logging"):
        (tmp_path / f"{name}.py").write_text("open('run', 'w').close()")
    ended = subprocess.run(
        tensorrt_process.child_command(tmp_path / "none.json"), cwd=tmp_path, check=False,
        env=tensorrt_process._environment(), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert ended.returncode
    assert not (tmp_path / "run").exists()


def test_the_process_ends_with_who_waits_for_it() -> None:
    program = """
import threading, time
from engines.tensorrt_child import _end_with_the_parent
threading.Thread(target=_end_with_the_parent, daemon=True).start()
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE,
        env=tensorrt_process._environment(),
    ) as child:  # fmt: skip
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(60) == 1


def test_a_full_disk_is_told_as_one(
    dense: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _child(
        monkeypatch, tmp_path,
        "import errno, json, sys; print(json.dumps({'os_error': errno.ENOSPC})); sys.exit(4)",
    )  # fmt: skip
    with pytest.raises(UserError, match="No space left"):
        build_engines(
            dense.bundle, tmp_path / "out", target=TENSORRT_RTX,
            options=BuildOptions(compute_capability=("8.9",)),
        )  # fmt: skip


def test_a_log_of_a_failure_goes_with_the_next_success(
    dense: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every component's, once it is built."""
    _child(
        monkeypatch, tmp_path,
        "import json, pathlib, sys\n"
        "job = json.loads(pathlib.Path(sys.argv[1]).read_text())\n"
        "pathlib.Path(job['engine']).write_bytes(b'engine')\n"
        "print(json.dumps({'result': {}}))",
    )  # fmt: skip
    (tmp_path / "out-tail.build.log").write_text("of last time")
    build_engines(
        dense.bundle, tmp_path / "out", target=TENSORRT_RTX,
        options=BuildOptions(compute_capability=("8.9",)),
    )  # fmt: skip
    assert not list(tmp_path.glob("out-*.build.log"))


HOSTILE: dict[str, tuple[Callable[[onnx.GraphProto], object], str]] = {
    "unknown domain": (lambda g: setattr(g.node[-1], "domain", "evil"), "evil"),
    "a name twice": (lambda g: [setattr(n, "name", "same") for n in g.node], "named same"),
    "no names": (lambda g: [setattr(n, "name", "") for n in g.node], "no name"),
    "no outputs": (lambda g: g.node[-1].ClearField("output"), "gives nothing"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_strangers_graph_is_refused_by_its_folder(
    kind: str, dense: Folders, tmp_path: Path
) -> None:
    change, said = HOSTILE[kind]
    bundle = tmp_path / "bundle"
    shutil.copytree(dense.bundle, bundle)
    path = bundle / "speaker_projection.onnx"
    model = onnx.load(path, load_external_data=False)
    change(model.graph)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(FolderError, match=said) as refused:
        prepared(bundle, "speaker_projection", "bfloat16")
    assert "python -m export" in refused.value.do


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compute_capability": ("9.0",)}, "--target tensorrt"),
        ({"compute_capability": ("8.9", "8.9")}, "twice"),
        ({"compute_capability": ("sm89",)}, "no compute capability"),
        ({"slots": (4, 2)}, "slots"),
        ({"slots": (0,)}, "slots"),
        ({"slots": (1, 65)}, "slots"),
        ({"precision": "fp16"}, "no precision"),
        ({"version_compatible": True}, "--version-compatible"),
        ({"compute_capability": ("8.9",), "ampere_and_later": True}, "two ways"),
        ({"time_limit": 0}, "time limit"),
        ({"time_limit": 10**20}, "time limit"),
        ({"compute_capability": ("8.9",), "weight_streaming": 1}, "--weight-streaming"),
        ({"compute_capability": ("7.5",)}, "--target cpu"),
        ({}, "--compute-capability"),
    ],
)
def test_options_that_cannot_be_are_refused(
    options: dict[str, Any], said: str, dense: Folders, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said):
        build_engines(
            dense.bundle, tmp_path / "out", target=TENSORRT_RTX, options=BuildOptions(**options)
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_other_targets_have_no_such_options(target: str, dense: Folders, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--compute-capability"):
        build_engines(
            dense.bundle, tmp_path / "out", target=target,
            options=BuildOptions(compute_capability=("8.9",)),
        )  # fmt: skip


def test_ampere_and_later_is_every_gpu_from_8_0_on(
    dense: Folders, tmp_path: Path, no_build: list[EngineJob]
) -> None:
    build_engines(
        dense.bundle, tmp_path / "out", target=TENSORRT_RTX,
        options=BuildOptions(ampere_and_later=True),
    )  # fmt: skip
    assert {job.compute_capability for job in no_build} == {("8.0", "8.6", "8.9", "12.0", "12.1")}


class _Cache:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def serialize(self) -> bytes:
        return self.content + b" and more"


def test_what_was_measured_is_kept_for_the_next_build(tmp_path: Path, library: Library) -> None:
    """TensorRT's: no GPU is here that could measure, so the configuration is one of the binding's
    form that keeps what it is given."""
    config = create_autospec(library.module.IBuilderConfig, instance=True)
    config.create_timing_cache.side_effect = _Cache
    config.set_timing_cache.side_effect = lambda cache, ignore_mismatch: b"oth" not in cache.content
    path = tmp_path / "timing.cache"
    for before, given in ((None, b""), (b"mine", b"mine"), (b"other's", b"")):
        if before is not None:
            path.write_bytes(before)
        _use_timing_cache(config, path)
        cache = config.set_timing_cache.call_args.args[0]
        assert cache.content == given
        config.get_timing_cache.return_value = cache
        keep_timing_cache(config, path)
        assert path.read_bytes() == given + b" and more"
    assert [file.name for file in tmp_path.iterdir()] == ["timing.cache"]


def test_a_job_survives_its_file() -> None:
    job = EngineJob("tensorrt", "tail", "a.onnx", "a.engine", ((1, 1), (2, 64)), {"n": "float32"})
    assert EngineJob.from_json(job.to_json()) == job
    assert json.loads(job.to_json())["profiles"] == [[1, 1], [2, 64]]
