"""A bundle's graph made ready for a backend that takes it as it is: operators and types written in.

The same file is what TensorRT's parser gets and what ONNX Runtime's CUDA provider loads, so that
what is measured of one on a GPU is said of the graph of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from engines.float16_range import check_float16
from engines.graph_file import check_external_data, check_graph, read_graph, retyped
from engines.operator_forms import expand_operators, free_tokens
from engines.precision_casts import apply_types, plan_types
from engines.targets import GraphJob
from trt_runtime.errors import FolderError, MingError, UserError
from trt_runtime.manifest import GraphEntry, StoredTensor, export_command
from trt_runtime.operators import SOURCE_KEY


@dataclass(frozen=True)
class Prepared:
    """`model`, whose weights lie where the bundle has them; `entry`, with its tensors' types.

    `types` is the precision plan by node, `casts` names every cast that is in the model, those of
    the plan among them; `forms` says what each plugin operator became; `sources` gives by node the
    exporter's line.
    """

    model: onnx.ModelProto
    entry: GraphEntry
    types: Mapping[str, str]
    casts: frozenset[str]
    forms: Mapping[str, str]
    sources: Mapping[str, str]


def prepare(
    job: GraphJob, low: str | None, *, native: bool = False, any_tokens: bool = False
) -> Prepared:
    """Reads the job's graph and prepares it; `low` is the type of its products, None for float32.

    `native` makes plugin operators TensorRT's layers where it has them; `any_tokens` frees the
    number of tokens of a talker's step. Raises FolderError where the bundle's graph is damaged or
    contradicts its manifest.
    """
    model = read_graph(job.bundle, job.entry)
    check_external_data(job.bundle, job.entry, model, job.files)
    check_graph(job.bundle, job.entry, model)
    try:
        return _prepared(model, job, low, native=native, any_tokens=any_tokens)
    except (MingError, onnx.shape_inference.InferenceError, ValueError, IndexError) as error:
        if isinstance(error, UserError):
            raise
        raise FolderError(
            f"{job.bundle / job.entry.file} is no graph of the exporter's",
            expected="operators of ONNX and of this project, each node with a name of its own",
            found=" ".join(str(error).split()),
            do=f"make the bundle again: {export_command(job.bundle)}",
        ) from error


def _prepared(
    model: onnx.ModelProto, job: GraphJob, low: str | None, *, native: bool, any_tokens: bool
) -> Prepared:
    _check_names(model)
    if any_tokens:
        free_tokens(model)
    forms = expand_operators(model, native)
    sources = {
        node.name: prop.value
        for node in model.graph.node
        for prop in node.metadata_props
        if prop.key == SOURCE_KEY
    }
    types = plan_types(model, low)
    apply_types(model, types)
    if low == "float16":
        check_float16(job.bundle, _narrowed(model, job.entry))
    # Types that do not fit each other are our fault, and found here rather than by a library.
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    casts = frozenset(node.name for node in model.graph.node if node.op_type == "Cast")
    return Prepared(model, retyped(job.entry, model), types, casts, forms, sources)


def _check_names(model: onnx.ModelProto) -> None:
    """Raises ValueError for nodes without a name of their own, by which a plan tells them apart."""
    names = Counter(node.name for node in model.graph.node)
    if "" in names:
        raise ValueError("a node has no name")
    if twice := [name for name, count in names.items() if count > 1]:
        raise ValueError(f"two nodes are named {twice[0]}")
    if unmade := [node.name for node in model.graph.node if not any(node.output)]:
        raise ValueError(f"the node {unmade[0]} gives nothing")


def _narrowed(model: onnx.ModelProto, entry: GraphEntry) -> Iterator[tuple[str, StoredTensor]]:
    """The stored parameters that the model casts to float16, some by way of float32."""
    casts = [node for node in model.graph.node if node.op_type == "Cast"]
    stored = {name: name for name in entry.initializers}
    stored |= {n.output[0]: n.input[0] for n in casts if n.input[0] in entry.initializers}
    for node in casts:
        if node.attribute[0].i == TensorProto.FLOAT16 and node.input[0] in stored:
            name = stored[node.input[0]]
            yield name, entry.initializers[name]
