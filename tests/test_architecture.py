"""The rules of docs/architecture.md that a machine can hold: imports, sizes, names, links."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.tables import DOCUMENTS, rendered

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("trt_runtime", "export", "engines", "calibration", "training")

#: Room → what it may import of the project at the top of a file, and what only inside a function.
MAY_IMPORT: dict[str, tuple[set[str], set[str]]] = {
    "trt_runtime": ({"trt_runtime"}, set()),
    "export": (
        {
            "export",
            "trt_runtime.contract",
            "trt_runtime.errors",
            "trt_runtime.exit_status",
            "trt_runtime.geometry",
            "trt_runtime.interruption",
            "trt_runtime.manifest",
            "trt_runtime.manifest_entries",
            "trt_runtime.operators",
            "trt_runtime.printable",
            "trt_runtime.raw_tensors",
            "trt_runtime.rebuilding",
            "trt_runtime.staging",
            "trt_runtime.time_grid",
            "trt_runtime.transformer_sizes",
            "trt_runtime.version",
        },
        set(),
    ),
    "engines": ({"engines", "trt_runtime"}, {"export", "calibration"}),
    "calibration": ({"calibration", "engines", "trt_runtime"}, set()),
    "training": ({"training", "export", "trt_runtime"}, set()),
}
#: What a room never imports, not even inside a function.
NEVER = {
    "trt_runtime": {"torch", "transformers", "onnx", "onnx_ir", "onnxscript", "huggingface_hub"},
    "export": {"onnxruntime", "transformers"},
    "engines": {"torch", "transformers"},
    "calibration": set(),
    "training": {"onnxruntime", "transformers"},
}
#: Third-party packages that a room may import at the top of a file.
MAY_NEED = {
    "trt_runtime": {"numpy", "tokenizers"},
    # google is protobuf, which onnx is made of.
    "export": {"google", "huggingface_hub", "ml_dtypes", "numpy", "onnx", "onnx_ir"}
    | {"onnxscript", "tokenizers", "torch"},
    "engines": {"google", "ml_dtypes", "numpy", "onnx", "onnxruntime"},
    "calibration": set(),
    "training": {"ml_dtypes", "numpy", "onnx", "safetensors", "torch"},
}
#: The room inside a room: what the GPU kernels need, at the top of their files too. The rest of the
#: runtime imports them inside functions only, and torch in one file only, of those who use a GPU.
PLUGINS = ROOT / "trt_runtime" / "plugins"
PLUGINS_NEED = {"torch", "triton"}
ON_DEVICE = ROOT / "trt_runtime" / "backends" / "device_buffer.py"
#: The only file of `engines` that needs torch: a checkpoint as the reference of a comparison.
TORCH_REFERENCE = ROOT / "engines" / "comparison" / "torch_reference.py"
#: Where the rooms are used that no wheel holds; neither is used by a room.
OUTSIDE = {"training": ("benchmarks", "tests", "training"), "benchmarks": ("benchmarks", "tests")}


def sources(room: str) -> Iterator[Path]:
    return (ROOT / room).rglob("*.py")


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every imported module, and whether it is imported with the file: outside every function.

    Imports that only a type checker sees are left out.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    inside = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) not in inside
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            yield node.module, id(node) not in inside


def within(module: str, allowed: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_their_neighbours(room: str) -> None:
    at_top, inside = MAY_IMPORT[room]
    for path in sources(room):
        for module, top in imports(path):
            if module.split(".")[0] in ROOMS:
                allowed = at_top if top else at_top | inside
                assert within(module, allowed), f"{path.relative_to(ROOT)} imports {module}"


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_need_only_their_dependencies(room: str) -> None:
    own = set(sys.stdlib_module_names) | set(ROOMS)
    for path in sources(room):
        for module, top in imports(path):
            package = module.split(".")[0]
            if top and package not in own:
                allowed = MAY_NEED[room] | (PLUGINS_NEED if PLUGINS in path.parents else set())
                allowed |= {"torch"} if path == TORCH_REFERENCE else set()
                assert package in allowed, f"{path.relative_to(ROOT)} needs {module}"


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_never_import_what_they_do_without(room: str) -> None:
    for path in sources(room):
        needed = PLUGINS in path.parents or path == ON_DEVICE
        never = NEVER[room] - (PLUGINS_NEED if needed else set())
        never -= {"torch"} if path == TORCH_REFERENCE else set()
        for module, _ in imports(path):
            assert not within(module, never), f"{path.relative_to(ROOT)} imports {module}"


def test_the_runtime_imports_its_plugins_only_when_asked_for_them() -> None:
    for path in sources("trt_runtime"):
        for module, top in imports(path):
            if top and within(module, {"trt_runtime.plugins"}):
                assert PLUGINS in path.parents, f"{path.relative_to(ROOT)} imports {module}"


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_is_not_shipped_is_imported_by_nothing_that_is(name: str) -> None:
    for folder in {*ROOMS, "benchmarks", "examples", "tests"} - set(OUTSIDE[name]):
        for path in sources(folder):
            for module, _ in imports(path):
                assert not within(module, {name}), f"{path.relative_to(ROOT)} imports {module}"


def test_the_wheel_holds_the_rooms_but_training() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert sorted(included) == sorted(f"{room}*" for room in ROOMS if room != "training")


def test_the_check_of_imports_sees_imports() -> None:
    """A rule that no import could break would be no rule."""
    seen = {module for path in sources("engines") for module, _ in imports(path)}
    assert {"onnx", "trt_runtime.manifest"} <= seen
    assert not within("export.bundle", MAY_IMPORT["trt_runtime"][0])
    assert {"training.speech", "benchmarks.recognition"} <= {
        module for path in sources("benchmarks") for module, _ in imports(path)
    }


def test_importing_the_runtime_is_light() -> None:
    code = (
        "import sys, trt_runtime; "
        "heavy = {'torch', 'transformers', 'onnx', 'onnxscript', 'onnxruntime', 'numpy'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert found.stdout.strip() == "[]"


def test_speaking_loads_nothing_of_the_exporter() -> None:
    code = (
        "import sys, trt_runtime; trt_runtime.synthesize('Hello.', max_steps=1); "
        "print(sorted({'torch', 'transformers', 'onnx', 'onnxscript', 'huggingface_hub', 'export', "
        "'engines'} & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("room", ROOMS)
def test_files_have_one_subject(room: str) -> None:
    for path in sources(room):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= 400, f"{path.relative_to(ROOT)}: {lines} lines"
        assert path.stem not in {"utils", "helpers", "common", "misc", "base"}


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "training/README.md",
        *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
    ],
)
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not target.startswith("http"):
            assert ((ROOT / name).parent / target).exists(), f"{name} links to {target}"


def test_every_direct_dependency_is_explained() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = set(project["dependencies"])
    for packages in project["optional-dependencies"].values():
        wanted |= set(packages)
    names = {re.split(r"[\[<>=; ]", item)[0] for item in wanted} - {"ming-trt"}
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    assert {name for name in names if f"| {name} |" not in text} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tables_are_what_was_measured(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert rendered(text, DOCUMENTS[document]) == text


def test_one_file_imports_tensorrt_and_one_cudas_bindings() -> None:
    """By any spelling: what differs from version to version is hidden in one place."""
    only = {
        r"import_module\(name\)|^\s*(import|from) tensorrt": "trt_runtime/tensorrt_library.py",
        r"^\s*(import|from) cuda\b": "trt_runtime/backends/cuda_memory.py",
    }
    for pattern, file in only.items():
        found = {
            str(path.relative_to(ROOT))
            for room in ("trt_runtime", "engines")
            for path in sources(room)
            if re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
        }
        assert found - {"trt_runtime/cli/doctor.py"} == {file}


def test_engines_of_tensorrt_need_no_torch() -> None:
    code = (
        "import sys, trt_runtime.backends.tensorrt; "
        "print(sorted({'torch', 'onnx', 'onnxruntime', 'tensorrt', 'tensorrt_rtx', 'cuda'} "
        "& set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert found.stdout.strip() == "[]"
