"""Audio files that are either whole or not there: written under a temporary name, then renamed."""

from __future__ import annotations

import io
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trt_runtime.errors import UserError, reason_of
from trt_runtime.interruption import interruptions_wait
from trt_runtime.whole_file import check_replaceable_file

#: Formats that soundfile lists but that do not hold this audio: two files, a wrong rate, damage.
_UNSUITED = {"HTK", "SD2", "SDS", "WVE"}
#: Encodings that know few sample rates, in Hz.
_RATES = {"OPUS": (8_000, 12_000, 16_000, 24_000, 48_000)}
#: Extensions that are not the name of their format, with the encoding where it is not the default.
_OTHER_EXTENSIONS: dict[str, tuple[str, str | None]] = {
    "aif": ("AIFF", None),
    "oga": ("OGG", None),
    "opus": ("OGG", "OPUS"),
}

#: Samples a call of the encoder.
_BLOCK = 1 << 16


def writable_extensions() -> list[str]:
    """Every file name extension that audio can be written with, without the dot, sorted."""
    import soundfile

    formats = {name.lower() for name in soundfile.available_formats() if name not in _UNSUITED}
    return sorted(formats | _OTHER_EXTENSIONS.keys())


def check_destination(path: str | os.PathLike[str], subtype: str | None = None) -> None:
    """Raises UserError where :class:`AudioFileWriter` would refuse `path` or `subtype`.

    For asking before speech is made, so that minutes of work are not thrown away at its end.
    """
    path = Path(path)
    _format_of(path, subtype)
    _check_place(path)


class AudioFileWriter:
    """Writes mono float32 audio to `path`, in the format of its extension; a context manager.

    subtype: soundfile's name of an encoding ("PCM_24", "FLOAT"); None is the format's usual one.
    Audio beyond 1 is clipped where the encoding is of whole numbers. The file appears, or replaces
    the one that was there, when the `with` block ends without an exception; after any failure
    nothing is left behind. Raises UserError for an unknown extension or subtype, a missing or
    unwritable folder, and a disk that fills.
    """

    def __init__(
        self, path: str | os.PathLike[str], sample_rate: int, subtype: str | None = None
    ) -> None:
        self._asked = Path(path)
        self._format, self._subtype = _format_of(self._asked, subtype)
        self._sample_rate = sample_rate
        if sample_rate not in (rates := _RATES.get(self._subtype, (sample_rate,))):
            raise UserError(
                f"{self._subtype.capitalize()} cannot hold {sample_rate} samples a second",
                expected=", ".join(map(str, rates)),
                found=str(sample_rate),
                do="write .ogg (Vorbis), .mp3 or .flac",
            )
        # A link is followed, so that the file it names is replaced and not the link.
        self._path = Path(os.path.realpath(self._asked))
        self._temporary = self._path.with_name(f".ming-trt-{secrets.token_hex(8)}.part")

    def __enter__(self) -> Self:
        import soundfile

        _check_place(self._asked)
        try:
            self._file = _ErrorKeepingFile(self._temporary)
        except OSError as error:
            raise _unwritable(self._asked, error) from error
        try:
            # The encoder is C code that writes through this module's Python file.
            with interruptions_wait():
                self._encoder = soundfile.SoundFile(
                    self._file, "w", self._sample_rate, 1, self._subtype, format=self._format
                )
        except BaseException as error:
            self._discard()
            self._explain(error)
            raise
        return self

    def write(self, audio: NDArray[np.float32]) -> None:
        """Appends `audio`: (samples,) float32."""
        try:
            # In blocks: libsndfile's Vorbis encoder puts a whole write on the stack, and a minute
            # of it ends the process.
            for start in range(0, len(audio), _BLOCK):
                with interruptions_wait():
                    self._encoder.write(audio[start : start + _BLOCK])
        except Exception as error:
            self._explain(error)
            raise
        self._file.raise_kept(self._asked)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._discard()
            return
        try:
            with interruptions_wait():
                self._encoder.close()
                self._file.raise_kept(self._asked)
                # Some file systems tell only now that the disk is full.
                os.fsync(self._file.fileno())
                self._file.close()
                self._temporary.replace(self._path)
        except BaseException as failure:
            self._discard()
            self._explain(failure)
            raise

    def _explain(self, error: BaseException) -> None:
        """Raises UserError in place of what the operating system or the encoder said."""
        import soundfile

        self._file.raise_kept(self._asked)
        # soundfile asserts that everything was written.
        if isinstance(error, OSError | AssertionError | soundfile.SoundFileError):
            raise _unwritable(self._asked, error) from error

    def _discard(self) -> None:
        encoder = getattr(self, "_encoder", None)
        with interruptions_wait():
            try:
                if encoder is not None:
                    encoder.close()
            except Exception:
                # The file is given up; what matters is the error that led here.
                pass
            finally:
                self._file.close()
                self._temporary.unlink(missing_ok=True)


class _ErrorKeepingFile(io.FileIO):
    """A new file that keeps the first error of a write, which the encoder's C code cannot raise."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x+")
        self._kept: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        written = 0
        try:
            while written < len(view):
                written += super().write(view[written:])
        except OSError as error:
            self._kept = self._kept or error
        return written

    def raise_kept(self, path: Path) -> None:
        if self._kept is not None:
            raise _unwritable(path, self._kept) from self._kept


def _format_of(path: Path, subtype: str | None) -> tuple[str, str]:
    """soundfile's names of the format and the encoding for `path`; UserError where it has none."""
    import soundfile

    extension = path.suffix[1:].lower()
    if extension not in writable_extensions():
        raise UserError(
            f"{path} does not say which audio format to write",
            expected="a name that ends in ." + ", .".join(writable_extensions()),
            found=f"the extension .{extension}" if extension else "a name without an extension",
            do="end the name in .wav",
        )
    format_name, usual = _OTHER_EXTENSIONS.get(extension, (extension.upper(), None))
    # Headerless files have no usual encoding.
    chosen = subtype or usual or soundfile.default_subtype(format_name) or "PCM_16"
    if not isinstance(chosen, str) or not soundfile.check_format(format_name, chosen):
        raise UserError(
            f"A .{extension} file cannot hold the encoding {subtype!r}",
            expected="one of " + ", ".join(sorted(soundfile.available_subtypes(format_name))),
            do="choose one of them, or leave subtype out",
        )
    return format_name, chosen.upper()


def _check_place(path: Path) -> None:
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise UserError(
            f"{path} cannot be written",
            expected="a folder that exists",
            found=f"no folder {folder}",
            do=f"make it first: mkdir -p {folder}",
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            f"{path} cannot be written",
            expected="a folder that you may write to",
            found=f"no permission to write in {folder}",
            do="choose another folder",
        )
    check_replaceable_file(path)


def _unwritable(path: Path, error: BaseException) -> UserError:
    return UserError(
        f"{path} cannot be written",
        found=reason_of(error) or repr(error),
        do="free some space, or choose another folder or format",
    )
