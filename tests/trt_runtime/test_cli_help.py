"""The help of every subcommand: at once, in any encoding, and by one rule."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trt_runtime.cli import main

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = (
    "import sys\n"
    "from trt_runtime.cli.main import main\n"
    "try: main(sys.argv[1:])\n"
    "except SystemExit: pass\n"
    "heavy = ('numpy', 'onnxruntime', 'safetensors', 'soundfile', 'tokenizers', 'wetext')\n"
    "print('loaded:', [name for name in heavy if name in sys.modules])\n"
)


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser and those of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for other in action.choices.values():
                yield from parsers(other)


EVERY = list(parsers(main.build_parser({name: main.find_commands()[name] for name in main.OWN})))


@pytest.mark.parametrize("words", [[name] for name in main.OWN] + [["voices", "add"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words, "--help"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert result.stdout.startswith(f"usage: ming-trt {' '.join(words)} ")
    assert result.stdout.endswith("loaded: []\n")


@pytest.mark.parametrize("parser", EVERY, ids=lambda parser: parser.prog)
def test_help_can_be_shown_in_any_encoding(parser: argparse.ArgumentParser) -> None:
    assert parser.format_help().isascii()


@pytest.mark.parametrize("option", ["--engines", "--threads", "--voices", "--json"])
def test_an_option_of_several_commands_has_one_meaning(option: str) -> None:
    found = [
        (action.help, action.metavar, action.type)
        for parser in EVERY
        for action in parser._actions
        if option in action.option_strings
        and parser.prog != "ming-trt inspect"
        # Takes a file too: what took minutes to measure is kept.
        and (parser.prog, option) != ("ming-trt bench", "--json")
    ]
    assert len(found) > 1
    assert len(set(found)) == 1


def test_every_option_of_a_text_reads_it_from_a_file_too() -> None:
    """Those that take a whole text say so; `value_or_file` is what reads it."""
    texts = {
        (parser.prog, action.option_strings[0]): action.help
        for parser in EVERY
        for action in parser._actions
        if action.option_strings and (action.metavar == "TEXT" or action.dest in ("text", "style"))
    }
    assert {option for _, option in texts} == {
        "--instruction", "--prompt", "--reference-text", "--sound-event", "--style", "--text",
    }  # fmt: skip
    assert all(text and "@FILE reads" in text for text in texts.values()), texts
