"""Where a report and its picture go: never over what is compared, and both of them or neither."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from engines.comparison.plot import check_plot
from trt_runtime.cli.inputs import check_not_read, folder_files
from trt_runtime.errors import UserError
from trt_runtime.interruption import interruptions_wait
from trt_runtime.manifest import MANIFEST
from trt_runtime.whole_file import check_writable, link_target, written_beside


def check_destinations(
    json: Path | None, plot: Path | None, a: Path, b: Path, inputs: Path | None
) -> None:
    """Raises UserError where an output could not be written, or would replace what is read."""
    if plot is not None:
        check_plot(plot)
    if json is not None and plot is not None and link_target(json) == link_target(plot):
        raise UserError(
            "The report and the picture have one name",
            expected="two files",
            found=str(json),
            do="give --json and --plot other names",
        )
    for option, path in (("--json", json), ("--plot", plot)):
        if path is not None:
            check_not_read(option, str(path), _files_read(a, b, inputs))
            check_writable(path)


def write_all(files: Mapping[Path, bytes]) -> None:
    """All of them or none: each is whole beside its place before the first is renamed.

    A link is followed, and the file it names replaced.
    """
    with ExitStack() as stack:
        whole = {link_target(path): data for path, data in files.items()}
        ready = [(stack.enter_context(written_beside(p, data)), p) for p, data in whole.items()]
        with interruptions_wait():
            for temporary, path in ready:
                temporary.replace(path)


def _files_read(a: Path, b: Path, inputs: Path | None) -> Iterator[tuple[str, Path]]:
    """Each file of both sides and of the inputs, after what names it."""
    for name, folder in (("A", a), ("B", b)):
        if (folder / MANIFEST).exists():
            yield from folder_files(name, str(folder))
        elif (folder / "config.json").is_file():
            # A checkpoint lists no files: all that lies in its folder is the user's.
            yield from ((name, path) for path in folder.rglob("*") if path.is_file())
    if inputs is not None:
        yield "--inputs", inputs
