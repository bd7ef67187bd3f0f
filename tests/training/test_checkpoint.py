"""What is written as a checkpoint is what the exporter reads back."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from export.checkpoint import Checkpoint
from export.parameters import Parameter
from export.weights import write_component
from training.checkpoint import SCALE, SHAPE, main, write_checkpoint
from training.codec import make_codec
from training.shape import config, sizes_of
from training.speaker_network import SpeakerNetwork, onnx_bytes
from training.speech import PHONES
from training.talker import make_voice
from training.tensor_files import save_weights, shipped_parameters
from trt_runtime.errors import UserError

#: No power of two: dividing by it is seen.
DEVIATION = 1.7
ENCODER, DECODER = "audio_encoder.latent_", "audio_decoder.latent_weight"


def table(checkpoint: Checkpoint) -> tuple[Parameter, ...]:
    return checkpoint.family.components(checkpoint.sizes)


def read_back(folder: Path, place: Path) -> dict[str, np.ndarray]:
    """Every parameter, as the exporter makes it of the checkpoint's tensors."""
    checkpoint = Checkpoint.open(folder)
    found: dict[str, np.ndarray] = {}
    for component in checkpoint.family.component_names(checkpoint.sizes):
        rows = [row for row in table(checkpoint) if row.component == component]
        stored = write_component(checkpoint, rows, place / component)
        for name, entry in stored.items():
            dtype = np.dtype(getattr(ml_dtypes, entry.dtype, None) or entry.dtype)
            raw = (place / component).read_bytes()[entry.offset : entry.offset + entry.bytes]
            found[name] = np.frombuffer(raw, dtype).reshape(entry.shape).astype(np.float32)
    return found


@pytest.fixture(scope="module", params=[(1, 1), (4, 32)], ids=["1-1", "4-32"])
def shape(request: pytest.FixtureRequest) -> tuple[int, int]:
    return request.param


@pytest.fixture(scope="module")
def trained(shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """Random values by the names of the modules that are trained."""
    draw = np.random.default_rng(1)
    sizes = sizes_of(*shape)
    modules = make_codec(*sizes, 1), make_voice(*sizes, len(PHONES), 1)
    named = [pair for module in modules for pair in shipped_parameters(module)]
    return {name: draw.standard_normal(value.shape, np.float32) for name, value in named}


@pytest.fixture(scope="module")
def read(
    shape: tuple[int, int], trained: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, np.ndarray]:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder, config(*shape), trained, DEVIATION)
    return read_back(folder, tmp_path_factory.mktemp("raw"))


def rounded(value: np.ndarray) -> np.ndarray:
    return value.astype(ml_dtypes.bfloat16).astype(np.float32)


def test_the_exporter_reads_what_was_trained(
    trained: dict[str, np.ndarray], read: dict[str, np.ndarray]
) -> None:
    assert read.keys() == trained.keys()
    for name, value in trained.items():
        if name.startswith(ENCODER) or name == DECODER:
            continue
        exact = name.endswith((".inverse_frequencies", ".window"))
        np.testing.assert_array_equal(read[name], value if exact else rounded(value), err_msg=name)


