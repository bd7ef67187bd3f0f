from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trt_runtime.contract import TensorSpec
from trt_runtime.errors import FolderError
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import (
    BUNDLE,
    ENGINES,
    FORMAT_VERSION,
    MANIFEST,
    ComponentEntry,
    GraphEntry,
    Manifest,
    StoredTensor,
    check_files,
    read_manifest,
    sha256_of,
)

LISTS: dict[str, Any] = {
    "prefill_chunks": (4, 16),
    "decoder_cache_lengths": (8,),
    "encoder_frame_cache_lengths": (8,),
    "encoder_latent_cache_lengths": (),
}
SIZES: dict[str, Any] = {name: 2 for name in Geometry.__dataclass_fields__ if name not in LISTS}
GEOMETRY = Geometry(**SIZES | {"cache_length": 64} | LISTS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An engine folder of two files."""
    path = tmp_path / "engines"
    path.mkdir()
    (path / "a.onnx").write_bytes(b"a graph")
    (path / "a.weights").write_bytes(bytes(64))
    graph = GraphEntry(
        "a.onnx",
        "a",
        (TensorSpec("x", "float32", (1, 2)), TensorSpec("s", "float32", (3,))),
        (TensorSpec("y", "float32", (1, 2)), TensorSpec("s_next", "float32", (3,))),
        state=("s",),
        in_place=("s",),
        initializers={"w": StoredTensor("a.weights", "float32", (4, 4), 0, 64)},
    )
    files = {p.name: (p.stat().st_size, sha256_of(p)) for p in path.iterdir()}
    manifest = Manifest(
        ENGINES, "dense", GEOMETRY, {"a": graph}, files, {"tensors": "abc"}, target="cpu"
    )
    (path / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return path


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads((folder / MANIFEST).read_text())
    change(data)
    (folder / MANIFEST).write_text(json.dumps(data))


def test_written_and_read_again_is_the_same(folder: Path):
    manifest = read_manifest(folder)
    assert manifest.geometry == GEOMETRY
    assert manifest.graphs["a"].initializers["w"].shape == (4, 4)
    assert manifest.to_json() == (folder / MANIFEST).read_text()
    check_files(folder, manifest)


def test_no_folder_says_how_to_make_one(tmp_path: Path):
    with pytest.raises(FolderError, match=r"No such folder: .*none(?s:.*)build-engines .*none"):
        read_manifest(tmp_path / "none")


def test_checkpoint_instead_of_engines_says_how_to_build(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FolderError, match=r"Found: a checkpoint(?s:.*)build-engines .* --out"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1, 2]", b"\xff\xfe", b"nothing", b"[" * 100_000], ids=range(6)
)
def test_corrupt_json_is_named(folder: Path, text: bytes):
    (folder / MANIFEST).write_bytes(text)
    with pytest.raises(
        FolderError, match=r"manifest\.json cannot be read(?s:.*)build the folder again"
    ):
        read_manifest(folder)


def test_foreign_manifest_is_named(folder: Path):
    (folder / MANIFEST).write_text('{"name": "a web app", "icons": []}')
    with pytest.raises(
        FolderError, match=r"not a manifest of this project(?s:.*)ming-trt-engines(?s:.*)None"
    ):
        read_manifest(folder)


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        (ENGINES, r"build-engines SOURCE --target cpu --out .*engines"),
        (BUNDLE, r"python -m export CHECKPOINT .*engines"),
    ],
)
def test_other_format_version_says_which_and_the_command(folder: Path, kind: str, command: str):
    edit(folder, lambda data: data.update(format=kind, format_version=FORMAT_VERSION + 1))
    with pytest.raises(
        FolderError,
        match=rf"Expected: format version {FORMAT_VERSION}(?s:.*)"
        rf"Found: format version {FORMAT_VERSION + 1}(?s:.*){command}",
    ):
        read_manifest(folder)


@pytest.mark.parametrize(
    "field",
    ["family", "geometry", "graphs", "files", "source", "target", "machine", "precision", "build"],
)
def test_missing_field_is_named(folder: Path, field: str):
    edit(folder, lambda data: data.pop(field))
    with pytest.raises(FolderError, match=rf"damaged(?s:.*){field}(?s:.*)build the folder again"):
        read_manifest(folder)


@pytest.mark.parametrize("name", ["hop_length", "prefill_chunks"])
def test_missing_size_is_named(folder: Path, name: str):
    edit(folder, lambda data: data["geometry"].pop(name))
    with pytest.raises(FolderError, match=rf"damaged(?s:.*){name}"):
        read_manifest(folder)


@pytest.mark.parametrize("value", ["16", -1, 1.5, True, None, [16]])
def test_a_size_is_a_whole_number(folder: Path, value: object):
    edit(folder, lambda data: data["geometry"].update(hop_length=value))
    with pytest.raises(FolderError, match=r"damaged(?s:.*)hop_length"):
        read_manifest(folder)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/b", "..", ".hidden", "", "a\\b", "a\nb", "manifest.json"]
)
def test_file_names_cannot_leave_the_folder(folder: Path, name: str):
    def rename(data: dict[str, Any]) -> None:
        data["files"][name] = data["files"].pop("a.onnx")
        data["graphs"]["a"]["file"] = name

    edit(folder, rename)
    with pytest.raises(FolderError, match=r"damaged(?s:.*)not a plain file name"):
        read_manifest(folder)


def test_weights_cannot_leave_the_folder(folder: Path):
    def move(data: dict[str, Any]) -> None:
        data["graphs"]["a"]["initializers"]["w"][0] = "../a.weights"

    edit(folder, move)
    with pytest.raises(FolderError, match=r"'\.\./a\.weights' is not a plain file name"):
        read_manifest(folder)


def test_graph_of_an_unlisted_file_is_named(folder: Path):
    edit(folder, lambda data: data["files"].pop("a.onnx"))
    with pytest.raises(FolderError, match=r"graph a uses a\.onnx"):
        read_manifest(folder)


def test_initialiser_past_the_end_is_named(folder: Path):
    def move(data: dict[str, Any]) -> None:
        data["graphs"]["a"]["initializers"]["w"][3] = 1

    edit(folder, move)
    with pytest.raises(FolderError, match=r"w of a ends past a\.weights"):
        read_manifest(folder)


def test_state_that_is_no_input_is_named(folder: Path):
    edit(folder, lambda data: data["graphs"]["a"].update(state=["s", "t"]))
    with pytest.raises(FolderError, match="graph a names state"):
        read_manifest(folder)


REDO = r"(?s:.*)build-engines SOURCE --target cpu --out .*engines"


def test_truncated_file_is_named(folder: Path):
    (folder / "a.weights").write_bytes(bytes(63))
    with pytest.raises(
        FolderError, match=rf"a\.weights has another size(?s:.*)64 bytes(?s:.*)63 bytes{REDO}"
    ):
        check_files(folder, read_manifest(folder))


def test_changed_file_is_named(folder: Path):
    before = sha256_of(folder / "a.weights")
    (folder / "a.weights").write_bytes(bytes(63) + b"1")
    after = sha256_of(folder / "a.weights")
    with pytest.raises(
        FolderError, match=rf"a\.weights has changed(?s:.*){before}(?s:.*){after}{REDO}"
    ):
        check_files(folder, read_manifest(folder))


def test_missing_file_is_named(folder: Path):
    (folder / "a.onnx").unlink()
    with pytest.raises(FolderError, match=rf"a\.onnx is missing(?s:.*)7 bytes{REDO}"):
        check_files(folder, read_manifest(folder))


def test_linked_file_is_refused(folder: Path, tmp_path: Path):
    (folder / "a.onnx").rename(tmp_path / "a.onnx")
    (folder / "a.onnx").symlink_to(tmp_path / "a.onnx")
    with pytest.raises(FolderError, match=rf"a\.onnx is missing or not a plain file{REDO}"):
        check_files(folder, read_manifest(folder))


def test_damaged_bundle_says_how_to_export_again(folder: Path):
    edit(folder, lambda data: data.update(format=BUNDLE))
    (folder / "a.onnx").write_bytes(b"b graph")
    with pytest.raises(
        FolderError, match=r"has changed(?s:.*)python -m export CHECKPOINT .*engines"
    ):
        check_files(folder, read_manifest(folder))


def test_profiles_and_operators_of_an_engine_are_read(folder: Path):
    profiles = ((1, 1), (2, 1), (1, 16))
    forms = {"CachedAttention": "native"}
    entry = ComponentEntry(backend="tensorrt", profiles=profiles, operators=forms)
    manifest = replace(read_manifest(folder), components={"a": entry})
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    assert read_manifest(folder).components["a"] == entry


@pytest.mark.parametrize("profile", [[1], [1, 0], [0, 1], [1, 1, 1], "11", [1, "1"], [True, 1]])
def test_a_profile_is_two_numbers(folder: Path, profile: object):
    entry = {"sizes": None, "backend": "", "tensors": {}, "operators": {}, "profiles": [profile]}
    edit(folder, lambda data: data["components"].update(a=entry))
    with pytest.raises(FolderError, match="damaged"):
        read_manifest(folder)
