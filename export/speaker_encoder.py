"""The speaker encoder of a checkpoint: CAM++, a third party's ONNX file, checked and taken as is.

Its number of frames is dynamic: it runs once a reference (Wang et al. 2023, arXiv:2303.00332).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from export.whole_file import whole_file
from trt_runtime.contract import SPEAKER_DIM, SPEAKER_FEATURES
from trt_runtime.errors import UserError

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

#: The name under which checkpoints carry it.
CAMPPLUS = "campplus.onnx"

#: The released file is 28 MB.
_LARGEST_FILE = 512 << 20
#: Operators that could run for ever, or give another voice each time.
_REFUSED = {
    "Bernoulli", "Loop", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike", "Scan", "SequenceMap",
}  # fmt: skip
_STANDARD_DOMAINS = ("", "ai.onnx")


def write_speaker_encoder(folder: Path, out_path: Path) -> bool:
    """Copies the checkpoint's speaker encoder to `out_path`; False where it has none.

    Raises UserError for a file that is no speaker encoder, or that asks for more than ONNX's own
    operators and its own bytes.
    """
    content = read_speaker_encoder(folder)
    if content is None:
        return False
    with whole_file(out_path, len(content)) as file:
        file.write(content)
    return True


def find_speaker_encoder(folder: Path) -> Path | None:
    """The checkpoint's speaker encoder, None where it has none; UserError where it cannot be one.

    Looks at the file and not into it, for the preflight, which imports no onnx.
    """
    path = folder / CAMPPLUS
    if not os.path.lexists(path):
        return None
    if not path.is_file():
        raise _refused(path, "something that is no plain file")
    size = path.stat().st_size
    if size == 0:
        raise _refused(path, "an empty file")
    if size > _LARGEST_FILE:
        raise _refused(path, f"{size} bytes, more than {_LARGEST_FILE}")
    return path


def read_speaker_encoder(folder: Path) -> bytes | None:
    """The checked bytes of the checkpoint's speaker encoder, None where it has none."""
    path = find_speaker_encoder(folder)
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _refused(path, str(error)) from error
    check_speaker_encoder(path, content)
    return content


def check_speaker_encoder(path: Path, content: bytes) -> None:
    """Raises UserError where `content`, the bytes of `path`, is no speaker encoder."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        model = onnx.ModelProto.FromString(content)
        _check(path, model)
        onnx.checker.check_model(model)
    except (DecodeError, onnx.checker.ValidationError) as error:
        found = (str(error).splitlines() or ["a damaged file"])[0]
        raise _refused(path, found) from error


def _check(path: Path, model: ModelProto) -> None:
    from onnx import TensorProto

    nodes = list(_nodes(model.graph))
    domains = {entry.domain for entry in model.opset_import}
    domains.update(node.domain for node in nodes)
    if refused := sorted({node.op_type for node in nodes} & _REFUSED):
        raise _refused(path, f"the operators {', '.join(refused)}, which run without end or draw")
    if model.functions:
        raise _refused(path, "functions of its own")
    if foreign := domains - set(_STANDARD_DOMAINS):
        raise _refused(path, f"operators of {', '.join(sorted(foreign))}")
    if any(t.data_location == TensorProto.EXTERNAL for t in model.graph.initializer):
        raise _refused(path, "weights in other files")
    known = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in known]
    found = [_dimensions(value) for value in (*inputs, *model.graph.output)]
    # The output's declared width is not looked at: released files declare another than they give,
    # and the runtime tries the graph before it is used.
    if len(found) != 2 or found[1] is None or not _fits(found[0], (1, None, SPEAKER_FEATURES)):
        raise _refused(path, f"inputs and outputs of shapes {found}")


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Every node, also those of graphs inside nodes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _dimensions(value: ValueInfoProto) -> list[int | str] | None:
    """A float32 tensor's sizes, dynamic ones by name; None for any other value."""
    from onnx import TensorProto

    kind = value.type.tensor_type
    if kind.elem_type != TensorProto.FLOAT or not kind.HasField("shape"):
        return None
    return [
        d.dim_value if d.HasField("dim_value") else d.dim_param or "dynamic" for d in kind.shape.dim
    ]


def _fits(found: list[int | str] | None, wanted: tuple[int | None, ...]) -> bool:
    """Whether a tensor of the sizes `wanted` (None: any) may have the dimensions `found`."""
    return (
        found is not None
        and len(found) == len(wanted)
        and all(
            isinstance(have, str) or have == want for have, want in zip(found, wanted, strict=True)
        )
    )


def _refused(path: Path, found: str) -> UserError:
    return UserError(
        f"{path} is no speaker encoder that can be used",
        expected=f"CAM++ as one ONNX file of standard operators, float32 (1, frames, "
        f"{SPEAKER_FEATURES}) to (1, {SPEAKER_DIM})",
        found=found,
        do="download it again; or remove it, and give speaker embeddings yourself",
    )
