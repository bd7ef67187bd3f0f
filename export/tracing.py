"""From a torch module to an ONNX graph whose weights lie in the bundle's weight files.

A graph that is made of others is not traced, but leaves here in the same form.

The module is traced with uninitialised parameters: tracing reads shapes, never values, so that it
needs no memory for weights. Each parameter then becomes an external initialiser in the dtype of the
checkpoint, followed by a cast to float32 where that differs.
"""

from __future__ import annotations

import inspect
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnxscript
import torch
from torch import nn

from export.graphs import GraphSource, example_inputs
from export.operator_bodies import body_of, schema_of
from export.sizes import ModelSizes
from trt_runtime.contract import SLOTS, GraphSpec
from trt_runtime.errors import MingError
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import StoredTensor
from trt_runtime.operators import (
    CACHED_ATTENTION,
    DOMAIN,
    MIXTURE_OF_EXPERTS,
    SOURCE_KEY,
    VERSION,
)

OPSET = 20
IR_VERSION = 10

_DTYPES = {
    "bfloat16": ir.DataType.BFLOAT16,
    "float16": ir.DataType.FLOAT16,
    "float32": ir.DataType.FLOAT,
}
#: The last line of our own in a stack trace, kept as "export/modules/flow.py:42".
_SOURCE_LINE = re.compile(r'File "[^"]*?(export/(?:modules/\w+|graphs)\.py)", line (\d+)')
#: Libraries that log and warn while they trace, of nothing that a user could change.
_NOISY = ("torch.onnx", "onnx_ir", "onnxscript")


def make_graph(
    source: GraphSource,
    sizes: ModelSizes,
    geometry: Geometry,
    weights: Mapping[str, StoredTensor],
    folder: Path,
) -> tuple[ir.Model, dict[str, StoredTensor]]:
    """The graph of `source` as an ONNX model, and those of `weights` that it uses.

    `weights` are the stored parameters by name, lying in `folder`, as do the graphs that the one of
    `source` is made of. The model is the same, byte for byte, wherever it is made.
    """
    spec = source.spec
    module = source.make(sizes, geometry).eval()
    if source.compose is None:
        model = _trace(module, spec, geometry)
        _link_weights(model, weights, folder)
    else:
        model = source.compose(spec, geometry, folder)
    _check_contract(model, spec)
    used = {name: weights[name] for name in model.graph.initializers if name in weights}
    missing = {name for name, _ in module.named_parameters()} - set(used)
    if missing:
        # The exporter drops what it finds unused: a parameter that has no effect is our fault.
        raise MingError(f"graph {spec.name} does not use its parameters {sorted(missing)}")
    _neutralise(model, spec)
    return model, used


@contextmanager
def _quiet() -> Iterator[None]:
    """Within it the tracing libraries log errors only; their levels are put back afterwards."""
    loggers = [logging.getLogger(name) for name in _NOISY]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _trace(module: nn.Module, spec: GraphSpec, geometry: Geometry) -> ir.Model:
    with _quiet():
        program = torch.onnx.export(
            module,
            example_inputs(spec, geometry)[0],
            dynamo=True,
            opset_version=OPSET,
            input_names=[tensor.name for tensor in spec.inputs],
            output_names=[tensor.name for tensor in spec.outputs],
            optimize=False,
            verbose=False,
            dynamic_shapes=_free_axes(module, spec),
            custom_translation_table=_operators(),
        )
        assert program is not None
        # The optimiser folds small initialisers, and the parameters have no values yet: while it
        # works they are inputs.
        graph = program.model.graph
        parameters = [
            graph.initializers.pop(name)
            for name, _ in module.named_parameters()
            if name in graph.initializers
        ]
        values = [(value, value.const_value) for value in parameters]
        for value in parameters:
            value.const_value = None
        graph.inputs.extend(parameters)
        program.optimize()
    model = program.model
    del model.graph.inputs[len(spec.inputs) :]
    for value, tensor in values:
        value.const_value = tensor
        model.graph.register_initializer(value)
    return model


def _free_axes(module: nn.Module, spec: GraphSpec) -> tuple[Any, ...] | None:
    """The contract's free axes as the exporter takes them; None where every size is fixed."""
    if not any(tensor.by_slot for tensor in spec.inputs):
        return None
    slots = torch.export.Dim(SLOTS, min=1)
    axes = [{0: slots} if tensor.by_slot else None for tensor in spec.inputs]
    kinds = [p.kind for p in inspect.signature(module.forward).parameters.values()]
    named = sum(kind != inspect.Parameter.VAR_POSITIONAL for kind in kinds)
    rest = (tuple(axes[named:]),) if len(axes) > named else ()
    return (*axes[:named], *rest)


def _operators() -> dict[Any, Any]:
    """The plugin operators' torch forms, each with what writes its node."""
    domain = onnxscript.values.Opset(DOMAIN, VERSION)
    experts, attention = (
        onnxscript.values.Op(domain, name, schema_of(name))
        for name in (MIXTURE_OF_EXPERTS, CACHED_ATTENTION)
    )

    def mixture_of_experts(
        x: Any, router_logits: Any, gate_up: Any, down: Any, chosen: int, normalized: bool
    ) -> Any:
        return experts(x, router_logits, gate_up, down, chosen=chosen, normalized=int(normalized))

    def cached_attention(
        qkv: Any, position: Any, inverse_frequencies: Any, key_cache: Any, value_cache: Any,
        heads: int, kv_heads: int, window: int,
    ) -> Any:  # fmt: skip
        return attention(
            qkv, position, inverse_frequencies, key_cache, value_cache,
            heads=heads, kv_heads=kv_heads, window=window,
        )  # fmt: skip

    return {
        torch.ops.ming_trt.mixture_of_experts.default: mixture_of_experts,
        torch.ops.ming_trt.cached_attention.default: cached_attention,
    }


