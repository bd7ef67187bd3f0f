"""The speaker encoder against recorded embeddings, and graphs that are not one."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.goldens import OMNI_TTS, assert_close, load_json, load_npz, needs_goldens, relative_error
from trt_runtime import speaker_encoder
from trt_runtime.errors import FolderError, NumericError, UserError
from trt_runtime.reference_audio import ReferenceAudio, read_reference
from trt_runtime.speaker_encoder import SpeakerEncoder, _accepts_any_length

CAMPPLUS = OMNI_TTS / "tiny-dense" / "campplus.onnx"

#: From wave to embedding. The encoder adds nothing to what rounding does to the features of these
#: synthetic waves (test_speaker_features.py): the reference's own, of a wave that differs in the
#: last places of float32, gives embeddings 1.0e-4 from the recorded ones.
ROUNDING = 2e-4


@pytest.fixture(scope="module")
def encoder():
    return SpeakerEncoder(CAMPPLUS)


def audio(samples, rate=16000, name="voice.wav"):
    return ReferenceAudio(np.asarray(samples, np.float32), rate, name)


def noise(samples, seed=0):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, samples).astype(np.float32)


@pytest.mark.parametrize("case", ["w0", "w1", "w2", "w3"])
def test_recorded_features_give_the_recorded_embedding(encoder, case):
    arrays = load_npz("fbank")
    assert_close(encoder._run(arrays[f"{case}/fbank_cmn"]), arrays[f"{case}/emb"], case)


@pytest.mark.parametrize("case", ["w0", "w1", "w2", "w3"])
def test_recorded_waves_give_the_recorded_embedding(encoder, case):
    arrays, meta = load_npz("fbank"), load_json("fbank")["meta"]
    embedding = encoder.embed(audio(arrays[f"{case}/wave"], meta[case]["sample_rate"]))
    assert embedding.dtype == np.float32
    assert relative_error(embedding, arrays[f"{case}/emb"]) <= ROUNDING


@needs_goldens
@pytest.mark.parametrize(
    ("wav", "array"),
    [("b_16k", "clone/spk0"), ("a_24k", "podcast/spk0"), ("b_16k", "podcast/spk1")],
)
def test_files_give_the_embeddings_of_whole_requests(encoder, wav, array):
    recording, _ = read_reference(OMNI_TTS / "wavs" / f"{wav}.wav")
    assert relative_error(encoder.embed(recording), load_npz("dense_e2e")[array]) <= ROUNDING


def test_threads_may_share_an_encoder(encoder):
    waves = [audio(noise(8000 + 500 * index, index), 24000) for index in range(8)]
    alone = [encoder.embed(wave) for wave in waves]
    together: dict[int, np.ndarray] = {}

    def embed(index):
        together[index] = encoder.embed(waves[index])

    workers = [threading.Thread(target=embed, args=(index,)) for index in range(len(waves))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for index, expected in enumerate(alone):
        assert np.array_equal(together[index], expected)


def test_the_number_of_threads_can_be_chosen(encoder):
    wave = audio(noise(8000))
    assert_close(SpeakerEncoder(CAMPPLUS, threads=1).embed(wave), encoder.embed(wave), "embedding")


def test_less_than_a_frame_is_refused(encoder):
    with pytest.raises(UserError, match=r"too short for the speaker encoder[\s\S]*longer"):
        encoder.embed(audio(noise(399)))
    assert encoder.embed(audio(noise(400))).shape == (192,)


def test_another_size_is_refused():
    with pytest.raises(FolderError, match=r"\(1, 256\) float32[\s\S]*output of shape \(1, 192\)"):
        SpeakerEncoder(CAMPPLUS, speaker_dim=256)


def graph(
    path: Path,
    *,
    input_shape=("B", "T", 80),
    input_type=onnx.TensorProto.FLOAT,
    declared=("B", 192),
    width=192,
    factor=1.0,
    nodes=(),
    extra_input=False,
) -> Path:
    """A graph from (B, T, 80) to (B, width): the mean over time, repeated, times `factor`."""
    make = onnx.helper
    steps = [
        make.make_node("Cast", ["input"], ["float"], to=onnx.TensorProto.FLOAT),
        *nodes,
        make.make_node("ReduceMean", ["float", "time"], ["mean"], keepdims=0),
        make.make_node("Tile", ["mean", "repeats"], ["tiled"]),
        make.make_node("Slice", ["tiled", "start", "width", "axis"], ["sliced"]),
        make.make_node("Mul", ["sliced", "factor"], ["output"]),
    ]
    constants = {
        "time": np.array([1]), "repeats": np.array([1, 4]), "start": np.array([0]),
        "width": np.array([width]), "axis": np.array([1]), "factor": np.float32(factor),
    }  # fmt: skip
    inputs = [make.make_tensor_value_info("input", input_type, input_shape)]
    if extra_input:
        inputs.append(make.make_tensor_value_info("more", onnx.TensorProto.FLOAT, [1]))
    model = make.make_model(
        make.make_graph(
            steps,
            "encoder",
            inputs,
            [make.make_tensor_value_info("output", onnx.TensorProto.FLOAT, declared)],
            [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
        ),
        opset_imports=[make.make_opsetid("", 18)],
        ir_version=9,
    )
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    "fields",
    [{}, {"input_shape": (1, "T", 80)}, {"input_shape": (None, None, 80)},
     {"declared": ("B", 512)}, {"declared": ("B", "D")}],
)  # fmt: skip
def test_graphs_of_the_right_kind_are_taken(tmp_path, fields):
    """Also one that declares another output than it gives."""
    encoder = SpeakerEncoder(graph(tmp_path / "encoder.onnx", **fields))
    assert encoder.embed(audio(noise(4000))).shape == (192,)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"width": 100}, r"output of shape \(1, 100\)"),
        ({"input_shape": ("B", "T", 81)}, "81"),
        ({"input_shape": ("B", 200, 80)}, "200"),
        ({"input_shape": (2, "T", 80)}, r"\[2, "),
        ({"input_type": onnx.TensorProto.DOUBLE}, "double"),
        ({"extra_input": True}, "more"),
    ],
)
def test_other_graphs_are_refused(tmp_path, fields, found):
    with pytest.raises(FolderError, match=rf"not a speaker encoder[\s\S]*{found}"):
        SpeakerEncoder(graph(tmp_path / "encoder.onnx", **fields))


@pytest.mark.parametrize("shape", [["B", 80], ["B", "T", 80, 1], []])
def test_inputs_of_other_ranks_do_not_fit(shape):
    assert not _accepts_any_length(shape)


def test_a_graph_that_fails_on_a_request_is_named(tmp_path):
    """It takes the 20 frames of the trial, and no more."""
    shape = onnx.numpy_helper.from_array(np.array([1, 20, 80]), "shape")
    nodes = [
        onnx.helper.make_node("Constant", [], ["shape"], value=shape),
        onnx.helper.make_node("Reshape", ["float", "shape"], ["reshaped"]),
    ]
    path = graph(tmp_path / "encoder.onnx", nodes=nodes)
    model = onnx.load(path)
    model.graph.node[3].input[0] = "reshaped"
    onnx.save(model, path)
    encoder = SpeakerEncoder(path)
    with pytest.raises(FolderError, match=r"encoder\.onnx is not a speaker encoder"):
        encoder.embed(audio(noise(16000)))


@pytest.mark.parametrize("factor", [np.nan, np.inf])
def test_what_is_not_finite_is_an_error(tmp_path, factor):
    encoder = SpeakerEncoder(graph(tmp_path / "encoder.onnx", factor=factor))
    with pytest.raises(NumericError, match=r"speaker encoder produced NaN[\s\S]*voice\.wav"):
        encoder.embed(audio(noise(4000)))


@pytest.mark.parametrize("kind", ["missing", "folder", "text", "truncated"])
def test_files_that_cannot_be_loaded_are_refused(tmp_path, kind):
    path = tmp_path / "campplus.onnx"
    if kind == "folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("version https://git-lfs.github.com/spec/v1\n", encoding="utf-8")
    elif kind == "truncated":
        path.write_bytes(CAMPPLUS.read_bytes()[:5000])
    with pytest.raises(FolderError, match=r"campplus\.onnx[\s\S]*What to do"):
        SpeakerEncoder(path)


def test_a_graph_that_never_ends_is_ended(tmp_path, monkeypatch):
    """Of an engine folder that a stranger made: the exporter would have refused it."""
    yes = onnx.helper.make_tensor("", onnx.TensorProto.BOOL, [], [True])
    value = onnx.helper.make_tensor_value_info
    kinds = onnx.TensorProto
    body = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Identity", ["go"], ["on"]),
            onnx.helper.make_node("Identity", ["kept"], ["again"]),
        ],
        "body",
        [value("turn", kinds.INT64, []), value("go", kinds.BOOL, []), value("kept", 1, None)],
        [value("on", kinds.BOOL, []), value("again", 1, None)],
    )
    nodes = [
        onnx.helper.make_node("Constant", [], ["yes"], value=yes),
        onnx.helper.make_node("Loop", ["", "yes", "input"], ["turned"], body=body),
        onnx.helper.make_node("ReduceMean", ["turned"], ["output"], axes=[1], keepdims=0),
    ]
    graph = onnx.helper.make_graph(
        nodes, "g", [value("input", 1, ["B", "T", 80])], [value("output", 1, ["B", 80])]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])
    model.ir_version = 8
    path = tmp_path / "speaker_encoder.onnx"
    path.write_bytes(model.SerializeToString())
    monkeypatch.setattr(speaker_encoder, "_LONGEST_RUN", 0.5)
    with pytest.raises(FolderError, match="is not a speaker encoder"):
        SpeakerEncoder(path)
