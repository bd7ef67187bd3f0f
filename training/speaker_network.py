"""The demonstration's speaker encoder as a torch module, and as the ONNX file of a checkpoint."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from trt_runtime.contract import SPEAKER_DIM, SPEAKER_FEATURES

#: Channels, kernel and dilation of the convolutions over time.
_LAYERS = ((64, 5, 1), (96, 3, 2), (96, 3, 3))
_FLOOR = 1e-4
#: CAM++ as it is released says opset 13 and IR version 8 or below.
_OPSET, _IR_VERSION = 13, 8


class SpeakerNetwork(nn.Module):
    """Convolutions over time, mean and standard deviation over time, a linear layer, a norm of 1.

    The norm is the root mean square of the 192 values: their direction is the voice, and their
    length would be how clear the recording is, which the talker must not hear.

    The statistics weigh each frame by how much of a voice is in it (Okabe et al. 2018,
    arXiv:1803.10963): pauses, whose depth says more of the recording, count for little.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()

        def drawn(*shape: int) -> nn.Parameter:
            deviation = math.sqrt(2 / math.prod(shape[1:]))
            return nn.Parameter(torch.randn(shape, generator=generator) * deviation)

        channels = (SPEAKER_FEATURES, *(layer[0] for layer in _LAYERS))
        self.weights = nn.ParameterList(
            drawn(out, into, kernel)
            for into, (out, kernel, _) in zip(channels, _LAYERS, strict=False)
        )
        self.biases = nn.ParameterList(torch.zeros(out) for out, *_ in _LAYERS)
        self.score = nn.Parameter(torch.zeros(1, channels[-1], 1))
        self.speaker = drawn(SPEAKER_DIM, 2 * channels[-1])
        self.offset = nn.Parameter(torch.zeros(SPEAKER_DIM))
        self.weights[0].data /= 4  # features have a deviation of some 4

    def forward(self, features: Tensor) -> Tensor:
        """features: (batch, frames, 80) float32 → (batch, 192) float32."""
        hidden = features.transpose(1, 2)
        for w, b, (_, kernel, apart) in zip(self.weights, self.biases, _LAYERS, strict=True):
            hidden = F.conv1d(hidden, w, b, padding=kernel // 2 * apart, dilation=apart).relu()
        frame_weights = F.conv1d(hidden, self.score).softmax(2)
        mean = (hidden * frame_weights).sum(2, keepdim=True)
        variance = ((hidden - mean).square() * frame_weights).sum(2)
        pooled = torch.cat((mean.squeeze(2), (variance + _FLOOR).sqrt()), 1)
        embedding = F.linear(pooled, self.speaker, self.offset)
        return embedding / (embedding.square().mean(1, keepdim=True) + _FLOOR).sqrt()


def onnx_bytes(network: SpeakerNetwork) -> bytes:
    """The bytes of a campplus.onnx: float32 (batch, frames, 80) to (batch, 192)."""
    weights = {"score": network.score, "speaker": network.speaker.T, "offset": network.offset}
    nodes = [helper.make_node("Transpose", ["input"], ["hidden0"], perm=[0, 2, 1])]
    for i, (_, kernel, dilation) in enumerate(_LAYERS):
        weights |= {f"weight{i}": network.weights[i], f"bias{i}": network.biases[i]}
        inputs = [f"hidden{i}", f"weight{i}", f"bias{i}"]
        sizes: dict[str, Any] = {"pads": [kernel // 2 * dilation] * 2, "dilations": [dilation]}
        nodes += [
            helper.make_node("Conv", inputs, [f"layer{i}"], kernel_shape=[kernel], **sizes),
            helper.make_node("Relu", [f"layer{i}"], [f"hidden{i + 1}"]),
        ]
    last = f"hidden{len(_LAYERS)}"
    nodes += [
        helper.make_node("Conv", [last, "score"], ["scores"], kernel_shape=[1]),
        helper.make_node("Softmax", ["scores"], ["frame_weights"], axis=2),
        helper.make_node("Mul", [last, "frame_weights"], ["weighed"]),
        helper.make_node("ReduceSum", ["weighed", "time"], ["mean"]),
        helper.make_node("Sub", [last, "mean"], ["centred"]),
        helper.make_node("Mul", ["centred", "centred"], ["squares"]),
        helper.make_node("Mul", ["squares", "frame_weights"], ["weighed_squares"]),
        helper.make_node("ReduceSum", ["weighed_squares", "time"], ["variance"]),
        helper.make_node("Add", ["variance", "floor"], ["floored"]),
        helper.make_node("Sqrt", ["floored"], ["deviation"]),
        helper.make_node("Concat", ["mean", "deviation"], ["statistics"], axis=1),
        helper.make_node("Flatten", ["statistics"], ["pooled"], axis=1),
        helper.make_node("Gemm", ["pooled", "speaker", "offset"], ["embedding"]),
        helper.make_node("Mul", ["embedding", "embedding"], ["powers"]),
        helper.make_node("ReduceMean", ["powers"], ["power"], axes=[1], keepdims=1),
        helper.make_node("Add", ["power", "floor"], ["floored_power"]),
        helper.make_node("Sqrt", ["floored_power"], ["level"]),
        helper.make_node("Div", ["embedding", "level"], ["output"]),
    ]
    tensors = {name: value.detach().contiguous().numpy() for name, value in weights.items()}
    tensors |= {"floor": np.array([_FLOOR], np.float32), "time": np.array([2])}
    graph = helper.make_graph(
        nodes,
        "speaker_encoder",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["B", "T", SPEAKER_FEATURES])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["B", SPEAKER_DIM])],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
    model.ir_version = _IR_VERSION
    model.producer_name = "ming-trt"
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))
