"""Whole requests through built engines against the reference, with its recorded noise.

Every use of the model: plain speech, speaker embeddings, clones with short and long references,
instructions, dialogue, music, sound events. A recorded request is the keyword arguments of the
reference's cookbook; :func:`options_of` says them in ours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.goldens import OMNI_TTS, assert_close, load_json, load_npz
from trt_runtime import Background, Instruction, Music, RecordedNoise, SoundEvent
from trt_runtime.folder import OpenFolder
from trt_runtime.instruction import instruction_text
from trt_runtime.prompt import GRAMMARS, build_prompt
from trt_runtime.request import Request
from trt_runtime.speech import Speech
from trt_runtime.synthesizer import Synthesizer
from trt_runtime.text_tokenizer import TextTokenizer

WAVES = OMNI_TTS / "wavs"
ARRAYS = load_npz("dense_e2e")
META: dict[str, Any] = load_json("dense_e2e")["meta"]
MOE_ARRAYS = load_npz("moe_e2e")
MOE_META: dict[str, Any] = load_json("moe_e2e")["meta"]


def options_of(request: dict[str, Any]) -> dict[str, Any]:
    """A recorded request's options, its text apart, as ours."""
    waves = request.get("prompt_wav_path")
    embedding: str | None = None
    if request.get("use_spk_emb") and waves:
        embedding = "auto"
    elif request.get("use_zero_spk_emb") and not waves:
        embedding = "zero"
    if isinstance(waves, list):
        reference: Any = [WAVES / wave for wave in waves]
    else:
        reference = WAVES / waves if waves else None
    return {
        "prompt": request["prompt"],
        "max_steps": request["max_decode_steps"],
        "guidance": request.get("cfg", 2.0),
        "sigma": request.get("sigma", 0.25),
        "temperature": request.get("temperature", 0.0),
        "instruction": request.get("instruction"),
        "reference": reference,
        "reference_text": request.get("prompt_text") if waves else None,
        "speaker_embedding": embedding,
    }


def noise_of(case: str, arrays: dict[str, np.ndarray] = ARRAYS) -> RecordedNoise:
    initial = np.ascontiguousarray(arrays[f"{case}/init_noise"][:, 0].transpose(0, 2, 1))
    diffusion = arrays.get(f"{case}/sde_noise")
    if diffusion is not None:
        # The reference draws once more than it uses: the last step's noise is never read.
        diffusion = diffusion.reshape(len(initial), -1, *initial.shape[1:])
        diffusion = np.ascontiguousarray(diffusion[:, :-1])
    posterior = arrays.get(f"{case}/vae_noise")
    if posterior is not None:
        posterior = np.ascontiguousarray(posterior[0].T)
    return RecordedNoise(initial, diffusion, posterior)


def assert_as_recorded(
    opened: OpenFolder,
    case: str,
    speech: Speech,
    arrays: dict[str, np.ndarray] = ARRAYS,
    recorded: dict[str, Any] = META,
) -> None:
    meta, trace = recorded[case], speech.trace
    assert trace is not None
    np.testing.assert_array_equal(trace.prompt_ids, arrays[f"{case}/ids"])
    assert speech.steps == meta["steps"]
    assert speech.finish_reason == ("stop" if meta["stopped_by_head"] else "max_steps")
    if f"{case}/prompt_latent" in arrays:
        assert_close(trace.reference_latents, arrays[f"{case}/prompt_latent"], "reference latents")
    assert_close(trace.hidden, arrays[f"{case}/z"], "hidden states")
    assert_close(trace.latents, arrays[f"{case}/latents"], "latents")
    assert_close(trace.stop_probabilities, arrays[f"{case}/stop_prob"], "stop probabilities")
    # The reference loses the tail at the step limit; we keep it, and the common part agrees.
    assert len(speech.audio) == speech.steps * opened.manifest.geometry.samples_per_patch
    assert len(speech.audio) >= meta["samples"]
    common = speech.audio[: meta["samples"]]
    if f"{case}/wave" in arrays:
        assert_close(common, arrays[f"{case}/wave"], "wave")
    else:
        assert_close(common[::8], arrays[f"{case}/wave_every8"], "every 8th sample")


