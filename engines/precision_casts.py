"""Writing a precision into a graph: which node computes in which type, and the casts between them.

What is low is decided along the flow of values, on the float32 graph. Products of matrices are
(with a parameter that is not kept float32, or of two computed values, as attention's are), and so
is what only moves, scales or adds their results, as long as all it reads is low: the first sum with
the float32 residual stream is float32 again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import onnx
from onnx import NodeProto, TensorProto, helper

from engines.graph_file import ELEMENT_TYPES
from engines.precision import FOLLOWERS, kept_float32
from trt_runtime.errors import MingError

_PRODUCTS = frozenset({"Gemm", "MatMul"})
# Attention, and the caches that it reads: state of the low type, as the graph then takes it.
_ATTENTION, _APPENDING = "Attention", "TensorScatter"
# What a parameter may go through on its way into a product.
_ARRANGING = frozenset({"Cast", "Identity", "Reshape", "Transpose"})
_NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}


def plan_types(model: onnx.ModelProto, low: str | None) -> dict[str, str]:
    """By name, the type that each node of the float32 `model` with a float result computes in.

    The model has no functions any more, and every node has a name. `low` is "bfloat16" or
    "float16", None for a graph that stays as it is. Nodes that only arrange constants are left out:
    a builder folds them.
    """
    graph = _Values(model)
    planned: dict[str, str] = {}
    in_low: set[str] = set()
    for node in model.graph.node:
        if not graph.gives_float(node) or graph.is_constant(node.output[0]):
            continue
        chosen = graph.table_type(node) or "float32"
        if low is not None and _is_low(node, graph, in_low):
            chosen = low
            in_low.update(node.output)
        planned[node.name] = chosen
    return planned


def _is_low(node: NodeProto, graph: _Values, in_low: Collection[str]) -> bool:
    if node.op_type in (_ATTENTION, _APPENDING):
        return True
    floats = [name for name in node.input if name and graph.is_float(name)]
    if node.op_type in _PRODUCTS:
        parameters = [graph.parameter_of(name) for name in floats]
        named = [name for name in parameters if name is not None]
        if named:
            return not any(map(kept_float32, named))
        constants = [name for name in floats if graph.is_constant(name)]
        # A matrix of constants keeps the type of what it turns.
        return not constants or all(name in in_low for name in floats if name not in constants)
    moved = [name for name in floats if not graph.is_constant(name)]
    return node.op_type in FOLLOWERS and bool(moved) and all(name in in_low for name in moved)


def apply_types(model: onnx.ModelProto, planned: Mapping[str, str]) -> None:
    """Puts casts into the model so that each node computes in its planned type, in place.

    The graph's inputs and outputs stay float32, but for caches that a low node appends to. Raises
    MingError where a planned node is not there.
    """
    if missing := set(planned) - {node.name for node in model.graph.node}:
        raise MingError(f"The graph has no node {sorted(missing)[0]} to give a type")
    writer = _Casts(model, _Values(model))
    caches = _retype_caches(model, planned, writer)
    outputs = {value.name for value in model.graph.output} - caches
    for node in list(writer.take_nodes()):
        wanted = planned.get(node.name)
        if wanted is None:
            writer.keep(node)
        else:
            writer.put(node, wanted, outputs)
    del model.graph.value_info[:]  # the types there are no longer right


def _retype_caches(model: onnx.ModelProto, planned: Mapping[str, str], writer: _Casts) -> set[str]:
    """Gives caches the type of what appends to them; returns the names of the graph's new ones."""
    written: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type == _APPENDING:
            for name in (node.input[0], node.output[0]):
                written[name] = _NUMBERS[planned[node.name]]
    for value in (*model.graph.input, *model.graph.output):
        if value.name in written:
            value.type.tensor_type.elem_type = written[value.name]
            writer.retype(value.name, written[value.name])
    return set(written)


