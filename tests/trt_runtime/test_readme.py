"""The README's examples, run as they stand, with folders that exist in place of its capitals."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trt_runtime
from engines.cli import parser as engines_parser
from export.__main__ import parser as export_parser
from trt_runtime.cli import main
from trt_runtime.manifest import read_manifest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: What a reader would have in place of the README's names; its lines are for the released rate.
CHECKPOINT = ROOT / "examples" / "demo-checkpoint"
#: A command's first words, as the README has them: the module that it runs.
PROGRAMS = {
    ("python", "-m", "export"): "export",
    ("build-engines",): "engines.cli",
    ("ming-trt",): "trt_runtime.cli.main",
}
#: Options of programs that are not ours.
FOREIGN = {"pip", "make", "aplay"}


def blocks(language: str, section: str = "") -> list[str]:
    """The code blocks of a language, in one section or in all."""
    text = README
    if section:
        _, found, rest = text.partition(f"\n## {section}\n")
        assert found, f"README.md has no section {section!r}"
        text = rest.partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(section: str = "") -> Iterator[list[str]]:
    """The words of every shell line, those of a pipe one after the other."""
    for block in blocks("sh", section):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            while "|" in words:
                end = words.index("|")
                yield words[:end]
                words = words[end + 1 :]
            if words:
                yield words


def ours(words: list[str]) -> tuple[str, list[str]] | None:
    """The module and the arguments of a command of this project; None of any other."""
    for start, module in PROGRAMS.items():
        if tuple(words[: len(start)]) == start:
            return module, words[len(start) :]
    return None


def parser_of(module: str) -> argparse.ArgumentParser:
    if module == "export":
        return export_parser()
    return engines_parser() if module == "engines.cli" else main.build_parser(main.find_commands())


def run(words: list[str], cwd: Path, engines: Path) -> subprocess.CompletedProcess[bytes]:
    found = ours(words)
    assert found is not None
    module, arguments = found
    folders = {"CHECKPOINT": str(CHECKPOINT), "ENGINES": str(engines)}
    return subprocess.run(
        [sys.executable, "-m", module, *(folders.get(word, word) for word in arguments)],
        cwd=cwd, check=True, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


FROM_CHECKPOINT = list(commands("From a checkpoint to sound"))
#: Those that need neither a fresh bundle nor fresh engines: tests/test_demo.py makes these.
RUNNABLE = [
    words
    for words in FROM_CHECKPOINT
    if words[0] == "ming-trt" or words[:4] == ["python", "-m", "export", "--check"]
]


def test_the_shell_lines_are_found() -> None:
    assert [words[:2] for words in RUNNABLE] == [
        ["python", "-m"], ["ming-trt", "speak"], ["ming-trt", "speak"], ["ming-trt", "inspect"],
    ]  # fmt: skip


@pytest.mark.parametrize("words", RUNNABLE, ids=lambda words: " ".join(words[:4]))
def test_shell_lines_do_what_they_say(
    words: list[str], tmp_path: Path, random_engines: Path
) -> None:
    output = run(words, tmp_path, random_engines).stdout
    if "speak" not in words:
        assert output
    elif "--stream" in words:
        assert len(output) > 2 * 11_025  # 16 bits a sample, and more than the first chunk
    else:
        assert (tmp_path / "hello.wav").stat().st_size > 2 * 11_025


def test_the_player_is_told_what_comes_through_the_pipe(random_engines: Path) -> None:
    (player,) = (words for words in FROM_CHECKPOINT if words[0] == "aplay")
    told = dict(zip(player[1::2], player[2::2], strict=True))
    rate = read_manifest(random_engines).geometry.sample_rate
    assert told == {"-f": "S16_LE", "-r": str(rate), "-c": "1"}


def test_the_python_examples(tmp_path: Path, random_engines: Path) -> None:
    """All of them, one after the other, as somebody types them in."""
    code = "\n".join(blocks("python"))
    played = "played = []\ndef play(audio, rate): played.append(len(audio))\n"
    program = (
        played + code.replace('"ENGINES"', repr(str(random_engines))) + "\nprint(sum(played))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    first, *submitted, last = result.stdout.splitlines()
    assert len(submitted) == 3
    assert all(float(seconds) > 0 for seconds in submitted)
    assert re.fullmatch(r"\d+\.\d+ (stop|max_steps) \d+\.\d+", first)
    assert int(last) > 11_025
    assert (tmp_path / "hello.flac").stat().st_size > 1000


@pytest.mark.parametrize(
    "words", [words for words in commands() if ours(words)], ids=lambda words: " ".join(words[:4])
)
def test_every_command_line_is_one_that_the_parser_takes(words: list[str]) -> None:
    found = ours(words)
    assert found is not None
    module, arguments = found
    _, unknown = parser_of(module).parse_known_args(arguments)
    assert unknown == []


def test_no_command_line_is_left_out() -> None:
    for words in commands():
        program = next(word for word in words if "=" not in word)
        assert ours(words) or program in FOREIGN, words


def test_every_option_in_the_text_exists() -> None:
    parsers = [parser_of(module) for module in PROGRAMS.values()]
    known = set()
    while parsers:
        parser = parsers.pop()
        for action in parser._actions:
            known |= set(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
    foreign = {word for words in commands() if not ours(words) for word in words}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", README)) - foreign
    assert {"--check", "--download", "--stream", "--target"} <= named
    assert named - known == set()


def test_the_wheel_is_named_by_its_version() -> None:
    assert set(re.findall(r"ming_trt-([\d.]+)-py3", README)) == {trt_runtime.__version__}


def test_the_tests_that_hold_the_invariants_exist() -> None:
    """docs/architecture.md names a file in full, then others of the same folder by name."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| .*$", text, re.MULTILINE)
    assert rows == [str(number) for number in range(1, 11)]
    for line in re.findall(r"^\| \d+ \| .*$", text, re.MULTILINE):
        folder = Path("tests")
        for name in re.findall(r"`((?:tests/\w+/)?test_[\w*]+\.py)`", line):
            folder = Path(name).parent if "/" in name else folder
            assert list((ROOT / folder).glob(Path(name).name)), f"{folder}: {name}"
