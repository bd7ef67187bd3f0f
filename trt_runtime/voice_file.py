"""The file that a voice is kept in: safetensors, written the same each time and read with distrust.

The file is safetensors (https://huggingface.co/docs/safetensors), which holds numbers and text and
can run nothing. Tensors, all float32 and no others: `speaker_embedding` (192,), and `latent_mean`
and `latent_std` (latents, latent_dim), each where the voice has it. Metadata, all of it text:

| key | value |
|---|---|
| format | ming-trt-voice |
| format_version | 1 |
| family | the manifest's family of the model that made it |
| checkpoint | hex SHA-256 of that model's tensors; empty where unknown |
| sample_rate | of the model's audio, in Hz |
| patch | latents a patch |
| samples | length of the reference at sample_rate; 0 where unknown |
| transcript | words of the reference; left out where the voice has none |
| warnings | JSON list of texts: what was remarked when it was made |

The header's keys are sorted, so equal voices are equal bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trt_runtime.errors import UserError, reason_of
from trt_runtime.printable import shown
from trt_runtime.whole_file import check_plain_file

#: Bytes of the largest voice file that is written or read: hours of reference.
LARGEST_FILE = 64 << 20
#: The tensors that a voice may have.
TENSORS = ("speaker_embedding", "latent_mean", "latent_std")
MAKE_AGAIN = (
    "get the file again, or make the voice again from its recording: "
    "ming-trt voices add NAME REF.wav"
)

#: The longest transcript and remarks, several times over.
_LARGEST_HEADER = 8 << 20

_FORMAT, _VERSION = "ming-trt-voice", "1"
_METADATA = "__metadata__"  # the format's own key for it
_NEEDED = (
    "format", "format_version", "family", "checkpoint", "sample_rate", "patch", "samples",
    "warnings",
)  # fmt: skip
_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")


def voice_bytes(
    arrays: Mapping[str, NDArray[np.float32] | None], metadata: Mapping[str, str]
) -> bytes:
    """A voice file of `arrays`, by names of :data:`TENSORS`, and a voice's own `metadata`."""
    from safetensors.numpy import save

    plain = save({name: array for name, array in arrays.items() if array is not None})
    length = int.from_bytes(plain[:8], "little")
    # The library writes metadata in an order that changes with every process.
    named = {"format": _FORMAT, "format_version": _VERSION, **metadata}
    header = {_METADATA: named, **json.loads(plain[8 : 8 + length])}
    text = json.dumps(header, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    encoded = text.encode("utf-8")
    encoded += b" " * (-len(encoded) % 8)  # so that numbers begin at a multiple of 8
    return len(encoded).to_bytes(8, "little") + encoded + plain[8 + length :]


def voice_values(path: Path) -> dict[str, Any]:
    """What the file at `path` gives of a voice, by field.

    Raises UserError naming the file where it cannot be read, is no voice, is of another format
    version, or holds anything that a voice does not.
    """
    tensors, metadata = _parse(path, _read(path))
    return _values(path, metadata) | _arrays(path, tensors)


def _read(path: Path) -> bytes:
    try:
        check_plain_file(path)
        size = path.stat().st_size
        if size <= LARGEST_FILE:
            with path.open("rb") as file:
                data = file.read(LARGEST_FILE + 1)
            size = len(data)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read",
            expected="a voice: one readable file",
            found=reason_of(error),
            do="check the path and its permissions",
        ) from error
    if size > LARGEST_FILE:
        raise UserError(
            f"{path} is too large for a voice",
            expected=f"at most {LARGEST_FILE / 1e6:.0f} MB",
            found=f"{size / 1e6:.0f} MB",
            do="check the path; a checkpoint is no voice",
        )
    return data


def _parse(path: Path, data: bytes) -> tuple[list[tuple[str, Any]], dict[str, str]]:
    """Every tensor with its name, and the metadata."""
    import safetensors

    try:
        if int.from_bytes(data[:8], "little") > _LARGEST_HEADER:
            raise ValueError(f"its header has more than {_LARGEST_HEADER} bytes")
        # It checks that the tensors' bytes are where the header says, and that metadata is text.
        tensors = safetensors.deserialize(data)
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length], object_pairs_hook=_unique)
    except (safetensors.SafetensorError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not a voice, or it is damaged",
            expected="a safetensors file",
            found=shown(error, 200, str),
            do=MAKE_AGAIN,
        ) from error
    metadata = header.get(_METADATA) or {}
    if metadata.get("format") != _FORMAT:
        raise UserError(
            f"{path} is a safetensors file and not a voice",
            expected=f"format {_FORMAT} in its metadata",
            found=shown(metadata["format"], 200) if "format" in metadata else "no format",
            do="give a file that ming-trt voices export wrote, or make a voice from a recording: "
            "ming-trt voices add NAME REF.wav",
        )
    if metadata.get("format_version") != _VERSION:
        raise UserError(
            f"{path} has another format version",
            expected=f"format version {_VERSION}",
            found=f"format version {shown(metadata.get('format_version'), 200, str)}",
            do="update ming-trt, or make the voice again from its recording: "
            "ming-trt voices add NAME REF.wav",
        )
    return tensors, metadata


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name is given twice in its header")
    return values


def _values(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """What metadata gives of a voice, by field; text that is no number is left for the voice."""
    unknown = metadata.keys() - {*_NEEDED, "transcript"}
    missing = [name for name in _NEEDED if name not in metadata]
    if unknown or missing:
        raise _damaged(
            path,
            "the metadata " + ", ".join(_NEEDED) + " and perhaps transcript, and no other",
            f"no {', '.join(missing)}" if missing else f"also {shown(sorted(unknown), 200)}",
        )
    values: dict[str, Any] = {name: metadata[name] for name in ("family", "checkpoint")}
    for name in ("sample_rate", "patch", "samples"):
        text = metadata[name]
        values[name] = int(text) if _WHOLE.fullmatch(text) else text
    values["transcript"] = metadata.get("transcript")
    try:
        values["warnings"] = json.loads(metadata["warnings"])
    except (ValueError, RecursionError):
        values["warnings"] = metadata["warnings"]
    return values


def _arrays(path: Path, tensors: list[tuple[str, Any]]) -> dict[str, NDArray[np.float32] | None]:
    arrays: dict[str, NDArray[np.float32] | None] = dict.fromkeys(TENSORS)
    for name, tensor in tensors:
        if name not in TENSORS or tensor["dtype"] != "F32":
            raise _damaged(
                path,
                f"only the tensors {', '.join(TENSORS)}, of dtype F32",
                f"{shown(name, 200)} of dtype {tensor['dtype']}",
            )
        numbers = np.frombuffer(tensor["data"], "<f4").astype(np.float32)
        arrays[name] = numbers.reshape(tensor["shape"]) if numbers.size else numbers
    return arrays


def _damaged(path: Path, expected: str, found: str) -> UserError:
    return UserError(f"{path} is a damaged voice", expected=expected, found=found, do=MAKE_AGAIN)
