"""`ming-trt normalize`: by the library, and by the model."""

from __future__ import annotations

import io
import sys

import pytest

from trt_runtime import synthesizer
from trt_runtime.cli import main, wording
from trt_runtime.errors import UserError


class FakeSynthesizer:
    def __init__(self, written):
        self.written = written
        self.asked = None

    def normalize_text(self, text, **options):
        self.asked = (text, options)
        return self.written


@pytest.fixture
def fake(in_place_of_load):
    return in_place_of_load(FakeSynthesizer("two\x1b[2J\tapples\u3000\n"))


@pytest.mark.parametrize(
    ("text", "spelled"),
    [("I have 3 cats.", "I have three cats."), ("我有3个苹果\u3000\t好", "我有三个苹果\u3000\t好")],
)
def test_the_library_spells_out_without_engines(text, spelled, fake, capsys):
    assert main.main(["normalize", text]) == 0
    assert capsys.readouterr() == (f"{spelled}\n", "")
    assert fake.loaded is None


def test_text_comes_from_standard_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1 apple\r\nNo more\n")))
    assert main.main(["normalize", "-"]) == 0
    assert capsys.readouterr().out == "one apple\nNo more\n"


def test_the_model_writes_where_it_is_asked_to(fake, capsys):
    """What it writes can move no cursor, and is otherwise left alone."""
    assert main.main(["normalize", "2 apples", "--model"]) == 0
    assert fake.asked == ("2 apples", {})
    assert fake.loaded == {"engines": None, "threads": None}
    assert fake.closed
    assert capsys.readouterr().out == "two\\x1b[2J\tapples\u3000\n\n"
    arguments = ["--model", "--engines", "E", "--max-tokens", "9", "--threads", "2"]
    assert main.main(["normalize", "2 apples", *arguments]) == 0
    assert fake.asked == ("2 apples", {"max_tokens": 9})
    assert fake.loaded == {"engines": "E", "threads": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([" "], "text is blank"),
        (["a\x07", "--model"], "U+0007"),
        (["a", "--engines", "E"], "--engines without --model"),
        (["a", "--max-tokens", "9", "--threads", "1"], "--max-tokens and --threads without"),
    ],
)
def test_bad_input_is_refused_before_anything_is_loaded(arguments, message, fake, capsys):
    assert main.main(["normalize", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert fake.loaded is None


@pytest.mark.parametrize("model", [[], ["--model"]])
def test_without_standard_output(model, fake, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert main.main(["normalize", "a", *model]) == 2
    assert "There is no standard output" in capsys.readouterr().err
    assert fake.loaded is None


def test_the_models_own_mode_is_that_of_python(dense, capsys):
    """The tiny checkpoint writes no end: the command reports it as the function does."""
    arguments = ["normalize", "3 cats", "--model", "--engines", str(dense.engines)]
    with synthesizer.load(dense.engines) as loaded:
        try:
            expected = (0, loaded.normalize_text("3 cats", max_tokens=4) + "\n", "")
        except UserError as error:
            expected = (2, "", f"ming-trt: {wording.in_options(str(error))}\n")
    status = main.main([*arguments, "--max-tokens", "4"])
    assert (status, *capsys.readouterr()) == expected
