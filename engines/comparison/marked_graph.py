"""A graph of which any tensor can be asked for: pruned to what that takes, and run on the CPU.

By ONNX Runtime; or by ONNX's own reference evaluator (NumPy), slower, where a graph computes in
float16 or bfloat16. ONNX Runtime on a CPU widens such nodes to float32 and drops the roundings
between them, so that what a GPU would lose does not show there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from engines.graph_file import ELEMENT_TYPES, check_external_data, external_of, read_graph
from trt_runtime.backends.onnxruntime_cpu import import_onnxruntime
from trt_runtime.manifest import GraphEntry, Manifest
from trt_runtime.raw_tensors import DTYPE_BYTES, read_chunks

#: The exporter's note of the line that a node comes from (export.tracing.SOURCE_KEY).
SOURCE_KEY = "ming_trt.source"
_MARK = "marked_"
_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
#: Where external data lies, for a session that is made of bytes.
_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"


class MarkedGraph:
    """The graph of an entry of a folder's manifest; its weights stay in their files.

    `nodes` are in topological order, as ONNX wants them. A node is static where nothing that it
    reads comes from an input: a cast of a weight. Static nodes count as the weight itself.
    """

    def __init__(self, folder: Path, entry: GraphEntry, manifest: Manifest) -> None:
        self._folder = folder
        self.model = read_graph(folder, entry)
        check_external_data(folder, entry, self.model, manifest.files)
        graph = self.model.graph
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = [v.name for v in graph.input if v.name not in self._initializers]
        self.outputs = [value.name for value in graph.output]
        self.nodes: Sequence[onnx.NodeProto] = list(graph.node)
        self.producer = {
            name: index for index, node in enumerate(self.nodes) for name in node.output if name
        }
        computed = set(self.inputs)
        for node in self.nodes:
            if any(name in computed for name in node.input):
                computed.update(name for name in node.output if name)
        #: Tensors that depend on an input, the inputs among them.
        self.computed = frozenset(computed)
        #: How many nodes round to less than float32.
        self.narrow = sum(
            node.op_type == "Cast"
            and any(a.name == "to" and a.i in _NARROW for a in node.attribute)
            for part in (graph, *self.model.functions)
            for node in part.node
        )

    def reads(self, index: int) -> list[str]:
        """The computed tensors that a node reads."""
        return [n for n in dict.fromkeys(self.nodes[index].input) if n in self.computed]

    def initializers(self, index: int) -> list[str]:
        """The stored tensors that a node reads, also through static nodes."""
        found: list[str] = []
        waiting = list(self.nodes[index].input)
        while waiting:
            name = waiting.pop(0)
            if name in self._initializers:
                found.append(name)
            elif name not in self.computed and name in self.producer:
                waiting += self.nodes[self.producer[name]].input
        return list(dict.fromkeys(found))

    def readers(self, initializer: str) -> list[int]:
        """The computed nodes that read a stored tensor, also through static nodes."""
        return [
            index
            for index, node in enumerate(self.nodes)
            if any(name in self.computed for name in node.output)
            and initializer in self.initializers(index)
        ]

    def ancestors(self, names: Iterable[str], stop: frozenset[str] = frozenset()) -> set[int]:
        """The computed nodes that make `names`, back to the inputs or to tensors in `stop`."""
        found: set[int] = set()
        waiting = [name for name in names if name not in stop]
        while waiting:
            index = self.producer.get(waiting.pop())
            if index is not None and index not in found:
                found.add(index)
                waiting += [name for name in self.reads(index) if name not in stop]
        return found

    def source(self, index: int) -> str:
        """The exporter's line that a node comes from; "" where it is not noted."""
        return next((p.value for p in self.nodes[index].metadata_props if p.key == SOURCE_KEY), "")

    def run(
        self,
        given: Mapping[str, np.ndarray],
        wanted: Sequence[str],
        *,
        exact: bool = False,
        narrow: bool = False,
    ) -> dict[str, np.ndarray]:
        """The tensors `wanted`, made of those in `given`, which need not be the graph's inputs.

        float64, or with `exact` in the types that they have. `narrow`: by the reference evaluator,
        which rounds as the graph says.
        """
        model = self._pruned(given, wanted, exact)
        run = self._evaluated if narrow else self._by_onnxruntime
        return dict(zip(wanted, run(model, given), strict=True))

    def _evaluated(
        self, model: onnx.ModelProto, given: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        for tensor in model.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                # Not by onnx, which refuses a file that has a second name, as linked copies have.
                where = external_of(tensor)
                size = DTYPE_BYTES[ELEMENT_TYPES[tensor.data_type]] * math.prod(tensor.dims)
                chunks = read_chunks(self._folder / where.location, where.offset, size)
                tensor.raw_data = b"".join(map(bytes, chunks))
                del tensor.external_data[:]
                tensor.data_location = onnx.TensorProto.DEFAULT
        evaluator = ReferenceEvaluator(model)
        # Overflow of a narrow type is a finding, and not this code's mistake.
        with np.errstate(all="ignore"):
            values = evaluator.run(None, {name: given[name] for name in evaluator.input_names})
        return list(values)

    def _by_onnxruntime(
        self, model: onnx.ModelProto, given: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        runtime = import_onnxruntime()
        options = runtime.SessionOptions()
        # Nodes as they are: a fused one has no tensors inside.
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.add_session_config_entry(_EXTERNAL_FOLDER, str(self._folder.resolve()))
        session = runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        feed = {node.name: given[node.name] for node in session.get_inputs()}
        values: list[np.ndarray] = session.run(None, feed)
        return values

    def _pruned(
        self, given: Mapping[str, np.ndarray], wanted: Sequence[str], exact: bool
    ) -> onnx.ModelProto:
        needed: set[int] = set()
        used: set[str] = set()
        waiting = list(wanted)
        while waiting:
            name = waiting.pop()
            if not name or name in used:
                continue
            used.add(name)
            index = self.producer.get(name)
            if name not in given and index is not None and index not in needed:
                needed.add(index)
                waiting += self.nodes[index].input
        graph = onnx.GraphProto(name=self.model.graph.name)
        graph.node.extend(self.nodes[index] for index in sorted(needed))
        for name in wanted:
            # Of every type, narrow floats too, which NumPy has not.
            mark = helper.make_node("Cast", [name], [_MARK + name], to=TensorProto.DOUBLE)
            graph.node.append(
                helper.make_node("Identity", [name], [_MARK + name]) if exact else mark
            )
            graph.output.append(onnx.ValueInfoProto(name=_MARK + name))
        for name in sorted(used & set(given)):
            array = given[name]
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
        graph.initializer.extend(
            tensor for name, tensor in self._initializers.items() if name in used - set(given)
        )
        model = onnx.ModelProto()
        model.CopyFrom(self._without_graph())
        model.graph.CopyFrom(graph)
        return model

    def _without_graph(self) -> onnx.ModelProto:
        """Versions and functions of the model."""
        rest = onnx.ModelProto(ir_version=self.model.ir_version)
        rest.opset_import.extend(self.model.opset_import)
        rest.functions.extend(self.model.functions)
        return rest
