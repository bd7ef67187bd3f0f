"""`python -m benchmarks.hear`: what is printed, and the exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.hear import hear, main
from benchmarks.word_errors import words
from tests.benchmarks.conftest import TEXT, WAVE
from trt_runtime.errors import UserError

OTHER = "she opened the window and went home"


def test_words_and_errors() -> None:
    right, wrong = hear(WAVE, TEXT), hear(WAVE, OTHER)
    assert right.words == wrong.words == words(TEXT)
    assert (right.errors, right.count, right.rate) == (0, 9, 0)
    assert (wrong.errors, wrong.count, wrong.rate) == (4, 7, 4 / 7)


@pytest.mark.parametrize(
    ("options", "status", "printed"),
    [
        ([], 0, ""),
        (["--expect", TEXT], 0, "word error rate: 0.00 (0 of 9 words)\n"),
        (["--expect", TEXT, "--most", "0"], 0, "word error rate: 0.00 (0 of 9 words)\n"),
        (["--expect", OTHER], 0, "word error rate: 0.57 (4 of 7 words)\n"),
        (["--expect", OTHER, "--most", "0.58"], 0, "word error rate: 0.57 (4 of 7 words)\n"),
        (["--expect", OTHER, "--most", "0.5"], 1, "word error rate: 0.57 (4 of 7 words)\n"),
    ],
)
def test_what_is_printed(
    options: list[str], status: int, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(WAVE), *options]) == status
    assert capsys.readouterr().out == f"heard: {' '.join(words(TEXT))}\n{printed}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.wav"], "missing.wav"),
        ([str(WAVE), "--expect", "the 3 of us"], "spelled out"),
        ([str(WAVE), "--expect", "..."], "no words"),
    ],
)
def test_bad_input(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("options", [["--most", "1"], ["--expect", "a", "--most", "nan"]])
def test_bad_options(options: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([str(WAVE), *options])
    assert caught.value.code == 2


def test_a_text_is_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="digits"):
        hear(tmp_path / "missing.wav", "7 words")
