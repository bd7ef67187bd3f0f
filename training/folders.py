"""The folders that the commands read from and write to, and what to say where they cannot."""

from __future__ import annotations

from pathlib import Path

from trt_runtime.errors import UserError, reason_of


def made_folder(path: Path, what: str = "", option: str = "--out") -> Path:
    """`path`, made as needed. Raises UserError, which begins with `what`, where it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            what or f"The folder {path} cannot be made",
            expected="a folder, or a place for a new one",
            found=reason_of(error),
            do=f"choose another with {option}",
        ) from error
    return path


def read_lines(path: Path) -> list[str]:
    """The lines of a file of ASCII without the blank ones, nor blanks around them.

    Raises UserError where there is none, or one that cannot be spoken.
    """
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read",
            expected="sentences in ASCII, one a line",
            found=reason_of(error),
            do="give another file with --texts, or leave it out where WordNet is installed",
        ) from error
    # Not splitlines, which takes some control characters for ends of lines.
    numbered = [(at, line.strip(" \t")) for at, line in enumerate(text.split("\n"), 1)]
    lines = []
    for number, line in numbered:
        if not line:
            continue
        if not line.isprintable() or not any(map(str.isalnum, line)):
            raise UserError(
                f"Line {number} of {path} cannot be spoken",
                expected="letters or digits, and no control characters",
                found=repr(line),
                do="mend that line or delete it",
            )
        lines.append(line)
    if not lines:
        raise UserError(
            f"{path} holds no sentences",
            expected="sentences in ASCII, one a line",
            found="blank lines alone" if text else "an empty file",
            do="give another file with --texts, or leave it out where WordNet is installed",
        )
    return lines
