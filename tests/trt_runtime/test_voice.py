"""A voice's values, its file, and what a stranger's file may not do."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save

import trt_runtime.voice_file
from trt_runtime.errors import UserError
from trt_runtime.voice import LARGEST_FILE, Voice

ROOT = Path(__file__).resolve().parents[2]
ARRAYS = ("speaker_embedding", "latent_mean", "latent_std")
METADATA = {
    "format": "ming-trt-voice", "format_version": "1", "family": "ming-omni-tts-dense",
    "checkpoint": "ab" * 32, "sample_rate": "44100", "patch": "4", "samples": "28000",
    "transcript": "你好, said she.\nThen nothing.", "warnings": '["it is short"]',
}  # fmt: skip


def values(**changes):
    random = np.random.default_rng(0)
    fields = {
        "family": METADATA["family"], "checkpoint": METADATA["checkpoint"], "sample_rate": 44100,
        "patch": 4, "transcript": METADATA["transcript"],
        "speaker_embedding": random.standard_normal(192, np.float32),
        "latent_mean": random.standard_normal((8, 16), np.float32),
        "latent_std": random.random((8, 16), np.float32) + 0.5,
        "samples": 28000, "warnings": ("it is short",),
    }  # fmt: skip
    return fields | changes


def a_voice(**changes):
    return Voice(**values(**changes))


NO_LATENTS = {"transcript": None, "latent_mean": None, "latent_std": None}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_same(one, other):
    for field in dataclasses.fields(Voice):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert np.array_equal(a, b) if field.name in ARRAYS and a is not None else a == b


@pytest.mark.parametrize(
    "changes",
    [{}, NO_LATENTS, {"speaker_embedding": None}, {"checkpoint": "", "samples": 0, "warnings": ()}],
)
def test_what_is_saved_is_loaded(changes, tmp_path):
    voice = a_voice(**changes)
    path = tmp_path / "a.safetensors"
    voice.save(path)
    loaded = Voice.load(path)
    assert_same(voice, loaded)
    assert loaded.to_bytes() == path.read_bytes() == voice.to_bytes()
    assert names(tmp_path) == ["a.safetensors"]


def test_the_format_is_the_one_that_is_documented(tmp_path):
    path = tmp_path / "a.safetensors"
    a_voice().save(path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert header["__metadata__"] == METADATA
    tensors = load_tensors(data)
    assert {name: tensors[name].shape for name in tensors} == {
        "speaker_embedding": (192,), "latent_mean": (8, 16), "latent_std": (8, 16),
    }  # fmt: skip
    for key in METADATA:
        assert f"| {key} |" in trt_runtime.voice_file.__doc__


def test_equal_voices_are_equal_bytes_in_every_process():
    program = (
        "import hashlib, numpy as np\n"
        "from trt_runtime.voice import Voice\n"
        "ones = np.ones((4, 2), np.float32)\n"
        "voice = Voice('f', '', 1, 4, 'a', None, ones, ones)\n"
        "print(hashlib.sha256(voice.to_bytes()).hexdigest())\n"
    )
    run = [sys.executable, "-c", program]
    digests = {subprocess.check_output(run, cwd=ROOT, text=True) for _ in range(3)}
    assert len(digests) == 1


def test_arrays_are_read_only_copies():
    embedding = np.ones(192, np.float32)
    voice = a_voice(speaker_embedding=embedding)
    embedding[:] = 7
    assert voice.speaker_embedding is not None
    assert (voice.speaker_embedding == 1).all()
    for name in ARRAYS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(voice, name)[0] = 0
    fortran = np.asfortranarray(values()["latent_mean"])
    assert_same(a_voice(latent_mean=fortran), Voice(**values()))


def test_numpy_numbers_are_kept_as_int_and_lists_as_tuples():
    voice = a_voice(patch=np.int64(4), samples=np.int32(5), warnings=["w"])
    assert (type(voice.patch), type(voice.samples), voice.warnings) == (int, int, ("w",))


def test_warnings_are_kept_as_a_terminal_may_show_them(tmp_path):
    voice = a_voice(warnings=("a\x1b[2J", "\udc80", ""))
    assert voice.warnings == ("a\\x1b[2J", "\\udc80", "")
    voice.save(tmp_path / "a")
    assert_same(Voice.load(tmp_path / "a"), voice)


def test_duration():
    assert a_voice(samples=22050).duration == 0.5
    assert a_voice(samples=0).duration is None


def with_number(array, number):
    changed = array.copy()
    changed.flat[3] = number
    return changed


V = values()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": ""}, "family"), ({"family": None}, "family"), ({"family": "a\x1b"}, "family"),
        ({"checkpoint": "AB" * 32}, "checkpoint"), ({"checkpoint": None}, "checkpoint"),
        ({"checkpoint": "ab" * 32 + "\n"}, "checkpoint"),
        ({"sample_rate": 0}, "sample_rate"), ({"sample_rate": 1.5}, "sample_rate"),
        ({"sample_rate": 10**30}, "sample_rate"), ({"patch": True}, "patch"),
        ({"patch": "4"}, "patch"), ({"samples": -1}, "samples"),
        ({"transcript": " "}, "transcript is blank"), ({"transcript": "\x00"}, "control"),
        ({"transcript": b"a"}, "not text"), ({"transcript": "\ud800"}, "surrogate"),
        ({"transcript": None}, "only latent_mean and latent_std"),
        ({"latent_std": None}, "only a transcript and latent_mean"),
        ({"latent_mean": None, "latent_std": None}, "only a transcript"),
        ({**NO_LATENTS, "speaker_embedding": None}, "nothing to speak with"),
        ({"speaker_embedding": [0.0] * 192}, "float32 array(?s:.*)Found: list"),
        ({"speaker_embedding": np.ones(192)}, "float32 array(?s:.*)Found: float64"),
        ({"speaker_embedding": np.ones(192, ">f4")}, "float32"),
        ({"speaker_embedding": np.ones(191, np.float32)}, r"\(192,\)"),
        ({"speaker_embedding": np.ones((1, 192), np.float32)}, "1 dimension"),
        ({"speaker_embedding": with_number(V["speaker_embedding"], np.nan)}, "finite"),
        ({"latent_mean": with_number(V["latent_mean"], np.inf)}, "finite"),
        ({"latent_mean": V["latent_mean"][:7], "latent_std": V["latent_std"][:7]}, "multiple of 4"),
        ({"latent_mean": V["latent_mean"][:0], "latent_std": V["latent_std"][:0]}, "empty"),
        ({"latent_mean": V["latent_mean"][:4]}, "shape of latent_mean"),
        ({"latent_std": with_number(V["latent_std"], 0)}, "positive"),
        ({"latent_std": with_number(V["latent_std"], -1)}, "positive"),
        ({"warnings": "a"}, "warnings"), ({"warnings": None}, "warnings"),
        ({"warnings": (1,)}, "warnings"), ({"warnings": ("a" * 100_001,)}, "warnings"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        a_voice(**changes)


def test_a_voice_that_could_not_be_loaded_again_is_not_made():
    many = np.ones((LARGEST_FILE // 1024, 128), np.float32)
    with pytest.raises(UserError, match="too many"):
        a_voice(latent_mean=many, latent_std=many)


def a_file(tmp_path, tensors=None, metadata=None):
    path = tmp_path / "stranger.safetensors"
    tensors = {name: V[name] for name in ARRAYS} if tensors is None else tensors
    path.write_bytes(save(tensors, METADATA if metadata is None else metadata))
    return path


def without(name):
    return {key: value for key, value in METADATA.items() if key != name}


def test_a_file_of_another_writer_is_loaded(tmp_path):
    assert_same(Voice.load(a_file(tmp_path)), a_voice())


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"format": "pt"}, "not a voice(?s:.*)'pt'"),
        ({}, "not a voice(?s:.*)no format"),
        (METADATA | {"format_version": "2"}, "format version 2(?s:.*)update ming-trt"),
        (without("format_version"), "another format version"),
        (METADATA | {"extra": "1"}, r"also \['extra'\]"),
        (without("patch"), "no patch"),
        (METADATA | {"patch": "4.0"}, "patch is wrong"),
        (METADATA | {"patch": "４"}, "patch"),
        (METADATA | {"patch": "0"}, "patch is wrong"),
        (METADATA | {"patch": "3"}, "multiple of 3"),
        (METADATA | {"samples": "1" * 5000}, "samples is wrong"),
        (METADATA | {"warnings": "no JSON"}, "warnings"),
        (METADATA | {"warnings": "{}"}, "warn"),
        (METADATA | {"warnings": "[" * 100_000}, "warnings"),
        (METADATA | {"transcript": ""}, "transcript is blank"),
        (without("transcript"), "do not go together"),
        (METADATA | {"family": "\x1b[2J"}, r"family is wrong(?s:.*)\\x1b"),
    ],
)
def test_foreign_metadata_is_refused(metadata, message, tmp_path):
    path = a_file(tmp_path, metadata=metadata)
    with pytest.raises(UserError, match=message) as error:
        Voice.load(path)
    assert str(path) in str(error.value)
    assert error.value.do
    assert len(str(error.value)) < 2000
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"more": np.ones(1, np.float32)}, "only the tensors(?s:.*)'more'"),
        ({"latent_mean": V["latent_mean"].astype(np.float16)}, "of dtype F16"),
        ({"latent_std": V["latent_std"].astype(np.int32)}, "of dtype I32"),
        ({"speaker_embedding": np.ones(3, np.float32)}, r"\(192,\)"),
        ({"latent_mean": np.ones((0, 16), np.float32)}, "latent_mean is wrong"),
        ({"latent_mean": np.ones((8, 0), np.float32)}, "latent_mean is wrong"),
        ({"latent_mean": np.array(1, np.float32)}, "latent_mean is wrong"),
        ({"latent_mean": with_number(V["latent_mean"], np.nan)}, "finite"),
    ],
)
def test_foreign_tensors_are_refused(change, message, tmp_path):
    path = a_file(tmp_path, {name: V[name] for name in ARRAYS} | change)
    with pytest.raises(UserError, match=message) as error:
        Voice.load(path)
    assert str(path) in str(error.value)


def test_no_damage_gets_through_as_anything_but_a_user_error(tmp_path):
    path = tmp_path / "a.safetensors"
    whole = a_voice().to_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    random = np.random.default_rng(1)
    damaged = [whole[:length] for length in [*range(0, header + 16, 7), len(whole) - 1]]
    damaged += [whole + b"\0", b"", b"\xff" * 64, b"PK\x03\x04" + whole]
    for _ in range(300):
        changed = bytearray(whole)
        changed[random.integers(header)] = random.integers(256)
        damaged.append(bytes(changed))
    refused = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            Voice.load(path)
        except UserError as error:
            refused += str(path) in error.what
    assert refused > 200


def raw(header, body=b""):
    text = json.dumps(header) if isinstance(header, dict) else header
    return len(text.encode()).to_bytes(8, "little") + text.encode() + body


@pytest.mark.parametrize(
    "data",
    [
        raw({"__metadata__": None}), raw({"__metadata__": []}), raw({"__metadata__": {"a": 1}}),
        raw("[]"), raw("null"), raw('{"a":' * 10_000), raw({}), (1 << 62).to_bytes(8, "little"),
        raw({"__metadata__": METADATA, "latent_mean": {
            "dtype": "F32", "shape": [0, 1 << 62], "data_offsets": [0, 0]}}),
        raw({"__metadata__": METADATA, "latent_mean": {
            "dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 0]}}),
        raw('{"__metadata__":{"format":"x","format":"ming-trt-voice"}}'),
    ],
)  # fmt: skip
def test_odd_headers_are_refused(data, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(UserError, match=str(path)):
        Voice.load(path)


def test_a_large_file_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    monkeypatch.setattr(Path, "open", None)
    with pytest.raises(UserError, match=r"too large(?s:.*)at most 67 MB"):
        Voice.load(path)


def test_only_plain_files_are_read(tmp_path):
    with pytest.raises(UserError, match=r"cannot be read(?s:.*)a folder"):
        Voice.load(tmp_path)
    with pytest.raises(UserError, match="No such file"):
        Voice.load(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="a pipe"):
        Voice.load(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="cannot be read"):
        Voice.load(tmp_path / "loop")
    a_voice().save(tmp_path / "a")
    (tmp_path / "link").symlink_to("a")
    assert_same(Voice.load(tmp_path / "link"), a_voice())


def test_saving_replaces_what_a_link_names(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "link").symlink_to("a")
    a_voice().save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert_same(Voice.load(tmp_path / "a"), a_voice())


def test_what_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="mkdir -p"):
        a_voice().save(tmp_path / "none" / "a")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        a_voice().save(tmp_path / "folder")
    (tmp_path / "old").write_bytes(b"old")

    def interrupted(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        a_voice().save(tmp_path / "old")
    assert names(tmp_path) == ["folder", "old"]
    assert (tmp_path / "old").read_bytes() == b"old"
    assert names(tmp_path / "folder") == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "open", lambda self, mode: io.FileIO("/dev/full", "w"))
    with pytest.raises(UserError, match="No space left"):
        a_voice().save(tmp_path / "a")


def test_a_pipe_or_folder_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path):
        with pytest.raises(UserError, match="cannot be written"):
            a_voice().save(place)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert names(tmp_path) == ["pipe"]


@pytest.mark.parametrize("path", ["a\0.safetensors", 5])
def test_a_path_that_is_none(path):
    with pytest.raises(UserError):
        a_voice().save(path)


def test_a_header_beyond_reason_is_not_parsed(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes((9 << 20).to_bytes(8, "little") + b"{" + b" " * (9 << 20))
    with pytest.raises(UserError, match="header has more than"):
        Voice.load(path)
