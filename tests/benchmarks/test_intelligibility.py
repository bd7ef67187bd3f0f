"""The benchmark as a whole: on the embedded default, and on a speaker whose words are known."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import speaker_similarity
from benchmarks.intelligibility import main, summary
from benchmarks.listening import Listener, read_sentences
from benchmarks.recognition import Recogniser
from benchmarks.saying import speech
from benchmarks.source_voice import Wave, spoken_by_program, spoken_in_folder
from benchmarks.tables import intelligibility as table
from benchmarks.tables import rendered
from tests.benchmarks.conftest import TEXT, WAVE
from tests.conftest import Folders
from tests.trt_runtime.test_bad_requests import edited
from trt_runtime.errors import UserError
from trt_runtime.speech import AudioChunk, FinishReason, Speech, Timings

OTHER = "she opened the zzxy"


class Speaker:
    """Says the fixture's words whatever the text, and ends by itself under even seeds alone."""

    def __init__(self, wave: Wave) -> None:
        self._wave = wave

    def synthesize(self, text: str, *, seed: int) -> Speech:
        reason = FinishReason.MAX_STEPS if seed % 2 else FinishReason.STOP
        audio = np.concatenate((self._wave.audio, np.zeros(seed * 16_000, np.float32)))
        timings = Timings(first_audio=9.0, total=len(audio) / 32_000, audio=len(audio) / 16_000)
        return Speech(audio, 16_000, reason, steps=1, seed=seed, timings=timings)

    def stream(self, text: str, *, seed: int) -> Iterator[AudioChunk]:
        yield AudioChunk(self._wave.audio[:100], 16_000, 0, 0, False, 1, seed)
        raise AssertionError("the rest was asked for, too")


