"""What `ming-trt speak` tells after speaking and on the way, and the sentences it writes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import soundfile

from trt_runtime.cli import main, speak_report
from trt_runtime.errors import UserError
from trt_runtime.speech import FinishReason, Progress, SpokenSentence

ENGINES = Path("/engines")


class Full(io.StringIO):
    """A terminal that takes nothing more."""

    def isatty(self):
        return True

    def write(self, text):
        raise OSError(28, "No space left on device")


def a_summary(*sentences, warnings=(), reason="stop"):
    return speak_report.Summary(1000, 7, reason, 9, 4.5, 0.25, 0.5, sentences, warnings)


def a_sentence(first=0, samples=1500, reason=FinishReason.STOP, **more):
    return SpokenSentence("Schön.", 3, 9, first, samples, 5, reason, 7, **more)


def told(summary, capsys, quiet=False):
    speak_report.report(summary, where="a.wav", engines=ENGINES, quiet=quiet)
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err.splitlines()


def test_each_of_several_sentences_has_a_line(capsys):
    sentences = [a_sentence(1500 * n) for n in range(9)]
    sentences.append(a_sentence(13500, 250, FinishReason.RUNAWAY, attempts=3))
    lines = told(a_summary(*sentences), capsys)
    assert lines[0] == "sentence  1  0.00 to 1.50 s, 5 steps, stop"
    assert lines[9] == "sentence 10  13.50 to 13.75 s, 5 steps, runaway, 3 attempts"
    assert lines[10] == "wrote             a.wav"
    assert not any("sentence" in line for line in told(a_summary(*sentences), capsys, quiet=True))


def test_a_text_in_one_go_has_no_line_of_its_own(capsys):
    assert told(a_summary(a_sentence()), capsys)[0] == "wrote             a.wav"


@pytest.mark.parametrize("reason", [str(reason) for reason in FinishReason])
def test_every_finish_reason_is_explained(reason, capsys):
    lines = told(a_summary(a_sentence(), reason=reason), capsys)
    line = next(line for line in lines if line.startswith("finish reason"))
    assert line == f"finish reason     {reason} ({speak_report._ENDED[reason]})"


def test_warnings_are_a_line_each_and_cannot_move_the_cursor(capsys):
    lines = told(a_summary(a_sentence(), warnings=("one\x1b[2J", "two\nmore")), capsys, quiet=True)
    assert lines == ["warning: one\\x1b[2J", "warning: two\\nmore"]


def test_sentences_at_the_limit_are_named(capsys):
    at_limit = a_sentence(reason=FinishReason.MAX_STEPS)
    assert told(a_summary(at_limit), capsys, quiet=True) == [
        "warning: ended at the limit of 5 steps (--max-steps)"
    ]
    # Also where another one ended worse.
    runaway = a_sentence(reason=FinishReason.RUNAWAY)
    assert told(a_summary(runaway, at_limit, reason="runaway"), capsys, quiet=True) == [
        "warning: sentence 2 ended at the limit of 5 steps (--max-steps)"
    ]
    assert told(a_summary(*[at_limit] * 12), capsys, quiet=True) == [
        "warning: sentences 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more ended at the limit of 5 steps "
        "(--max-steps)"
    ]
    assert told(a_summary(a_sentence()), capsys, quiet=True) == []


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(12, 200, 0.1, 5.4), "step 12 of at most 200, 5 s"),
        (Progress(12, 200, 0.1, 5.4, 2, 40), "sentence 3 of 40, step 12 of at most 200, 5 s"),
        (Progress(1, 9, 0.1, 5.4, 0, 2, 1), "sentence 1 of 2, attempt 2, step 1 of at most 9, 5 s"),
    ],
)
def test_progress_says_where_it_is(progress, text, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    line = speak_report.ProgressLine(silent=False)
    line.show(progress)
    line.clear()
    assert capsys.readouterr().err == f"\r{text}\r{' ' * len(text)}\r"


def write_sentences(path, summary):
    with speak_report.SentencesFile(str(path)) as file:
        file.write(summary)
        file.appear()


def test_sentences_are_written_as_json(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old", encoding="utf-8")
    retried = a_sentence(1500, 250, FinishReason.RUNAWAY, attempts=2, warnings=("long",))
    write_sentences(path, a_summary(a_sentence(), retried))
    text = path.read_text(encoding="utf-8")
    assert "Schön." in text
    found = json.loads(text)
    assert found["sample_rate"] == 1000
    assert found["sentences"][1] == {
        "text": "Schön.", "start": 3, "end": 9, "first_sample": 1500, "samples": 250,
        "seconds": [1.5, 1.75], "steps": 5, "finish_reason": "runaway", "seed": 7, "attempts": 2,
        "warnings": ["long"],
    }  # fmt: skip
    assert found["sentences"][0]["seconds"] == [0.0, 1.5]
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_link_keeps_naming_the_file_of_sentences(tmp_path):
    file, link = tmp_path / "file.json", tmp_path / "link.json"
    file.write_text("old", encoding="utf-8")
    link.symlink_to(file)
    write_sentences(link, a_summary(a_sentence()))
    assert link.is_symlink()
    assert json.loads(file.read_text(encoding="utf-8"))["sentences"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "a folder"),
        ("none/a.json", "no folder"),
        ("a.wav", "name one file"),
        ("-", "a file only"),
    ],
)
def test_a_place_that_sentences_cannot_have_is_refused_early(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        speak_report.check_sentences_destination(name, "./a.wav")
    speak_report.check_sentences_destination("a.json", "./a.wav")
    assert list(tmp_path.iterdir()) == []


def test_sentences_do_not_appear_where_something_else_fails(tmp_path):
    """And what fails is told as it is, not as an error of this file."""
    path = tmp_path / "a.json"
    path.write_text("old", encoding="utf-8")

    def fail(file):
        file.write(a_summary(a_sentence()))
        assert len(list(tmp_path.iterdir())) == 2
        raise UserError("The audio cannot be written", do="free some space")

    message = "^The audio"
    with pytest.raises(UserError, match=message), speak_report.SentencesFile(str(path)) as file:
        fail(file)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text(encoding="utf-8") == "old"


def test_sentences_that_cannot_be_written_leave_the_old_ones(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("old", encoding="utf-8")

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match="No space left"):
        write_sentences(path, a_summary(a_sentence()))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize("stderr", [None, Full()])
def test_progress_is_shown_nowhere_without_standard_error(stderr, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stderr)
    line = speak_report.ProgressLine(silent=False)
    line.show(Progress(12, 200, 0.1, 5.4))
    line.clear()
    speak_report.report(a_summary(a_sentence()), where="a.wav", engines=ENGINES, quiet=False)


@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_sentences_of_the_embedded_voice(stream, demo_engines, tmp_path, capsys):
    """Their places are those of the text and of the audio, streamed or not."""
    text = "This is the first one. And here comes another."
    audio, path = tmp_path / "a.wav", tmp_path / "a.json"
    arguments = ["-o", str(audio), "--sentences", str(path), "--engines", str(demo_engines)]
    options = ["--split-limit", "30", "--max-steps", "6"]
    assert main.main(["speak", text, *arguments, *options, *stream]) == 0
    found = json.loads(path.read_text(encoding="utf-8"))
    info = soundfile.info(audio)
    assert found["sample_rate"] == info.samplerate
    first, second = found["sentences"]
    assert text[first["start"] : first["end"]].strip() == first["text"].strip()
    assert text[second["start"] : second["end"]].strip() == "And here comes another."
    assert second["first_sample"] == first["samples"]
    assert first["samples"] + second["samples"] == info.frames
    assert second["seconds"][1] == pytest.approx(info.duration)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("sentence ")] == ["1", "2"]