def test_the_latents_scale_is_in_both_ends_of_the_codec(
    trained: dict[str, np.ndarray], read: dict[str, np.ndarray]
) -> None:
    """Latents of the checkpoint are the trained ones over the deviation, and decode the same."""
    draw = np.random.default_rng(2)
    hidden = draw.standard_normal((5, len(trained[f"{ENCODER}weight"])))
    dim = trained[DECODER].shape[0]

    def moments(values: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        out = hidden @ values[f"{ENCODER}weight"] + values[f"{ENCODER}bias"]
        return out[:, :dim], out[:, dim:]

    mean, spread = moments(trained)
    found_mean, found_spread = moments(read)
    np.testing.assert_allclose(found_mean, mean / DEVIATION, atol=0.15)
    np.testing.assert_allclose(found_spread, spread - 2 * np.log(DEVIATION), atol=0.15)
    decoded, found = mean @ trained[DECODER], found_mean @ read[DECODER]
    assert np.abs(found - decoded).max() < 0.02 * np.abs(decoded).max()
    exact = rounded(trained[f"{ENCODER}weight"][:, :dim] / np.float32(DEVIATION))
    np.testing.assert_array_equal(read[f"{ENCODER}weight"][:, :dim], exact)
    np.testing.assert_array_equal(read[DECODER], rounded(trained[DECODER] * np.float32(DEVIATION)))


@pytest.mark.parametrize(
    ("change", "found"),
    [("shape", "shape"), ("missing", "no such tensor"), ("nan", "NaN"), ("scale", "0.0")],
)
def test_what_does_not_fit_is_refused_and_nothing_written(
    shape: tuple[int, int], trained: dict[str, np.ndarray], tmp_path: Path, change: str, found: str
) -> None:
    name = "talker.layers.0.qkv_weight"
    values = dict(trained)
    if change == "shape":
        values[name] = values[name].T
    elif change == "missing":
        del values[name]
    elif change == "nan":
        values[name] = values[name].copy()
        values[name][3, 4] = np.nan
    folder = tmp_path / "out"
    with pytest.raises(UserError, match="deviation" if change == "scale" else name) as caught:
        write_checkpoint(folder, config(*shape), values, 0.0 if change == "scale" else DEVIATION)
    assert found in caught.value.found
    assert not folder.exists()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    sizes = sizes_of(1, 1)
    save_weights(folder / "codec", make_codec(*sizes, 1))
    beside = {SCALE: torch.tensor(DEVIATION), SHAPE: torch.tensor([1, 1])}
    save_weights(folder / "voice", make_voice(*sizes, len(PHONES), 1), **beside)
    network = SpeakerNetwork(torch.Generator().manual_seed(1))
    (folder / "speaker-encoder").write_bytes(onnx_bytes(network))
    return {name: folder / name for name in ("codec", "voice", "speaker-encoder")}


def run(files: dict[str, Path], out: Path, *more: str) -> int:
    given = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    return main([*given, "--out", str(out), *more])


def test_the_command_writes_a_whole_checkpoint(files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "checkpoint"
    assert run(files, out) == 0
    names = ["campplus.onnx", "config.json", "model.safetensors"]
    assert sorted(path.name for path in out.iterdir()) == [
        *names, "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert (out / names[0]).read_bytes() == files["speaker-encoder"].read_bytes()
    assert "not Ming's weights" in json.loads((out / names[1]).read_text())["ming_trt_note"]
    kinds = {value.dtype.name for value in load_file(out / names[2]).values()}
    assert kinds == {"bfloat16", "float32"}
    before = (out / names[2]).read_bytes()
    assert run(files, out) == 0
    assert (out / names[2]).read_bytes() == before
    assert not any("guides" in name for name in load_file(out / names[2]))


@pytest.mark.parametrize("wrong", ["codec", "voice", "speaker-encoder"])
def test_files_that_are_missing(
    files: dict[str, Path], tmp_path: Path, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(files | {wrong: tmp_path / "missing"}, tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert "missing cannot be read" in said
    assert "What to do:" in said
    assert not (tmp_path / "out").exists()


def test_files_of_something_else(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    save_file({"weight": np.zeros(3, np.float32)}, other)
    for name, said in (("codec", "no such tensor"), ("voice", SCALE)):
        assert run(files | {name: other}, tmp_path / "out") == 2
        assert said in capsys.readouterr().err
    other.write_bytes(b"text")
    assert run(files | {"codec": other}, tmp_path / "out") == 2
    assert "cannot be read" in capsys.readouterr().err
    assert run(files, tmp_path / "out", "--patch", "4", "--history", "32") == 2
    assert "--patch 1 --history 1, as it was trained" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"text", b"half"])
def test_a_speaker_encoder_that_export_would_refuse(
    files: dict[str, Path], tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = files["speaker-encoder"].read_bytes()
    other = tmp_path / "other"
    other.write_bytes(whole[: len(whole) // 2] if content == b"half" else content)
    assert run(files | {"speaker-encoder": other}, tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert f"{other} is no speaker encoder" in said
    assert "python -m training.speaker_encoder" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [SCALE, SHAPE])
@pytest.mark.parametrize("shape", [[], [1], [2], [3], [1, 2], [0]])
def test_what_a_voice_keeps_beside_its_weights_has_one_shape(
    files: dict[str, Path], tmp_path: Path, name: str, shape: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    other = tmp_path / "other"
    value = np.ones(shape, np.float32 if name == SCALE else np.int64)
    save_file(load_file(files["voice"]) | {name: value}, other)
    wanted = [] if name == SCALE else [2]
    assert run(files | {"voice": other}, tmp_path / "out") == (0 if shape == wanted else 2)
    said = capsys.readouterr().err
    assert (f"{name} of shape {wanted}" in said) == (shape != wanted)
    assert (tmp_path / "out").exists() == (shape == wanted)