class _Values:
    """What is known of a graph's values: their types, and which are computed from constants."""

    def __init__(self, model: onnx.ModelProto) -> None:
        inferred = onnx.shape_inference.infer_shapes(model)
        graph = inferred.graph
        self.types = {
            value.name: value.type.tensor_type.elem_type
            for value in (*graph.input, *graph.output, *graph.value_info)
        }
        stored = {tensor.name: tensor for tensor in model.graph.initializer}
        self.types |= {name: tensor.data_type for name, tensor in stored.items()}
        self._producers = {name: node for node in model.graph.node for name in node.output}
        self._external = {
            name for name, t in stored.items() if t.data_location == TensorProto.EXTERNAL
        }
        self._constant = set(stored)
        for node in model.graph.node:
            if all(name in self._constant for name in node.input if name):
                self._constant.update(node.output)

        unknown = [n for node in model.graph.node for n in node.output if n and n not in self.types]
        if unknown:
            raise MingError(f"The type of {unknown[0]} in graph {graph.name} cannot be told")

    def is_float(self, name: str) -> bool:
        return self.types.get(name) in (
            TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16,
        )  # fmt: skip

    def gives_float(self, node: NodeProto) -> bool:
        return self.is_float(node.output[0])

    def table_type(self, node: NodeProto) -> str | None:
        """The type of the rows that a node looks up in a stored table; None of any other node.

        A table that is stored narrow is looked up narrow, and its rows are widened after.
        """
        if node.op_type == "Gather" and node.input[0] in self._external:
            return ELEMENT_TYPES[self.types[node.input[0]]]
        return None

    def is_constant(self, name: str) -> bool:
        return name in self._constant

    def parameter_of(self, name: str) -> str | None:
        """The stored parameter that a value is, but for its type and arrangement; None else."""
        while name not in self._external:
            node = self._producers.get(name)
            if node is None or node.op_type not in _ARRANGING:
                return None
            name = node.input[0]
        return name

    def producer(self, name: str) -> NodeProto | None:
        return self._producers.get(name)


class _Casts:
    """Rewrites the list of nodes, with one cast for each value and type that is wanted."""

    def __init__(self, model: onnx.ModelProto, values: _Values) -> None:
        self._graph, self._values = model.graph, values
        self._made: dict[tuple[str, int], str] = {}
        #: Types that are no longer those of the float32 graph.
        self._types: dict[str, int] = {}

    def retype(self, name: str, number: int) -> None:
        """Says that a value of the graph has another type than in the float32 graph."""
        self._types[name] = number

    def take_nodes(self) -> Iterator[NodeProto]:
        nodes = [NodeProto.FromString(n.SerializeToString()) for n in self._graph.node]
        del self._graph.node[:]
        yield from nodes

    def keep(self, node: NodeProto) -> None:
        self._graph.node.append(node)

    def put(self, node: NodeProto, wanted: str, outputs: Collection[str]) -> None:
        number = _NUMBERS[wanted]
        # A cast has no inputs to convert: it gives what is asked for.
        if node.op_type == "Cast":
            node.attribute[0].i = number
        else:
            for index, name in enumerate(node.input):
                if name and self._values.is_float(name):
                    node.input[index] = self._converted(name, number)
        given = [name for name in node.output if name in outputs]
        if number == TensorProto.FLOAT or not given:
            self._graph.node.append(node)
            self._types.update(dict.fromkeys(node.output, number))
            return
        for index, name in enumerate(node.output):
            if name in outputs:
                node.output[index] = f"{name}.{wanted}"
                self._types[node.output[index]] = number
                self._made[node.output[index], TensorProto.FLOAT] = name
        self._graph.node.append(node)
        for name in given:
            self._graph.node.append(
                helper.make_node(
                    "Cast", [f"{name}.{wanted}"], [name], name=f"{name}.to", to=TensorProto.FLOAT
                )
            )
            self._made[name, number] = f"{name}.{wanted}"

    def _converted(self, name: str, number: int) -> str:
        """`name` in the type `number`: itself, what it was cast from, or a new cast of it."""
        if self._types.get(name, self._values.types[name]) == number:
            return name
        if (name, number) not in self._made:
            producer = self._values.producer(name)
            source = producer.input[0] if producer is not None else ""
            if (
                producer is not None
                and producer.op_type == "Cast"
                and self._values.types.get(source) == number
                and self._values.is_constant(source)
            ):
                # A parameter that is stored in this type, and was widened for float32.
                self._made[name, number] = source
            else:
                new = f"{name}.{ELEMENT_TYPES[number]}"
                self._graph.node.append(
                    helper.make_node("Cast", [name], [new], name=f"{new}.cast", to=number)
                )
                self._made[name, number] = new
        return self._made[name, number]
