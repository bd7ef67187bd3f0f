"""Speech from a program that stands for flite, and the shards that it is kept in."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.training.conftest import TEXTS, program
from training import generate
from training.generate import main, training_texts
from training.shards import Shards, read_shard, shard_path, write_shard
from training.speech import (
    HOP,
    PHONES,
    SAMPLES_PER_LATENT,
    VOICES,
    find_program,
    make,
    spoken,
)
from trt_runtime.errors import UserError


def arguments(**options: object) -> list[str]:
    return [part for name, value in options.items() for part in (f"--{name}", str(value))]


def test_utterances_are_whole_latents_with_a_phone_for_each_frame(flite: Path) -> None:
    ((voice, text, audio, phones),) = spoken(flite, [("rms", "a i")])
    assert (voice, text, audio.dtype, phones.dtype) == ("rms", "a i", np.int16, np.uint8)
    assert len(audio) % SAMPLES_PER_LATENT == 0
    assert len(phones) == len(audio) // HOP
    # 60 ms of silence, 80 ms of aa, 40 ms of silence, 80 ms of iy, 80 ms of silence, and zeros.
    names = [PHONES[index] for index in phones]
    assert names[:3] == ["pau"] * 3
    assert names[3:7] == ["aa"] * 4
    assert names[7:9] == ["pau"] * 2
    assert names[9:13] == ["iy"] * 4
    assert set(names[13:]) == {"pau"}
    assert not audio[: 2 * HOP].any()
    spectrum = np.abs(np.fft.rfft(audio[3 * HOP : 7 * HOP]))
    assert abs(spectrum.argmax() * 16_000 / (4 * HOP) - 300) < 13
    assert len(audio) == -(-(60 + 80 + 40 + 80 + 80) // 80) * SAMPLES_PER_LATENT


def test_a_program_that_says_nothing_aloud(tmp_path: Path) -> None:
    silent = program(
        tmp_path / "silent",
        f"#!{sys.executable}\nimport struct, sys\nfor _ in sys.stdin:\n"
        "    sys.stdout.buffer.write(struct.pack('<ii4sf', 1000, 1, b'pau', 9.0) + bytes(2000))\n",
    )
    ((_, _, audio, phones),) = spoken(silent, [("rms", "hm")])
    assert (len(audio), len(phones)) == (SAMPLES_PER_LATENT, 4)
    assert not audio.any()


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("sys.exit(3)", "exit status 3"),
        ("sys.stdout.buffer.write(b'1234')", "end early"),
        ("sys.stdout.buffer.write(struct.pack('<ii4sf', 9, 1, b'pau', 1.0) + bytes(9))", "early"),
        ("sys.stdout.buffer.write(struct.pack('<ii', 0, 0))", "early"),
        ("sys.stdout.buffer.write(struct.pack('<ii4sf', 0, 1, b'pau', 1.0) + b'more')", "20 bytes"),
    ],
)
def test_a_program_that_is_another(tmp_path: Path, body: str, found: str) -> None:
    broken = program(
        tmp_path / "broken", f"#!{sys.executable}\nimport struct, sys\nsys.stdin.read()\n{body}\n"
    )
    with pytest.raises(UserError, match="does not speak") as caught:
        list(spoken(broken, [("rms", "hello")]))
    assert found in caught.value.found
    assert "flite_speech.c" in caught.value.do


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        find_program(tmp_path / "missing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(UserError, match="not executable"):
        find_program(tmp_path / "text")
    script = program(tmp_path / "script", "#!/bin/sh\n")
    assert find_program(script) == script.resolve()


def test_speech_of_both_voices_follows_from_the_seed(flite: Path) -> None:
    texts = list(TEXTS)
    one, again, other = (make(flite, texts, seed, 3) for seed in (1, 1, 2))
    assert np.array_equal(one.audio, again.audio)
    assert (one.texts, one.voices.tolist()) == (again.texts, again.voices.tolist())
    assert one.texts != other.texts
    assert set(one.voices.tolist()) == {0, 1}
    assert len(one.texts) == len(one.voices) == len(one.first) - 1 == len(texts)
    assert one.first[-1] * SAMPLES_PER_LATENT == len(one.audio)
    assert len(one.phones) * HOP == len(one.audio)
    # Each utterance lies where `first` says.
    for index, (voice, text) in enumerate(zip(one.voices, one.texts, strict=True)):
        ((_, _, audio, _),) = spoken(flite, [(VOICES[voice], text)])
        part = slice(*(one.first[index : index + 2] * SAMPLES_PER_LATENT))
        assert np.array_equal(one.audio[part], audio)
        assert text == text.lower()


def test_the_command_writes_shards_and_says_that_they_are_all(speech: Path) -> None:
    assert sorted(path.name for path in speech.iterdir()) == [
        "complete", "options.json", "speech-000.npz", "speech-001.npz",
    ]  # fmt: skip
    counts = [len(read_shard(shard_path(speech, index))["texts"]) for index in range(2)]
    assert counts == [7, 6]


def test_the_held_out_sentence_is_not_spoken(texts: Path) -> None:
    lines = training_texts(texts)
    assert sorted(lines) == sorted(TEXTS[1:])
    assert lines != list(TEXTS[1:])
    assert lines == training_texts(texts)


def test_a_command_that_was_ended_goes_on(
    flite: Path, texts: Path, speech: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = generate.write_shard

    def end(path: Path, made: object) -> None:
        if path.name != "speech-000.npz":
            raise KeyboardInterrupt
        write(path, made)

    given = arguments(program=flite, out=tmp_path, texts=texts, shard=7, workers=2)
    monkeypatch.setattr(generate, "write_shard", end)
    assert main(given) == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["options.json", "speech-000.npz"]
    stamp = (tmp_path / "speech-000.npz").stat().st_mtime_ns
    monkeypatch.setattr(generate, "write_shard", write)
    assert main(given) == 0
    assert (tmp_path / "speech-000.npz").stat().st_mtime_ns == stamp
    for index in range(2):
        ours, theirs = (read_shard(shard_path(folder, index)) for folder in (tmp_path, speech))
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture
def again(flite: Path, texts: Path, speech: Path, tmp_path: Path) -> dict[str, object]:
    """The options of a folder of shards that are all there, a copy of `speech`."""
    shutil.copytree(speech, tmp_path / "out")
    return {"program": flite, "out": tmp_path / "out", "texts": texts, "shard": 7, "workers": 2}


OTHERS = [("shard", 5), ("workers", 3), ("most", 9), ("texts", "texts")]


@pytest.mark.parametrize(("option", "value"), OTHERS)
def test_a_folder_of_other_options_is_left_alone(
    again: dict[str, object], tmp_path: Path, option: str, value: object,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if option == "texts":
        value = tmp_path / "texts"
        value.write_text("".join(f"{text} again\n" for text in TEXTS))
    folder = tmp_path / "out"
    shard_path(folder, 1).unlink()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main(arguments(**again | {option: value})) == 2
    said = capsys.readouterr().err
    assert "were made with other options" in said
    assert said.count(f"--{option}") == 2
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_the_same_options_said_otherwise_go_on(again: dict[str, object]) -> None:
    assert main(arguments(**again | {"most": 100})) == 0
    assert main(arguments(**again | {"most": len(TEXTS) - 1})) == 0


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{}", b"\xff"])
def test_shards_of_unknown_options(
    again: dict[str, object], tmp_path: Path, content: bytes | None,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    kept = tmp_path / "out" / "options.json"
    if content is None:
        kept.unlink()
    else:
        kept.write_bytes(content)
    assert main(arguments(**again)) == 2
    assert "Nothing says with which options" in capsys.readouterr().err


def test_a_folder_without_shards_takes_any_options(again: dict[str, object]) -> None:
    for path in Path(str(again["out"])).glob("*.npz"):
        path.unlink()
    assert main(arguments(**again | {"shard": 5})) == 0
    assert main(arguments(**again | {"shard": 5})) == 0
    assert main(arguments(**again)) == 2


def test_readers_wait_while_a_shard_is_made_again(
    again: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = tmp_path / "out" / "complete"
    shard_path(tmp_path / "out", 1).unlink()
    seen = []

    def look(*given: object) -> object:
        seen.append(complete.exists())
        return make(*given)

    monkeypatch.setattr(generate, "make", look)
    assert main(arguments(**again)) == 0
    assert seen == [False]
    assert complete.exists()


def test_a_file_with_nothing_to_train_on(
    flite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts"
    texts.write_text("held out\n\nheld out\n")
    assert main(arguments(program=flite, out=tmp_path / "out", texts=texts)) == 2
    assert "no sentence to train on" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_blank_lines_are_not_spoken(flite: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.write_text("\nheld out\n\n  \nice\n\n")
    assert main(arguments(program=flite, out=tmp_path / "out", texts=texts)) == 0
    assert len(read_shard(shard_path(tmp_path / "out", 0))["texts"]) == 1


@pytest.mark.parametrize(
    ("option", "said"),
    [("program", "cannot be run"), ("texts", "cannot be read"), ("out", "cannot be made")],
)
def test_what_the_command_cannot_use(
    flite: Path, texts: Path, tmp_path: Path, option: str, said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "file").write_text("in the way")
    wrong = tmp_path / ("file/within" if option == "out" else "missing")
    given = {"program": flite, "texts": texts, "out": tmp_path / "out"} | {option: wrong}
    assert main(arguments(**given)) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_program_that_fails_leaves_no_shard(texts: Path, tmp_path: Path) -> None:
    broken = program(tmp_path / "broken", "#!/bin/sh\nexit 4\n")
    assert main(arguments(program=broken, texts=texts, out=tmp_path / "out")) == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["options.json"]


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5"])
def test_counts_are_above_zero(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--program", "p", "--out", "o", "--workers", value])
    assert caught.value.code == 2
    assert "no whole number above zero" in capsys.readouterr().err


def test_files_that_are_no_shards(speech: Path, tmp_path: Path) -> None:
    path = tmp_path / "speech-000.npz"
    content = shard_path(speech, 0).read_bytes()
    for data in (b"", b"text", content[: len(content) // 2]):
        path.write_bytes(data)
        with pytest.raises(UserError, match="no shard of speech"):
            read_shard(path)
    shard = read_shard(shard_path(speech, 0))
    changes = [
        *((name, shard[name][:-1]) for name in shard),
        *((name, shard[name][:0]) for name in shard),
        *((name, shard[name][None]) for name in shard),
        *((name, np.full(shard[name].shape, "word")) for name in shard if name != "texts"),
        ("texts", np.zeros(shard["texts"].shape)),
        ("first", shard["first"].astype(np.float64)),
        ("first", np.where(shard["first"] == 0, 1, shard["first"])),
        ("first", np.append(shard["first"][:-1][::-1], shard["first"][-1])),
        ("phones", shard["phones"] + np.uint8(len(PHONES))),
        ("voices", shard["voices"] + np.uint8(len(VOICES))),
    ]
    for name, value in changes:
        np.savez(path, **(shard | {name: value}))
        with pytest.raises(UserError, match="no shard of speech"):
            read_shard(path)
    with path.open("wb") as file:
        np.save(file, shard["audio"])
    with pytest.raises(UserError, match="without a name"):
        read_shard(path)
    np.savez(path, audio=shard["audio"])
    with pytest.raises(UserError, match="no shard of speech"):
        read_shard(path)


def test_shards_one_after_the_other_and_no_more_than_asked_for(speech: Path, flite: Path) -> None:
    lines: list[str] = []
    shards = Shards(speech, 5, lines.append)
    found = [shards.following(wait) for wait in (True, False, False, True)]
    assert found == [shard_path(speech, 0), shard_path(speech, 1), None, None]
    assert Shards(speech, 1, lines.append).following(True) is not None
    ended = Shards(speech, 5, lines.append)
    ended.end()
    assert ended.following(True) is None
    assert lines == []


def test_shards_that_are_still_to_come(
    speech: Path, flite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    shards = Shards(tmp_path, 5, lines.append)
    assert shards.following(wait=False) is None
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            write_shard(shard_path(tmp_path, 0), make(flite, ["a sea"], 1, 1))

    monkeypatch.setattr("training.shards.time.sleep", sleep)
    assert shards.following(wait=True) == shard_path(tmp_path, 0)
    assert len(slept) == 3
    assert lines == [f"waiting for {shard_path(tmp_path, 0)}"]


def test_folders_without_shards(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"python -m training\.generate"):
        Shards(tmp_path / "missing", 5, print)
    (tmp_path / "complete").touch()
    with pytest.raises(UserError, match="no more will come"):
        Shards(tmp_path, 5, print).following(wait=True)
