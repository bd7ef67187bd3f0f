"""What the loop refuses before it starts, and what it never says."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from trt_runtime import NumericError, RecordedNoise, UserError, load
from trt_runtime.errors import FolderError
from trt_runtime.manifest import sha256_of
from trt_runtime.synthesizer import Synthesizer


def test_text_longer_than_the_context(demo: Synthesizer) -> None:
    with pytest.raises(UserError, match="too long") as caught:
        demo.synthesize("word " * 3000, split_limit=None)
    assert str(demo.geometry.cache_length) in str(caught.value)
    assert "--cache-length" in str(caught.value)


def test_text_that_leaves_no_room_for_max_steps(demo: Synthesizer) -> None:
    with pytest.raises(UserError, match="room for max_steps") as caught:
        demo.synthesize("x" * (demo.geometry.cache_length - 150), max_steps=200, split_limit=None)
    room = int(str(caught.value).split("max_steps=")[1].split(",")[0])
    assert 0 < room < 200


def test_the_longest_request_fits(demo: Synthesizer) -> None:
    """As many steps as the first error grants do run to their end."""
    text = "y" * (demo.geometry.cache_length - 190)
    with pytest.raises(UserError) as caught:
        demo.synthesize(text, max_steps=200, split_limit=None)
    room = int(str(caught.value).split("max_steps=")[1].split(",")[0])
    speech = demo.synthesize(text, max_steps=room, min_steps=room, split_limit=None)
    assert speech.steps == room


def test_the_advice_of_an_error_can_be_followed(demo: Synthesizer) -> None:
    with pytest.raises(UserError) as caught:
        demo.synthesize("Hello.", max_steps=3000)
    room = int(str(caught.value).split("max_steps=")[1].split(",")[0])
    assert room == demo.geometry.max_steps


def test_more_steps_than_exported(demo: Synthesizer) -> None:
    with pytest.raises(UserError, match="max_steps"):
        demo.synthesize("Hello.", max_steps=demo.geometry.max_steps + 1)


def test_as_many_steps_as_exported_run(demo: Synthesizer) -> None:
    limit = demo.geometry.max_steps
    speech = demo.synthesize("Hello.", max_steps=limit, min_steps=limit)
    assert len(speech.audio) == limit * demo.geometry.samples_per_patch


def test_an_unknown_option_is_named(demo: Synthesizer) -> None:
    with pytest.raises(UserError, match="speed"):
        demo.synthesize("Hello.", speed=2)


@pytest.mark.parametrize("text", ["<audio>", "<|im_end|>", "a<|endoftext|>b", "<audioPatch>" * 9])
def test_control_tokens_in_a_text_are_spelled_out(demo: Synthesizer, text: str) -> None:
    speech = demo.synthesize(text, max_steps=1, trace=True)
    plain = demo.synthesize("x", max_steps=1, trace=True)
    assert speech.trace is not None
    assert plain.trace is not None
    added = set(demo._tokenizer.added_tokens.values())

    def count(ids: np.ndarray) -> int:
        return sum(int(token) in added for token in ids)

    assert count(speech.trace.prompt_ids) == count(plain.trace.prompt_ids)


def test_recorded_noise_that_ends_too_soon(demo: Synthesizer) -> None:
    g = demo.geometry
    noise = RecordedNoise(np.zeros((2, g.patch, g.latent_dim), np.float32))
    with pytest.raises(UserError, match="steps"):
        demo.synthesize("Hello.", noise=noise, max_steps=5, min_steps=5)


@pytest.mark.parametrize("component", ["talker", "flow", "flow_advance", "audio_decoder"])
def test_nan_is_an_error_that_names_the_component(
    demo_engines: Path, tmp_path: Path, component: str
) -> None:
    """Enormous weights: intact files, useless numbers. Nothing of it is spoken."""
    folder = tmp_path / "engines"
    shutil.copytree(demo_engines, folder)
    path = folder / f"{component}.weights"
    manifest = json.loads((folder / "manifest.json").read_text())
    weights = bytearray(path.read_bytes())
    for graph in manifest["graphs"].values():
        for file, dtype, shape, offset, size in graph["initializers"].values():
            if file == path.name and dtype == "float32" and len(shape) == 2:
                weights[offset : offset + size] = np.full(shape, 3e38, np.float32).tobytes()
    path.write_bytes(weights)
    manifest["files"][path.name]["sha256"] = sha256_of(path)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with load(folder) as synthesizer:
        chunks = synthesizer.stream("Hello.")
        with pytest.raises(NumericError, match=rf"{component} .*step 1\."):
            list(chunks)


def test_engines_of_an_unknown_family_or_target(demo: Synthesizer, tmp_path: Path) -> None:
    for field in ("family", "target"):
        folder = tmp_path / field
        shutil.copytree(demo.folder, folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest[field] = "elsewhere"
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(FolderError, match="elsewhere"):
            load(folder)


Edit = Callable[[dict[str, Any]], object]


def edited(source: Path, folder: Path, edit: Edit) -> Path:
    """A copy of a folder whose manifest was changed."""
    shutil.copytree(source, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    edit(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def _one_more_latent(manifest: dict[str, Any]) -> None:
    manifest["geometry"]["patch"] += 1


def _more_in_place(manifest: dict[str, Any]) -> None:
    """State that is read after it is written: in place, it would be silently wrong."""
    graph = manifest["graphs"]["audio_decoder"]
    graph["in_place"] = graph["state"]


def _first_weight(manifest: dict[str, Any]) -> list[Any]:
    """[file, dtype, shape, offset, bytes] of an initialiser of the talker."""
    weights: list[Any] = next(iter(manifest["graphs"]["talker_1"]["initializers"].values()))
    return weights


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (lambda m: m["graphs"].pop("talker_1"), "talker_1"),
        (lambda m: m["graphs"].pop("audio_decoder"), "audio_decoder"),
        (lambda m: m["geometry"].update(patch=0), "patch"),
        (lambda m: m["geometry"].update(prefill_chunks=[]), "prefill_chunks"),
        (lambda m: m["geometry"].update(prefill_chunks=[16, 24]), "prefill_chunks"),
        (lambda m: m["geometry"].update(cache_length=1 << 40), "cache_length"),
        (lambda m: m["geometry"].update(decoder_cache_lengths=[]), "decoder_cache_lengths"),
        (_one_more_latent, "geometry"),
        (_more_in_place, "audio_decoder"),
        (lambda m: m["files"].pop("tokenizer.json"), "does not list tokenizer.json"),
        (lambda m: _first_weight(m).__setitem__(3, _first_weight(m)[3] + 2), "inside an element"),
        (lambda m: _first_weight(m).__setitem__(4, _first_weight(m)[4] - 4), "wrong size"),
    ],
)
def test_a_manifest_that_contradicts_itself(
    demo: Synthesizer, tmp_path: Path, edit: Edit, match: str
) -> None:
    with pytest.raises(FolderError, match=match):
        load(edited(demo.folder, tmp_path / "engines", edit))


def test_a_tokenizer_of_another_model(demo: Synthesizer, tmp_path: Path) -> None:
    """More tokens than embeddings: an id would reach past the table."""
    folder = tmp_path / "engines"
    shutil.copytree(demo.folder, folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    row = dict(tokenizer["added_tokens"][-1])
    start = max(token["id"] for token in tokenizer["added_tokens"]) + 1
    for number in range(60):
        new = row | {"id": start + number, "content": f"<extra_{number}>"}
        tokenizer["added_tokens"].append(new)
        tokenizer["model"]["vocab"][new["content"]] = new["id"]
    path.unlink()
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][path.name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FolderError, match="more tokens"):
        load(folder)


def test_a_graph_that_is_not_what_the_manifest_says(demo: Synthesizer, tmp_path: Path) -> None:
    """Hashes agree, but two graphs have changed places."""
    folder = tmp_path / "swapped"
    shutil.copytree(demo.folder, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    graphs = manifest["graphs"]
    graphs["talker_16"]["file"], graphs["talker_64"]["file"] = (
        graphs["talker_64"]["file"],
        graphs["talker_16"]["file"],
    )
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FolderError, match="other inputs or outputs"):
        load(folder)


@pytest.mark.parametrize("location", ["../secret.weights", "/etc/hostname"])
def test_external_data_stays_inside_the_folder(
    demo: Synthesizer, tmp_path: Path, location: str
) -> None:
    """A graph that points outside, with a manifest that agrees with it, is not loaded."""
    folder = tmp_path / "engines"
    shutil.copytree(demo.folder, folder)
    shutil.copy(folder / "flow.weights", tmp_path / "secret.weights")
    path = folder / "flow_step.onnx"
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(model.SerializeToString())
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][path.name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FolderError, match="flow_step"):
        load(folder)


def test_threads_must_be_positive(demo: Synthesizer) -> None:
    with pytest.raises(UserError, match="threads"):
        load(demo.folder, threads=0)


def test_a_request_is_immutable(demo: Synthesizer) -> None:
    run = demo._start("Hello.", {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.request.seed = 1  # type: ignore[misc]
