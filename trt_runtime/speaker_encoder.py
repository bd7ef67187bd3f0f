"""The speaker encoder: a recording → the numbers that tell its voice from others.

CAM++ (Wang et al., 2023, arXiv:2303.00332), an ONNX file of a third party that comes with the
checkpoint and is run as it is, on CPU, once a reference.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trt_runtime.backends.onnxruntime_cpu import import_onnxruntime, usable_cores
from trt_runtime.contract import SPEAKER_DIM, SPEAKER_FEATURES
from trt_runtime.errors import FolderError, NumericError
from trt_runtime.reference_audio import ReferenceAudio
from trt_runtime.resampling import resample
from trt_runtime.speaker_features import SAMPLE_RATE, speaker_features

#: Seconds. CAM++ takes one for a minute of speech.
_LONGEST_RUN = 120.0
#: Frames of the trial at loading: about the shortest reference.
_TRIAL_FRAMES = 20


class SpeakerEncoder:
    """Runs the encoder in `path`; any number of threads may share one.

    path: an ONNX file with one input (1, frames, 80) float32 of any number of frames and one output
    (1, speaker_dim) float32. threads: of a run; None is one a core. Raises FolderError where the
    file is missing, cannot be loaded or is another graph.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        speaker_dim: int = SPEAKER_DIM,
        threads: int | None = None,
    ) -> None:
        self._path = Path(path)
        self._speaker_dim = speaker_dim
        self._session = _load(self._path, threads or usable_cores())
        self._check_tensors()
        # What a graph declares of its output need not hold: CAM++ files are about that declare
        # another size. One short run tells, before anything is spent on a request.
        self._run(np.zeros((_TRIAL_FRAMES, SPEAKER_FEATURES), np.float32))

    def embed(self, audio: ReferenceAudio) -> NDArray[np.float32]:
        """The voice of `audio`: (speaker_dim,) float32.

        Raises UserError for audio shorter than a frame (25 ms), NumericError where the encoder
        gives NaN or infinity, and FolderError where it fails.
        """
        wave = resample(audio.samples, audio.sample_rate, SAMPLE_RATE)
        embedding = self._run(speaker_features(wave))
        if not np.isfinite(embedding).all():
            raise NumericError(
                "The speaker encoder produced NaN or infinity",
                found=f"{np.count_nonzero(~np.isfinite(embedding))} of {embedding.size} numbers of "
                f"the embedding of {audio.name}",
                do="try another recording; if none works, the checkpoint's encoder is damaged",
            )
        return embedding

    def _run(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """`features`: (frames, 80) float32 → (speaker_dim,) float32."""
        name = self._session.get_inputs()[0].name
        options = import_onnxruntime().RunOptions()
        # A stranger's graph may never end, and no signal is heard while it runs.
        timer = Timer(_LONGEST_RUN, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            output = self._session.run(None, {name: features[None]}, options)[0]
        except Exception as error:  # onnxruntime has a dozen classes without a common base
            raise self._foreign(_first_line(error)) from error
        finally:
            timer.cancel()
        if output.shape != (1, self._speaker_dim):
            raise self._foreign(f"an output of shape {output.shape}")
        return np.array(output[0], np.float32)

    def _check_tensors(self) -> None:
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        declared = [(node.name, node.type, list(node.shape)) for node in (*inputs, *outputs)]
        fits = (
            len(inputs) == len(outputs) == 1
            and {node.type for node in (*inputs, *outputs)} == {"tensor(float)"}
            and _accepts_any_length(inputs[0].shape)
        )
        if not fits:
            raise self._foreign(f"inputs and outputs {declared}")

    def _foreign(self, found: str) -> FolderError:
        return FolderError(
            f"{self._path} is not a speaker encoder that can be used",
            expected=f"a graph of one input (1, frames, {SPEAKER_FEATURES}) float32, any number of "
            f"frames, and one output (1, {self._speaker_dim}) float32",
            found=found,
            do="use the campplus.onnx that came with the checkpoint, and build the folder again",
        )


def _accepts_any_length(shape: list[Any]) -> bool:
    """Whether an input of this declared shape takes (1, frames, 80) for any number of frames."""
    if len(shape) != 3:
        return False
    batch, frames, bands = shape
    # Sizes that vary have a name, or none, in place of a number.
    one = batch == 1 or not isinstance(batch, int)
    return one and not isinstance(frames, int) and bands == SPEAKER_FEATURES


def _load(path: Path, threads: int) -> Any:
    if not path.is_file():
        raise FolderError(
            f"{path} is missing or not a plain file",
            expected="the speaker encoder, an ONNX file",
            do="use the campplus.onnx that came with the checkpoint, and build the folder again",
        )
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Runs are rare and of any length: an arena would keep the memory of the longest.
    options.enable_cpu_mem_arena = False
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a dozen classes without a common base
        raise FolderError(
            f"ONNX Runtime {ort.__version__} cannot load {path}",
            expected="the speaker encoder, an ONNX file",
            found=_first_line(error),
            do="copy it again from where the checkpoint came from",
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
