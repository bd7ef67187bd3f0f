"""How far B may be from A: one table, by what is measured and by the precision of the component."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from engines.comparison.metrics import METRICS, Metric
from engines.precision import FLOAT32
from trt_runtime.errors import UserError

#: Two float32 evaluations that differ in the order of their sums. Measured: at most 9.4e-7 between
#: PyTorch, bundles and engines of both goldens' models on a CPU and 4.8e-6 of the embedded voice,
#: which is trained; 8.5e-7 on an H200 (benchmarks/results/cuda-compare-*.json). The rest is for
#: deeper models. Each of the 184 tensors of the dense golden times 1.01 moves its component by
#: 1.7e-4 or more.
_ROUNDING = 2e-5


@dataclass(frozen=True)
class Budget:
    """One row: `metric` of `output` of a probe, or of the loop, and what it may be at most.

    (At least, where higher is better.) None: reported, not judged.
    """

    name: str
    measured: str
    output: str
    metric: str
    float32: float | None
    lower: float | None

    def limit(self, precision: str) -> float | None:
        return self.float32 if precision == FLOAT32 else self.lower

    @property
    def measure(self) -> Metric:
        return METRICS[self.metric]


_TABLE = (
    # A table is looked up, whatever it is stored in: nothing is rounded.
    Budget("prompt_embedding", "prompt_embedding", "embeddings", "relative", 0.0, 0.0),
    Budget("speaker_projection", "speaker_projection", "projection", "relative", _ROUNDING, 1e-2),
    # Judged by the median row below float32: where two experts are nearly even, rounding chooses.
    Budget("talker_prefill", "talker_prefill", "hidden", "relative", _ROUNDING, None),
    Budget("talker_prefill.median", "talker_prefill", "hidden", "median", None, 0.05),
    Budget("talker_decode", "talker_decode", "hidden", "relative", _ROUNDING, None),
    Budget("talker_decode.median", "talker_decode", "hidden", "median", None, 0.05),
    Budget("flow", "flow", "patch", "relative", _ROUNDING, None),
    Budget("flow.patch_error", "flow", "patch", "norm", _ROUNDING, 0.01),
    Budget("aggregator", "aggregator", "embedding", "relative", _ROUNDING, None),
    Budget("aggregator.norm", "aggregator", "embedding", "norm", None, 0.01),
    Budget("stop_head", "stop_head", "stop_probability", "absolute", _ROUNDING, 0.01),
    # Shifted, not computed.
    Budget("history", "history", "history", "relative", 0.0, 0.0),
    # After its own patches.
    Budget("tail.embedding", "tail", "embedding", "norm", _ROUNDING, 0.02),
    Budget("tail.stop", "tail", "stop_probability", "absolute", _ROUNDING, 0.01),
    Budget("tail.history", "tail", "history", "norm", _ROUNDING, 0.01),
    Budget("audio_decoder", "audio_decoder", "audio", "relative", _ROUNDING, None),
    Budget("audio_decoder.snr", "audio_decoder", "audio", "snr", 90.0, 40.0),
    Budget("audio_encoder.mean", "audio_encoder", "mean", "relative", _ROUNDING, 0.02),
    Budget("audio_encoder.std", "audio_encoder", "std", "relative", _ROUNDING, 0.02),
    Budget("language_head", "language_head", "logits", "relative", _ROUNDING, 0.02),
    # Free-running: every step is given the errors of all before it. Measured with a trained model
    # (the embedded voice, 50 steps of speech): 1.3e-4, 73 dB, 6e-4 dB, 1.5e-4. Below float32 two
    # runs part, as two seeds would, and only their decisions are judged.
    Budget("loop.latents", "loop", "latents", "norm", 5e-4, None),
    Budget("loop.stops", "loop", "stops", "count", 0.0, 0.0),
    Budget("loop.rows", "loop", "rows", "relative", 0.0, 0.0),
    Budget("loop.snr", "loop", "audio", "snr", 65.0, None),
    Budget("loop.log_mel", "loop", "audio", "log_mel", 2e-3, None),
    Budget("loop.stft", "loop", "audio", "stft", 1e-3, None),
    # Tokenizer and speaker encoder, of folders that have them.
    Budget("files", "files", "differing", "count", 0.0, 0.0),
    # Stored numbers that differ, of bundles and checkpoints.
    Budget("weights", "weights", "differing", "count", 0.0, 0.0),
    # Graphs of bundles whose nodes differ, also those that a bundle's loop does not run.
    Budget("graphs", "graphs", "outputs", "relative", _ROUNDING, _ROUNDING),
    # Nodes that round to less than float32 in B's graph, beyond A's: precision lives in the graph.
    Budget("graphs.narrow", "graphs", "narrow", "count", 0.0, None),
    # What --isolate takes for a difference of a node.
    Budget("node", "node", "outputs", "relative", _ROUNDING, _ROUNDING),
)
BUDGETS: Mapping[str, Budget] = {budget.name: budget for budget in _TABLE}


def budgets_of(probe: str) -> list[Budget]:
    """The rows of one probe, of the loop or of the weights."""
    return [budget for budget in _TABLE if budget.measured == probe]


def checked_overrides(overrides: Mapping[str, float]) -> dict[str, float]:
    """Raises UserError for a name that no budget has and for a value that is no limit."""
    for name, value in overrides.items():
        if name not in BUDGETS:
            raise UserError(
                f"There is no budget {name!r}",
                expected=", ".join(BUDGETS),
                found=repr(name),
                do="choose one of these names",
            )
        if not isinstance(value, int | float) or math.isnan(value) or value < 0:
            raise UserError(
                f"The budget {name} cannot be {value!r}",
                expected="a number of 0 or more",
                found=repr(value),
                do="choose the largest error (of dB of snr, the least) that is good enough",
            )
    return dict(overrides)