@pytest.mark.parametrize("case", META)
def test_speech(dense_engines: OpenFolder, case: str) -> None:
    request = META[case]["request"]
    speech = Synthesizer(dense_engines).synthesize(
        request["text"], noise=noise_of(case), trace=True, **options_of(request)
    )
    assert_as_recorded(dense_engines, case, speech)


#: Recorded cases in our typed forms: case → (text, options that differ from the recorded ones).
TYPED: dict[str, tuple[Any, dict[str, Any]]] = {
    "emotion_spk": (None, {"instruction": Instruction(emotion="happy")}),
    "zero_spk_style": (None, {"instruction": Instruction(ip="灵小甄")}),
    "bgm": (Music("电子舞曲", "自信 / 坚定", "架子鼓", "节日", 30), {"prompt": None}),
    "tta": (
        SoundEvent("Thunder and a gentle rain"),
        {"prompt": None, "guidance": None, "sigma": None, "temperature": None},
    ),
    "podcast": (
        [
            {"speaker": "anna", "text": "你可以说一下。"},
            {"speaker": "ben", "text": "一部搞笑的电影。"},
            {"speaker": "anna", "text": "嗯。"},
        ],
        {
            "reference": None,
            "reference_text": None,
            "voice": {
                "anna": (WAVES / "a_24k.wav", "每个月还要考核"),
                "ben": (WAVES / "b_16k.wav", "对啊"),
            },
        },
    ),
}


@pytest.mark.parametrize("case", TYPED)
def test_the_typed_form_is_the_same_request(dense_engines: OpenFolder, case: str) -> None:
    request = META[case]["request"]
    text, changes = TYPED[case]
    options = options_of(request) | changes
    speech = Synthesizer(dense_engines).synthesize(
        request["text"] if text is None else text, noise=noise_of(case), trace=True, **options
    )
    assert_as_recorded(dense_engines, case, speech)


def test_a_typed_background_is_the_recorded_one_in_another_order() -> None:
    recorded = (
        '{"Genre": "当代古典音乐.", "Mood": "温暖 / 友善.", "Instrument": "电吉他", '
        '"Theme": "节日.", "SNR": 10.0, "ENV": null}'
    )
    background = Background(
        genre="当代古典音乐.", mood="温暖 / 友善.", instrument="电吉他", theme="节日.", snr=10
    )
    (item,) = json.loads(Instruction(background=background).to_json())["audio_sequence"]
    assert item["BGM"] == json.loads(recorded)


def _tokenizer(family: str) -> TextTokenizer:
    folder = next(
        path.parent
        for path in sorted(OMNI_TTS.glob("*/config.json"))
        if (json.loads(path.read_text())["model_type"] == "dense") == (family == "dense")
    )
    return TextTokenizer.load(Path(folder) / "tokenizer.json")


@pytest.mark.parametrize("case", MOE_META)
def test_speech_of_the_mixture_of_experts(moe_engines: OpenFolder, case: str) -> None:
    request = MOE_META[case]["request"]
    speech = Synthesizer(moe_engines).synthesize(
        request["text"], noise=noise_of(case, MOE_ARRAYS), trace=True, **options_of(request)
    )
    assert_as_recorded(moe_engines, case, speech, MOE_ARRAYS, MOE_META)


@pytest.mark.parametrize("case", MOE_META)
def test_prompts_of_the_mixture_of_experts(case: str) -> None:
    """As the reference makes them, from the pieces that it was given."""
    recorded = MOE_ARRAYS
    request, meta = MOE_META[case]["request"], MOE_META[case]
    kind = recorded[f"{case}/kind"]
    said, _ = instruction_text(request.get("instruction"))
    patches = int((kind == 2).sum())
    prompt = build_prompt(
        _tokenizer("moe"),
        GRAMMARS["ming-omni-tts-moe"],
        prompt=Request("x", prompt=request["prompt"]).use.prompt,
        text=request["text"],
        speakers=int((kind == 1).sum()),
        prompt_text=request.get("prompt_text") if patches else None,
        prompt_patches=patches,
        instruction=said,
    )
    np.testing.assert_array_equal(prompt.ids, recorded[f"{case}/ids"])
    assert list(prompt.speaker_slots) == list(np.flatnonzero(kind == 1))
    assert list(prompt.patch_slots) == list(np.flatnonzero(kind == 2))
    assert said == meta["passed_to_prepare_input_embed"].get("instruction")