def test_the_figures_of_known_words(recogniser: Recogniser, wave: Wave) -> None:
    listener = Listener(recogniser, [TEXT, OTHER])
    assert listener.unknown_words == ["zzxy"]
    source = [wave, Wave(wave.audio[: len(wave.audio) // 2], 16_000)]
    spoken = speech(Speaker(wave), None, listener.texts, [0, 1])  # type: ignore[arg-type]
    row = listener.row(spoken, source)
    # Of the other text "zzxy" is wrong, and "and went into the garden" is too much.
    assert [line["errors"] for line in row["spoken"]] == [0, 6, 0, 6]
    assert (row["utterances"], row["words"], row["errors"], row["exact"]) == (4, 26, 12, 2)
    # A quarter of the draws has the one sentence alone, and a quarter the other.
    assert row["word_error_rate"] == {"rate": 12 / 26, "low": 0, "high": 6 / 4}
    assert row["stopped"] == 2
    longer = 1 + 1 / wave.seconds
    ratios = [line["length_ratio"] for line in row["spoken"]]
    assert ratios == pytest.approx([1, 2, longer, 2 * longer], rel=1e-3)
    assert row["length_ratio"]["near"] == 1
    assert row["real_time_factor"] == {"median": 0.5, "min": 0.5, "max": 0.5}
    # Streamed, and not what the whole speech says of itself.
    assert 0 <= row["first_audio_seconds"]["max"] < 1


def run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """The result of two short sentences, or of others that are given."""
    texts, out = tmp_path / "two.txt", tmp_path / "new" / "result.json"
    texts.write_text(f"{TEXT}\n\n{OTHER}\n", encoding="utf-8")
    given = ["--sentences", str(texts), "--threads", "1", "--out", str(out), *arguments]
    assert main(given) == 0
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Waves of the source: the same for both sentences."""
    waves = tmp_path / "source"
    waves.mkdir()
    for name in ("000.wav", "001.wav"):
        shutil.copy(WAVE, waves / name)
    return waves


def test_the_embedded_default(
    tmp_path: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Form and honest counts, whatever it can say."""
    embed = speaker_similarity.Judge(
        lambda opened: lambda wave: np.abs(wave.audio[:100]) + 1e-3, "the test's"
    )
    monkeypatch.setitem(speaker_similarity.ENCODERS, "folder", embed)
    result = run(
        tmp_path, "--source-folder", str(folder), "--source-voice", "slt", "--seeds", "3", "4",
        "--compare-voices", "default", "default", "--voice-sentences", str(tmp_path / "two.txt"),
        "--keep", str(tmp_path / "kept"),
    )  # fmt: skip
    names = [(row["row"], row["voice"], row["source_voice"]) for row in result["rows"]]
    assert names == [
        ("source", "slt", "slt"),
        ("codec", "slt", "slt"),
        ("speech", "default", "slt"),
    ]
    source, codec, spoken = result["rows"]
    assert source["spoken"][0] | {"seconds": 0} == {
        "text": TEXT, "heard": "she opened the door and went into the garden", "words": 9,
        "errors": 0, "seconds": 0,
    }  # fmt: skip
    assert source["exact"] == 1
    assert codec["utterances"] == 2
    assert [line["seed"] for line in spoken["spoken"]] == [3, 3, 4, 4]
    for row in result["rows"]:
        assert row["words"] == sum(line["words"] for line in row["spoken"])
        assert row["errors"] == sum(line["errors"] for line in row["spoken"])
        rate = row["word_error_rate"]
        assert rate["rate"] == row["errors"] / row["words"]
        assert rate["low"] <= rate["rate"] <= rate["high"]
    stops = sum(line["finish_reason"] == "stop" for line in spoken["spoken"])
    assert spoken["stopped"] == stops
    assert spoken["real_time_factor"]["min"] > 0
    assert spoken["first_audio_seconds"]["median"] > 0
    assert result["sentences"]["not_in_dictionary"] == ["zzxy"]
    assert result["voices"]["encoder_is"] == "the test's"
    assert result["voices"]["separated"] is False
    assert result["versions"]["pocketsphinx"]
    assert result["engines"]["target"] == "bundle"
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert {"speech-default-seed-3", "speech-default-seed-4", "codec-slt", "source-slt"} <= kept
    again = spoken_in_folder(tmp_path / "kept" / "source-slt", 2)
    np.testing.assert_array_equal(again[0].audio, spoken_in_folder(folder, 2)[0].audio)
    captured = capsys.readouterr()
    assert "warning: 1 words are not in the dictionary: zzxy" in captured.err
    assert summary(result) in captured.out
    lines = table(result).splitlines()
    assert sum(line.startswith("| ") for line in lines) == 4
    assert "default and default" in lines[-1]


def test_without_a_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path)
    assert [row["row"] for row in result["rows"]] == ["speech"]
    assert result["rows"][0]["length_ratio"] is None
    assert set(result["skipped"]) == {"source", "codec"}
    assert "no source row: no --source-program or --source-folder" in capsys.readouterr().out
    assert "No codec row" in table(result)


def test_several_sources(tmp_path: Path, folder: Path) -> None:
    for name in ("slt", "rms"):
        shutil.copytree(folder, tmp_path / "kept" / f"source-{name}")
    given = ["--source-voice", "rms", "--source-voice", "slt"]
    result = run(tmp_path, "--source-folder", str(tmp_path / "kept"), *given)
    names = [(row["row"], row["voice"], row["source_voice"]) for row in result["rows"]]
    assert names == [
        ("source", "rms", "rms"), ("source", "slt", "slt"), ("codec", "rms", "rms"),
        ("codec", "slt", "slt"), ("speech", "default", "rms"),
    ]  # fmt: skip


def test_a_folder_without_an_audio_encoder(tmp_path: Path, folder: Path, dense: Folders) -> None:
    place = tmp_path / "engines"
    edited(dense.engines, place, lambda m: m["graphs"].pop("audio_encoder"))
    result = run(tmp_path, "--engines", str(place), "--source-folder", str(folder))
    assert [row["row"] for row in result["rows"]] == ["source", "speech"]
    assert "no audio encoder" in result["skipped"]["codec"]


def test_a_recording_as_a_voice(tmp_path: Path, dense: Folders) -> None:
    result = run(tmp_path, "--engines", str(dense.engines), "--voice", str(WAVE))
    assert [row["voice"] for row in result["rows"]] == ["default", "flite-slt"]


def test_two_voices_of_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--voice", "default", "--threads", "1"]) == 2
    assert "Two voices are called default" in capsys.readouterr().err


def test_a_sentence_alone_compares_no_voices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.txt").write_text("one sentence")
    given = ["--compare-voices", "default", "default", "--voice-sentences"]
    assert main([*given, str(tmp_path / "one.txt"), "--threads", "1"]) == 2
    assert "two or more" in capsys.readouterr().err


def program(path: Path, audio: str) -> Path:
    """A program that answers as training/flite_speech.c does, with `audio` for each line."""
    path.write_text(
        f"#!{sys.executable}\nimport struct, sys\nfor line in sys.stdin:\n"
        "    voice, text = line.rstrip('\\n').split('\\t')\n"
        f"    audio = {audio}\n"
        "    head = struct.pack('<ii4sf', len(audio) // 2, 1, b'pau', 9.0)\n"
        "    sys.stdout.buffer.write(head + audio)\n"
    )
    path.chmod(0o755)
    return path


def test_a_source_program(tmp_path: Path) -> None:
    speaker = program(tmp_path / "speaker", "struct.pack('<3200h', *[1000 * len(text)] * 3200)")
    first, second = spoken_by_program(speaker, "rms", ["abc", "ab"])
    assert (first.sample_rate, first.audio.dtype) == (16_000, np.float32)
    assert first.audio.max() == 3000 / 32768
    assert second.audio.max() == 2000 / 32768


@pytest.mark.parametrize(
    ("voice", "text", "said"),
    [("none", "a", "no voice none"), ("slt", "é", "ASCII"), ("slt", "a", "does not speak")],
)
def test_a_source_program_that_cannot(tmp_path: Path, voice: str, text: str, said: str) -> None:
    broken = program(tmp_path / "broken", "sys.exit(3)")
    with pytest.raises(UserError, match=said):
        spoken_by_program(broken, voice, [text])
    with pytest.raises(UserError, match="no such file"):
        spoken_by_program(tmp_path / "missing", "slt", ["a"])


def test_a_source_program_in_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`./flite_speech`, as the documents have it: a bare name is not looked for on the PATH."""
    program(tmp_path / "speaker", "struct.pack('<3200h', *[1000 * len(text)] * 3200)")
    monkeypatch.chdir(tmp_path)
    assert len(spoken_by_program(Path("./speaker"), "rms", ["abc"])) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "an empty file"), (" \n\n", "blank lines"), ("a\n...\n", "without words"),
     ("in 1895\n", "spelled out")],
)  # fmt: skip
def test_sentences_that_cannot_be_scored(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "sentences.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        read_sentences(path)


@pytest.mark.parametrize(
    ("option", "said"),
    [("--engines", "No such folder"), ("--sentences", "cannot be read"),
     ("--source-folder", "lacks"), ("--voice", "no voice"),
     ("--voice-sentences", "cannot be read")],
)  # fmt: skip
def test_what_is_missing(
    tmp_path: Path, option: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    missing = "missing" if option == "--voice" else str(tmp_path / "missing")
    arguments = ["--voices", str(tmp_path), "--out", str(out), option, missing]
    arguments += ["--compare-voices", "default", "default"]
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_waves_are_kept_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Found before anything is spoken."""
    taken = tmp_path / "taken"
    taken.touch()
    assert main(["--keep", str(taken), "--voices", str(tmp_path)]) == 2
    assert "cannot be kept" in capsys.readouterr().err


def test_a_result_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found before anything is spoken."""
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file" / "result.json"):
        assert main(["--out", str(out), "--voices", str(tmp_path)]) == 2
        assert "cannot be written" in capsys.readouterr().err


def test_a_document_lacks_a_table(tmp_path: Path) -> None:
    (tmp_path / "some.json").write_text('{"text": "a table"}')
    tables = {"some": lambda data: data["text"]}
    with pytest.raises(SystemExit, match="some"):
        rendered("text", tables, tmp_path)
    start, end = "<!-- some: made by benchmarks/tables.py -->", "<!-- end -->"
    made = rendered(f"{start}old{end}tail", tables, tmp_path)
    assert made == f"{start}\na table\n{end}tail"


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "--source-program" in capsys.readouterr().out
