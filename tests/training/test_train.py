"""Both stages by their commands: a few steps on tones, on the CPU."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.training.conftest import program
from training import loop
from training.arguments import device_of, seed
from training.checkpoint import SCALE, SHAPE
from training.codec import make_codec, reconstruction_error
from training.generate import main as generate
from training.shape import sizes_of
from training.shards import read_shard, shard_path
from training.speech import PHONES
from training.talker import make_voice
from training.tensor_files import shipped_parameters
from training.train import main
from trt_runtime.errors import UserError

STEPS = 20
#: The rate warms up over 200 steps: these few would hardly move at the real one.
PEAK = {"codec": 0.03, "voice": 0.02}


@pytest.fixture
def _everything_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are logged, and weights saved, every 10 steps."""
    monkeypatch.setattr(loop, "_LOG_SECONDS", -1.0)
    monkeypatch.setattr(loop, "_SAVE_SECONDS", -1.0)


def arguments(stage: str, steps: int = STEPS, **options: object) -> list[str]:
    batch = {"codec": 0.03, "voice": 0.01}[stage]
    given = {"device": "cpu", "steps": steps, "batch": batch, "peak": PEAK[stage]} | options
    return [stage, *(p for k, v in given.items() for p in (f"--{k.replace('_', '-')}", str(v)))]


@pytest.fixture
def given(speech: Path, codec: Path, speakers: Path) -> dict[str, dict[str, object]]:
    """What each stage needs."""
    return {
        "codec": {"speech": speech},
        "voice": {"speech": speech, "codec": codec, "speakers": speakers},
    }


def losses(output: str, part: str) -> list[float]:
    return [float(value) for value in re.findall(rf" {part} (-?\d+\.\d+)", output)]


