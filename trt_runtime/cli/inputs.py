"""What a command line names for reading: text in files and on standard input, pairs, arrays.

All of it is read up to a limit: a pipe may never end, and a header may promise anything.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trt_runtime.errors import UserError, reason_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PIPE = "-"
#: What a value begins with that names the file to read it from.
_FROM_FILE = "@"
#: Bytes of a file of speaker embeddings: more than a thousand speakers in float64.
_LARGEST_EMBEDDINGS = 2 << 20


def text_or_standard_input(text: str) -> str:
    """An argument, or standard input where it is "-": UTF-8, without a last newline."""
    if text != PIPE:
        return text
    if sys.stdin is None:
        raise UserError(
            "There is no standard input",
            expected="a pipe, a file or a terminal",
            found="a closed one",
            do="give the text itself, or start the command without <&-",
        )
    return _decoded("Standard input", _standard_input_bytes(_most_bytes()))


def file_text(path: str) -> str:
    """The text in a file, or on standard input where it is "-": UTF-8, without a last newline."""
    if path == PIPE:
        return text_or_standard_input(path)
    return _decoded(path, _file_bytes(path, _most_bytes()))


def named_file(value: str) -> str | None:
    """The file that an option's value names with "@" before it; None where it is the value."""
    return value.removeprefix(_FROM_FILE) if value.startswith(_FROM_FILE) else None


def value_or_file(option: str, value: str) -> str:
    """An option's value, or what is in the file that it names with "@" before it."""
    path = named_file(value)
    if path is None:
        return value
    if not path:
        raise UserError(
            f"{option} names no file",
            expected=f"{_FROM_FILE}FILE, or a text that does not begin with {_FROM_FILE}",
            found=value,
            do="write the file's name after it",
        )
    return file_text(path)


def pairs(option: str, values: Sequence[str]) -> dict[str, str]:
    """The values of an option that are NAME=VALUE, by name."""
    found: dict[str, str] = {}
    for given in values:
        name, sign, value = given.partition("=")
        name = name.strip()
        if not sign or not name or name in found:
            raise UserError(
                f"{option} is given twice for {name}"
                if name in found
                else f"{option} has a value without a name",
                expected="NAME=VALUE, each name once",
                found=given,
                do=f"write {option} NAME=VALUE, in quotation marks where it has spaces",
            )
        found[name] = value
    return found


def speaker_embeddings(path: str) -> list[NDArray[np.float32]]:
    """The speaker embeddings of a .npy file: (192,) or (speakers, 192), any float dtype.

    Raises UserError for a file that holds anything else; nothing in it is ever run.
    """
    import numpy as np
    from numpy.lib import format as npy

    from trt_runtime.contract import SPEAKER_DIM

    def refused(found: str) -> UserError:
        return UserError(
            f"{path} is no speaker embedding",
            expected=f"a .npy file of finite floats, shape ({SPEAKER_DIM},) or (speakers, "
            f"{SPEAKER_DIM}), of at most {_LARGEST_EMBEDDINGS:,} bytes",
            found=found,
            do="give auto, zero, none, or a file that numpy.save wrote",
        )

    data = _file_bytes(path, _LARGEST_EMBEDDINGS, plain=True)
    if len(data) > _LARGEST_EMBEDDINGS:
        raise refused("more")
    try:
        file = io.BytesIO(data)
        # The header first: it may promise more than memory holds.
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        shape, _, dtype = read_header[npy.read_magic(file)](file)
        if dtype.kind != "f" or shape[-1:] != (SPEAKER_DIM,) or len(shape) > 2 or 0 in shape:
            raise refused(f"shape {shape} of {dtype}")
        if math.prod(shape) * dtype.itemsize != len(data) - file.tell():
            raise refused(f"shape {shape} of {dtype} in {len(data):,} bytes")
        with np.errstate(over="ignore"):
            array = np.load(io.BytesIO(data), allow_pickle=False).astype(np.float32)
    except UserError:
        raise
    except Exception as error:  # a damaged header raises whatever it comes to
        raise refused(str(error) or type(error).__name__) from error
    if not np.isfinite(array).all():
        raise refused("NaN, infinity or a number beyond float32")
    return [np.ascontiguousarray(row) for row in np.atleast_2d(array)]


def check_not_read(option: str, path: str, read: Iterable[tuple[str, int | str | Path]]) -> None:
    """Raises UserError where the output `path` of `option` is one of the files that are `read`.

    Those come after what names them, each by its path or its descriptor.
    """
    for source, file in read:
        if _are_one(path, file):
            raise UserError(
                f"{option} and {source} name one file",
                expected="an output that is no input",
                found=path,
                do=f"give {option} another name; the file of {source} would be lost",
            )


def folder_files(option: str, folder: str) -> Iterator[tuple[str, Path]]:
    """Each file of a folder of engines after the option that names the folder."""
    from trt_runtime.manifest import MANIFEST, read_manifest

    with contextlib.suppress(UserError):  # told when it is loaded
        for file in (MANIFEST, *read_manifest(Path(folder)).files):
            yield option, Path(folder) / file


def _are_one(output: str, file: int | str | Path) -> bool:
    try:
        read = os.fstat(file) if isinstance(file, int) else Path(file).stat()
        return os.path.samestat(Path(output).stat(), read)
    except (OSError, ValueError):  # one is not there; a path with a null character
        return False


def _most_bytes() -> int:
    """No more than any text may have, and a byte order mark."""
    from trt_runtime.spoken_text import LONGEST_TEXT

    return 4 * LONGEST_TEXT + 8


def _file_bytes(path: str, most: int, *, plain: bool = False) -> bytes:
    """At most one byte more than `most`; with `plain` not of a pipe, which may be waited for."""
    from trt_runtime.whole_file import check_plain_file

    try:
        if plain:
            check_plain_file(Path(path))
        with Path(path).open("rb") as file:
            return file.read(most + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise _unreadable(path, error) from error


def _standard_input_bytes(most: int) -> bytes:
    """At most one byte more than `most`."""
    data = b""
    try:
        while len(data) <= most:
            part = sys.stdin.buffer.read(most + 1 - len(data))
            if part is None:
                # It has been set so; the text, or the rest of it, may still be on its way.
                raise UserError(
                    "Standard input has not ended, and does not wait",
                    expected="a pipe, a file or a terminal that is waited for",
                    found="a non-blocking one",
                    do="put cat between: ... | cat | ming-trt ...",
                )
            data += part
            # A terminal would have to be ended once more.
            if not part or sys.stdin.isatty():
                break
    except OSError as error:
        raise _unreadable("Standard input", error) from error
    return data


def _unreadable(name: str, error: Exception) -> UserError:
    return UserError(
        f"{name} cannot be read",
        found=reason_of(error),
        do="check what it is, and who may read it",
    )


def _decoded(name: str, data: bytes) -> str:
    from trt_runtime.dialogue import speakers_in_raw_text

    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        # Where more bytes follow the last character may be cut; the text is refused as too long.
        text = decoder.decode(data, final=len(data) <= _most_bytes())
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name} is not text",
            expected="UTF-8",
            found=f"byte 0x{error.object[error.start]:02X} at offset {error.start}",
            do="convert it first, for example with iconv -t UTF-8",
        ) from error
    text = text.replace("\r\n", "\n")
    # The last line of a dialogue in the reference's form ends as the others do.
    return text if speakers_in_raw_text(text) else text.removesuffix("\n")
