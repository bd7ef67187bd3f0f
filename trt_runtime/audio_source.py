"""A stranger's audio file: opened once, read up to a limit, and checked to be what it claims."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trt_runtime.errors import UserError, reason_of

#: A file with less than this part of what its header promises is cut short. Headers of programs
#: that did not know the length promise about 2 or 4 GB.
_WHOLE, _UNKNOWN_BYTES = 0.99, 0x7FFF0000
_PROMISE = re.compile(r"^\s*(?:data|SSND|Data Size)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)

#: Values that are worked on at a time.
BLOCK = 1 << 18
#: Not every system has each of these.
_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_BINARY"))

#: Offset, first bytes there, and what such a file is, of formats that libsndfile does not read.
_FOREIGN_FORMATS = [
    (4, b"ftyp", "an MP4 or QuickTime container: a video, or AAC audio (.m4a)"),
    (0, b"\x1a\x45\xdf\xa3", "a Matroska or WebM container: a video"),
    (8, b"AVI ", "an AVI container: a video"),
    (0, b"FLV\x01", "a Flash video"),
    (0, b"\x00\x00\x01\xba", "an MPEG video"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "a Windows Media file: a video, or WMA audio"),
    (0, b"#!AMR", "AMR audio"),
    (0, b"\xff\xf1", "AAC audio"),
    (0, b"\xff\xf9", "AAC audio"),
    (0, b"MAC ", "Monkey's Audio"),
    (0, b"wvpk", "WavPack audio"),
]


@contextmanager
def opened_audio(path: str) -> Iterator[Any]:
    """The file at `path` as a `soundfile.SoundFile`, for reading.

    Raises UserError where it is no plain file with contents, is in a format that libsndfile does
    not read, or is damaged, also where that is found while it is read.
    """
    soundfile = _import_soundfile()
    descriptor = _open_plain_file(path)
    try:
        _check_is_audio(path, descriptor)
        with soundfile.SoundFile(_name_of(path, descriptor)) as file:
            yield file
    except soundfile.SoundFileError as error:
        found = getattr(error, "error_string", "") or str(error)
        raise UserError(
            f"{path} cannot be read as audio",
            expected="a whole WAV, FLAC, Ogg, MP3, AIFF or another file that libsndfile reads",
            found=f"{found.rstrip('.')}; it begins with {_head(descriptor)!r}",
            do=f"copy it again, or convert it: {ffmpeg(path)}",
        ) from error
    finally:
        os.close(descriptor)


def blocks(file: Any, most: int) -> Iterator[NDArray[np.float32]]:
    """(frames, channels) float32 each, until the file gives no more; `most` values at a time."""
    # In one read where memory allows: soundfile seeks after each, and an MP3 file of variable bit
    # rate goes on elsewhere.
    frames = max(1, min(file.frames, most // file.channels))
    while len(whole := file.read(frames, dtype="float32", always_2d=True)):
        step = max(1, BLOCK // file.channels)
        yield from (whole[first : first + step] for first in range(0, len(whole), step))


def _open_plain_file(path: str) -> int:
    """A descriptor of `path` for reading; UserError where it is no plain file with contents."""
    try:
        # Opening a pipe that nobody writes to would otherwise wait for ever.
        descriptor = os.open(path, _FLAGS)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be opened",
            expected="an audio file",
            found=reason_of(error),
            do="check the path and its permissions",
        ) from error
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size:
        return descriptor
    os.close(descriptor)
    kind = {stat.S_IFDIR: "a folder", stat.S_IFREG: "an empty file"}
    raise UserError(
        f"{path} holds no audio",
        expected="an audio file",
        found=kind.get(stat.S_IFMT(status.st_mode), "a device or a pipe"),
        do="give the path of a recording",
    )


def _name_of(path: str, descriptor: int) -> str:
    """A name for the file that is open, so that no other file can have taken its place.

    Given a descriptor, libsndfile looks for a resource fork of no name, "._" in the working
    directory, and refuses an MP3 beside such a file.
    """
    name = f"/dev/fd/{descriptor}"
    return name if Path(name).exists() else path


def _head(descriptor: int) -> bytes:
    """The file's first bytes; it is read from its beginning afterwards."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    head = os.read(descriptor, 24)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return head


def _check_is_audio(path: str, descriptor: int) -> None:
    head = _head(descriptor)
    for offset, signature, kind in _FOREIGN_FORMATS:
        if head[offset:].startswith(signature):
            raise UserError(
                f"{path} is in a format that is not read",
                expected="a WAV, FLAC, Ogg, MP3, AIFF or another file that libsndfile reads",
                found=kind,
                do=f"take the audio out of it: {ffmpeg(path)}",
            )


def check_is_whole(path: str, length: int, frames: int, log: str) -> None:
    """Raises UserError where much less was there than the header promised.

    libsndfile corrects the length of uncompressed files by their size, and says so in its log.
    """
    promised, there = frames, length
    corrected = _PROMISE.search(log)
    if corrected and int(corrected[1]) < _UNKNOWN_BYTES:
        promised, there = int(corrected[1]), int(corrected[2])
    if there < _WHOLE * promised:
        raise UserError(
            f"{path} is damaged or cut short",
            expected="all of the audio that its header promises",
            found=f"{there / promised:.0%} of it",
            do=f"copy it again; to use what is there: {ffmpeg(path)}",
        )


def ffmpeg(path: str, options: str = "-vn") -> str:
    """The command that makes a WAV file of the recording at `path`."""
    return f"ffmpeg -i {shlex.quote(path)} {options} reference.wav"


def _import_soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: libsndfile itself cannot be loaded
        raise UserError(
            "Audio files cannot be read",
            expected="the package soundfile",
            found=str(error),
            do="pip install soundfile",
        ) from error
    return soundfile