@pytest.mark.usefixtures("_everything_is_said")
def test_the_codec_learns(
    given: dict[str, dict[str, object]], speech: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert main(arguments("codec", out=tmp_path, **given["codec"])) == 0
    said = capsys.readouterr().out
    for part in ("bins", "mels", "held-out mel error"):
        found = losses(said, part)
        assert len(found) == STEPS // 10
        assert found[-1] < found[0], part
    audio = np.concatenate([read_shard(shard_path(speech, index))["audio"] for index in range(2)])
    held_out = torch.as_tensor(audio[: len(audio) // 2])
    assert found[-1] < 0.9 * reconstruction_error(make_codec(*sizes_of(1, 1), 1), held_out)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "codec.resume.safetensors", "codec.safetensors",
    ]  # fmt: skip
    weights = load_file(tmp_path / "codec.safetensors")
    assert {name.split(".")[0] for name in weights} == {"audio_encoder", "audio_decoder"}
    assert all(value.dtype == torch.float32 for value in weights.values())


@pytest.mark.usefixtures("_everything_is_said")
@pytest.mark.parametrize("shape", [(1, 1), (4, 32)])
def test_the_voice_learns(
    given: dict[str, dict[str, object]], tmp_path: Path, shape: tuple[int, int],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    patch, history = shape
    options = given["voice"] | {"patch": patch, "history": history}
    assert main(arguments("voice", out=tmp_path, **options)) == 0
    said = capsys.readouterr().out
    for part in ("flow", "phones", "latents", "stop"):
        found = losses(said, part)
        assert len(found) == STEPS // 10
        assert found[-1] < found[0], part
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "voice.resume.safetensors", "voice.safetensors",
    ]  # fmt: skip
    weights = load_file(tmp_path / "voice.safetensors")
    assert weights.pop(SHAPE).tolist() == [patch, history]
    assert 0 < float(weights.pop(SCALE)) < 10
    voice = make_voice(*sizes_of(*shape), len(PHONES), 1)
    start = dict(shipped_parameters(voice))
    assert weights.keys() == start.keys()
    moved = [name for name, value in weights.items() if not torch.equal(value, start[name])]
    constant = {"flow.inverse_frequencies", "aggregator.inverse_frequencies"}
    assert set(start) - set(moved) == constant


@pytest.mark.usefixtures("_everything_is_said")
def test_a_codec_that_was_interrupted_comes_to_the_very_same_weights(
    given: dict[str, dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    monkeypatch.setattr(loop, "_QUEUED", 3)
    assert main(arguments("codec", 6, out=whole, **given["codec"])) == 0
    save = loop.Loop._save

    def end(self: loop.Loop) -> None:
        save(self)
        if self.done == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop.Loop, "_save", end)
    assert main(arguments("codec", 6, out=parts, **given["codec"])) == 130
    assert [path.name for path in parts.iterdir()] == ["codec.resume.safetensors"]
    assert main(arguments("codec", 6, out=parts, **given["codec"])) == 0
    for path in whole.iterdir():
        assert path.read_bytes() == (parts / path.name).read_bytes()


def test_speech_that_appears_while_training_is_taken(
    given: dict[str, dict[str, object]], speech: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The second shard comes with the first step, and is taken when the host looks again."""
    shards, rate = tmp_path / "speech", loop.rate_at
    shards.mkdir()
    shutil.copy(shard_path(speech, 0), shards)

    def appear(*arguments: object) -> float:
        shutil.copy(shard_path(speech, 1), shards)
        return rate(*arguments)

    monkeypatch.setattr(loop, "rate_at", appear)
    options = given["voice"] | {"first_shards": 1, "speech": shards, "out": tmp_path / "out"}
    assert main(arguments("voice", 2, **options)) == 0
    said = capsys.readouterr().out
    parts = ("speech-000.npz: utterances", "step 0 of 2", "speech-001.npz: utterances", "done")
    places = [said.index(part) for part in parts]
    assert places == sorted(places)


def test_weights_to_start_from(
    given: dict[str, dict[str, object]], codec: Path, tmp_path: Path
) -> None:
    """At a rate near zero the weights stay those that were given."""
    options = given["codec"] | {"start": codec, "peak": 1e-12, "seed": 5}
    assert main(arguments("codec", 1, out=tmp_path, **options)) == 0
    ours, theirs = load_file(tmp_path / "codec.safetensors"), load_file(codec)
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in theirs)


def test_an_empty_bucket_is_left_alone(
    given: dict[str, dict[str, object]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of the tones are short: a step on no utterance would be a loss of 0 / 0."""
    assert main(arguments("voice", 1, out=tmp_path, **given["voice"])) == 0
    counts = re.findall(r"utterances (\d+), (\d+), (\d+)", capsys.readouterr().out)[-1]
    assert int(counts[0]) > 0
    assert int(counts[2]) == 0
    weights = load_file(tmp_path / "voice.safetensors")
    assert all(bool(value.isfinite().all()) for value in weights.values())


WRONG = [
    ("codec", "speech", "missing", "no speech in"),
    ("codec", "start", "missing", "cannot be read"),
    ("codec", "start", "text", "cannot be read"),
    ("codec", "start", "tensors", "no such tensor"),
    ("codec", "out", "text", "cannot be made"),
    ("voice", "speech", "missing", "no speech in"),
    ("voice", "codec", "missing", "cannot be read"),
    ("voice", "codec", "tensors", "no such tensor"),
    ("voice", "start", "tensors", "no such tensor"),
    ("voice", "speakers", "missing", "no speaker embeddings"),
    ("voice", "speakers", "text", "no speaker embeddings"),
    ("voice", "speakers", "arrays", "shape [3, 5]"),
    ("voice", "speakers", "truncated", "no speaker embeddings"),
    ("voice", "speakers", "one", "an array without a name"),
    ("voice", "speakers", "words", "<U4 that are no finite numbers"),
    ("voice", "speakers", "nan", "no finite numbers"),
    ("voice", "speakers", "none", "shape [0, 192]"),
    ("voice", "speakers", "bytes", "rms, which is no array"),
]


def wrong_speakers(folder: Path) -> None:
    """Files that are no embeddings, by the names that WRONG has for them."""
    whole = np.ones((3, 192), np.float32)
    others = {"words": np.full((3, 192), "word"), "nan": whole * np.nan, "none": whole[:0]}
    for name, value in others.items():
        with (folder / name).open("wb") as file:
            np.savez(file, rms=value, slt=value)
    with (folder / "one").open("wb") as file:
        np.save(file, whole)
    with zipfile.ZipFile(folder / "bytes", "w") as archive:
        archive.writestr("rms.npy", b"text")
        archive.writestr("slt.npy", b"text")
    content = (folder / "nan").read_bytes()
    (folder / "truncated").write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(("stage", "option", "name", "said"), WRONG)
def test_what_a_stage_cannot_use(
    given: dict[str, dict[str, object]], tmp_path: Path, stage: str, option: str, name: str,
    said: str, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "text").write_text("no weights")
    save_file({"weight": torch.zeros(3)}, tmp_path / "tensors")
    with (tmp_path / "arrays").open("wb") as file:
        np.savez(file, rms=np.zeros((3, 5), np.float32), slt=np.zeros((3, 5), np.float32))
    wrong_speakers(tmp_path)
    options = {"out": tmp_path / "out"} | given[stage] | {option: tmp_path / name}
    assert main(arguments(stage, 1, **options)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "What to do:" in error
    assert not any((tmp_path / "out").glob("*"))


@pytest.mark.parametrize("name", ["cuda:99", "nonsense", "meta", "mps", "xla"])
def test_a_device_that_is_not_there(
    given: dict[str, dict[str, object]], tmp_path: Path, name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    options = given["codec"] | {"device": name, "out": tmp_path / "out"}
    assert main(arguments("codec", 1, **options)) == 2
    error = capsys.readouterr().err
    assert f"no device {name} to train on" in error
    assert "--device cpu" in error
    assert not (tmp_path / "out").exists()


def test_devices_of_other_kinds_are_not_trained_on() -> None:
    assert device_of("cpu").type == "cpu"
    with pytest.raises(UserError, match="the kind meta, which is not trained on"):
        device_of("meta")


@pytest.mark.parametrize("module", ["train", "speaker_encoder"])
@pytest.mark.parametrize("value", ["-1", str(1 << 63), "9" * 5000, "1.5", "x"])
def test_seeds_that_no_generator_takes(
    module: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = __import__(f"training.{module}", fromlist=["main"])
    given = {
        "train": ["codec", "--speech", "s", "--out", "o", "--steps", "1"],
        "speaker_encoder": ["o", "--program", "p"],
    }[module]
    with pytest.raises(SystemExit) as caught:
        command.main([*given, "--seed", value])
    assert caught.value.code == 2
    assert "argument --seed" in capsys.readouterr().err


def test_the_largest_seed_is_taken(given: dict[str, dict[str, object]], tmp_path: Path) -> None:
    assert seed("0") == 0
    options = given["codec"] | {"seed": (1 << 63) - 1, "out": tmp_path}
    assert main(arguments("codec", 1, **options)) == 0


def test_a_shard_that_is_damaged(
    given: dict[str, dict[str, object]], speech: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    shards = tmp_path / "speech"
    shutil.copytree(speech, shards)
    shard_path(shards, 1).write_bytes(b"half")
    for stage in ("codec", "voice"):
        options = given[stage] | {"speech": shards, "out": tmp_path / "out"}
        assert main(arguments(stage, 1, **options)) == 2
        assert f"{shard_path(shards, 1)} is no shard of speech" in capsys.readouterr().err
    assert not any((tmp_path / "out").iterdir())


def test_too_little_speech(
    flite: Path, given: dict[str, dict[str, object]], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "texts").write_text("held out\nice\n")
    shards = tmp_path / "speech"
    places = {"program": flite, "out": shards, "texts": tmp_path / "texts"}
    assert generate([part for k, v in places.items() for part in (f"--{k}", str(v))]) == 0
    options = given["codec"] | {"speech": shards, "out": tmp_path / "out"}
    assert main(arguments("codec", 1, **options)) == 2
    assert "too little speech" in capsys.readouterr().err
    options = given["voice"] | {"speech": shards, "out": tmp_path / "out", "most_latents": 66}
    assert main(arguments("voice", 1, **options)) == 2
    assert "no utterance to train on" in capsys.readouterr().err
    assert not any((tmp_path / "out").iterdir())


def test_speech_that_nothing_follows(tmp_path: Path, flite: Path) -> None:
    """A folder of the generator's that it never wrote a shard into."""
    silent = program(tmp_path / "mute", "#!/bin/sh\nexit 1\n")
    (tmp_path / "texts").write_text("held out\nice\n")
    places = {"program": silent, "out": tmp_path / "speech", "texts": tmp_path / "texts"}
    assert generate([part for k, v in places.items() for part in (f"--{k}", str(v))]) == 2
    (tmp_path / "speech" / "complete").touch()
    options = {"speech": tmp_path / "speech", "out": tmp_path / "out"}
    assert main(arguments("codec", 1, **options)) == 2


@pytest.mark.parametrize(
    "wrong", [["--steps", "0"], ["--seconds", "nan"], ["--steps", "1", "--seconds", "1"], []]
)
def test_a_length_that_is_none(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["codec", "--speech", "s", "--out", "o", *wrong])
    assert caught.value.code == 2


MODULES = ("train", "generate", "checkpoint", "speaker_encoder", "voices")


@pytest.mark.parametrize("module", MODULES)
def test_help_names_the_command(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = __import__(f"training.{module}", fromlist=["main"])
    with pytest.raises(SystemExit) as caught:
        command.main(["--help"])
    assert caught.value.code == 0
    assert f"python -m training.{module}" in capsys.readouterr().out


def test_the_command_is_a_command_and_its_help_needs_no_torch() -> None:
    code = (
        "import runpy, sys; sys.argv = ['train', '--help']\n"
        "try: runpy.run_module('training.train', run_name='__main__')\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "codec" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 False"