def _add_bodies(model: ir.Model) -> None:
    """Beside each plugin operator that the graph uses, the function that it stands for."""
    used = {node.op_type: node for node in model.graph if node.domain == DOMAIN}
    for name in sorted(used):
        shapes = [
            list(value.shape) if value is not None and value.shape is not None else None
            for value in used[name].inputs
        ]
        function = ir.serde.deserialize_function(body_of(name, shapes))
        model.functions[function.identifier()] = function
    if used:
        model.graph.opset_imports[DOMAIN] = VERSION


def _check_contract(model: ir.Model, spec: GraphSpec) -> None:
    """The graph must have the contract's tensors, or every later step builds on sand."""
    for wanted, values in ((spec.inputs, model.graph.inputs), (spec.outputs, model.graph.outputs)):
        names = {"float": "float32"}
        found = [(v.name, str(v.dtype).lower(), v.shape or ()) for v in values]
        found_specs = [
            (n, names.get(d, d), [x if isinstance(x, int) else str(x) for x in s])
            for n, d, s in found
        ]
        expected = [(t.name, t.dtype, t.axes) for t in wanted]
        if found_specs != expected:
            different = (
                next((e, f) for e, f in zip(expected, found_specs, strict=False) if e != f)
                if len(expected) == len(found_specs)
                else (len(expected), len(found_specs))
            )
            raise MingError(f"graph {spec.name} breaks its contract: {different}")


def _link_weights(model: ir.Model, weights: Mapping[str, StoredTensor], folder: Path) -> None:
    """Points every parameter initialiser to its stored bytes, in place."""
    graph = model.graph
    for name in list(graph.initializers):
        stored = weights.get(name)
        if stored is None:
            continue
        value = graph.initializers[name]
        tensor = ir.ExternalTensor(
            stored.file,
            stored.offset,
            stored.bytes,
            _DTYPES[stored.dtype],
            shape=ir.Shape(stored.shape),
            name=name,
            base_dir=folder,
        )
        if stored.dtype == "float32":
            value.const_value = tensor
            continue
        value.const_value = tensor
        gathers = [use.node for use in value.uses()]
        wide, value.type = value.type, ir.TensorType(_DTYPES[stored.dtype])
        if all(node.op_type == "Gather" and node.inputs[0] is value for node in gathers):
            # Rows of a table are cast, not the table: no runtime then folds it to twice its size.
            for node in gathers:
                _cast_after(node.outputs[0], wide, value.type, graph)
        else:
            _cast_before(value, wide, graph)


def _cast_before(value: ir.Value, dtype: ir.TypeProtocol | None, graph: ir.Graph) -> None:
    """Puts a cast to float32 between an initialiser and everything that uses it."""
    cast = ir.node(
        "Cast",
        [],
        attributes={"to": ir.DataType.FLOAT},
        outputs=[ir.Value(name=f"{value.name}.float32", type=dtype, shape=value.shape)],
        name=f"{value.name}.cast",
    )
    value.replace_all_uses_with(cast.outputs[0])
    cast.resize_inputs(1)
    cast.replace_input_with(0, value)
    graph.insert_before(next(iter(graph)), cast)


def _cast_after(
    value: ir.Value, dtype: ir.TypeProtocol | None, low: ir.TypeProtocol, graph: ir.Graph
) -> None:
    """Puts a cast to float32 between a node's low-precision output and everything that uses it."""
    node = value.producer()
    assert node is not None
    cast = ir.node(
        "Cast",
        [],
        attributes={"to": ir.DataType.FLOAT},
        outputs=[ir.Value(name=value.name, type=dtype, shape=value.shape)],
        name=f"{value.name}.cast",
    )
    if value.is_graph_output():
        index = list(graph.outputs).index(value)
        graph.outputs[index] = cast.outputs[0]
    value.replace_all_uses_with(cast.outputs[0])
    cast.resize_inputs(1)
    cast.replace_input_with(0, value)
    value.name = f"{value.name}.low"
    value.type = low
    graph.insert_after(node, cast)


def _neutralise(model: ir.Model, spec: GraphSpec) -> None:
    """Removes what depends on where and by what the graph was made; keeps our own source lines."""
    model.ir_version = IR_VERSION
    model.producer_name, model.producer_version = "ming-trt", None
    model.doc_string = None
    model.metadata_props.clear()
    graph = model.graph
    graph.name, graph.doc_string = spec.name, None
    graph.metadata_props.clear()
    values: list[Any] = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
    counts: dict[str, int] = {}
    for node in graph:
        lines = _SOURCE_LINE.findall(node.metadata_props.get("pkg.torch.onnx.stack_trace", ""))
        # A copied node has it already.
        line = ":".join(lines[-1]) if lines else node.metadata_props.get(SOURCE_KEY)
        node.metadata_props.clear()
        node.doc_string = None
        if line:
            node.metadata_props[SOURCE_KEY] = line
        values += node.outputs
        if not (node.name or "").endswith(".cast"):
            counts[node.op_type] = counts.get(node.op_type, 0) + 1
            node.name = f"{node.op_type}_{counts[node.op_type]}"
    for value in values:
        value.metadata_props.clear()
        value.doc_string = None
    # The exporter's own functions are inlined by now; what stands beside a graph is ours.
    model.functions.clear()
    _add_bodies(model)
