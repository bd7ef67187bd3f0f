"""Messages of the runtime as the command line says them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from trt_runtime.cli import main, speak_options, speak_report, wording
from trt_runtime.request import RequestOptions

RUNTIME = Path(wording.__file__).resolve().parents[1]


def words_of(node: ast.expr) -> str:
    """The text of a message, with "X" for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(words_of, node.values))
    return "X"


def texts_of_the_runtime() -> Iterator[str]:
    for path in [*RUNTIME.glob("*.py"), *RUNTIME.glob("backends/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr | ast.Constant):
                yield words_of(node)


def test_every_option_of_a_request_has_a_spelling() -> None:
    assert set(RequestOptions.__annotations__) <= set(wording.SPELLINGS)


def test_spellings_are_options_that_exist() -> None:
    known = {
        option
        for command in main.build_parser(main.find_commands())._subparsers._group_actions
        for parser in command.choices.values()
        for action in parser._actions
        for option in action.option_strings
    }
    named = set(re.findall(r"--[a-z-]+", " ".join(wording.SPELLINGS.values())))
    assert named <= known


def test_every_expression_is_in_some_message() -> None:
    """So that a message that changes takes its row with it."""
    texts = "\n".join(texts_of_the_runtime())
    filled_in = {
        "latents=False", "latents=True", "ended by max_steps", "a whole number of 20 or more",
    }  # fmt: skip
    expressions = {text for text in wording.SPELLINGS if not text.isidentifier()} - filled_in
    assert {text for text in expressions if text not in texts} == set()


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("max_steps is more than fits", "--max-steps is more than fits"),
        ("try retries=2, or on_runaway=\"stop\"", "try --retries 2, or --on-runaway stop"),
        ("give speaker_embedding=\"zero\"", "give --speaker-embedding zero"),
        ("Found: posterior='mean', latents=False.", "Found: --posterior mean, --no-latents."),
        ("give split_limit=None, or less", "give --split-limit none, or less"),
        ("ask for max_steps=10, or", "ask for --max-steps 10, or"),
        ("retries cannot be used", "--retries cannot be used"),
        ("steps cannot be used", "--steps cannot be used"),
        ("do: load(..., slots=...) with fewer", "do: ask for fewer --slots"),
        ("change retries, or leave it out", "change --retries, or leave it out"),
        ("leave voice out; for", "leave --voice out; for"),
        ("It is wrong.\n  Expected: no voice.", "It is wrong.\n  Expected: no --voice."),
        ("51 steps, ended by max_steps; try", "51 steps, ended by --max-steps; try"),
        ("emotion is none that is known", "--emotion is none that is known"),
        # What is no spelling of an option is left alone.
        ("the seed of the noise", "the seed of the noise"),
        ("a voice or a reference for each", "a voice or a reference for each"),
        ("/data/max_steps/a.wav cannot be read", "/data/max_steps/a.wav cannot be read"),
        ("reference_text.txt cannot be read", "reference_text.txt cannot be read"),
        ("my_max_steps", "my_max_steps"),
    ],
)  # fmt: skip
def test_python_names_become_options(message: str, said: str) -> None:
    assert wording.in_options(message) == said


#: A Python name, or a value given to one.
PYTHON = re.compile(r"\b[a-z]+_[a-z]+\b|[a-z]=(?:None|True|False|[\[{\"'])|[A-Z]\w+\(")


@pytest.mark.parametrize(
    "arguments",
    [
        ["a", "--retries", "-1"],
        ["a", "--max-steps", "0"],
        ["a", "--min-steps", "0"],
        ["a", "--split-limit", "0"],
        ["a", "--split-limit", "19"],
        ["a", "--guidance", "nan"],
        ["a", "--prompt", "\x07"],
        ["a", "--style", " "],
        ["a", "--emotion", "bored"],
        ["a", "--ip", "Nobody"],
        ["a", "--no-latents"],
        ["a", "--instruction", "[1]"],
        ["a", "--instruction", " "],
        ["a", "--background", "snr=nan"],
        ["a", "--reference", "REF", "--speaker-embedding", "none", "--no-latents"],
        ["a", "--voice", "REF", "--reference-text", "b"],
        ["a", "--voice", "REF", "--reference", "REF"],
        ["a", "--voice", "REF", "--speaker-embedding", "zero"],
        ["a", "--voice", "REF", "--speaker-embedding", "none"],
        ["a", "--voice", "CON"],
        [" speaker_1:a\n speaker_2:b\n", "--reference", "REF"],
        ["--sound-event", " "],
        ["--sound-event", "a", "--emotion", "happy"],
    ],
)
def test_refusals_have_no_python_in_them(
    arguments: list[str], wave: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [str(wave) if word == "REF" else word for word in arguments]
    assert main.main(["speak", *words, "-o", str(tmp_path / "a.wav")]) == 2
    error = capsys.readouterr().err.replace("speaker_2", "").replace("audio_sequence", "")
    assert not PYTHON.search(error), error


@pytest.fixture
def wave(tmp_path: Path) -> Path:
    """A second and a half of a hum."""
    import numpy as np
    import soundfile

    path = tmp_path / "ref.wav"
    soundfile.write(path, 0.3 * np.sin(np.arange(24_000) * 0.1), 16_000)
    return path


@pytest.mark.parametrize("limit", ["0", "19", "5001"])
def test_a_split_limit_out_of_range_is_told_the_rule(
    limit: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The range of the help: 20 to 5000, or none."""
    assert main.main(["speak", "a", "--split-limit", limit, "-o", str(tmp_path / "a.wav")]) == 2
    error = capsys.readouterr().err
    assert "--split-limit cannot be used" in error
    assert "Expected: none, or a number of 20 or more" in error


def test_warnings_are_said_in_options(capsys: pytest.CaptureFixture[str]) -> None:
    warning = 'runaway: try another seed, retries=2, or on_runaway="stop"'
    summary = speak_report.Summary(1000, 7, "stop", 9, 4.5, 0.25, 0.5, (), (warning,))
    speak_report.report(summary, where="a.wav", engines=Path("/e"), quiet=True)
    assert capsys.readouterr().err == (
        "warning: runaway: try another seed, --retries 2, or --on-runaway stop\n"
    )


def test_options_that_go_in_as_they_are_are_spelled_alike() -> None:
    for name in speak_options._AS_THEY_ARE:
        assert wording.SPELLINGS[name] == "--" + name.replace("_", "-")
