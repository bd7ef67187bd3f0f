"""Every option of a request: what is taken, and what is refused by name."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
from fractions import Fraction

import numpy as np
import pytest

import trt_runtime
from trt_runtime.audio_description import Music, SoundEvent
from trt_runtime.errors import UserError
from trt_runtime.noise import RecordedNoise
from trt_runtime.prompt import MUSIC_PROMPT, SOUND_EVENT_PROMPT, SPEECH_PROMPT
from trt_runtime.request import Request, RequestOptions

OPTIONS = [field for field in dataclasses.fields(Request) if field.init and field.name != "text"]
MUSIC = Music("电子舞曲", "快乐", "架子鼓", "节日", 30)


@pytest.mark.parametrize(
    ("text", "prompt", "guidance", "sigma", "temperature", "max_steps"),
    [
        ("Hello.", SPEECH_PROMPT, 2.0, 0.25, 0.0, 200),
        ([("anna", "Hello."), ("ben", "Hi.")], SPEECH_PROMPT, 2.0, 0.25, 0.0, 200),
        (MUSIC, MUSIC_PROMPT, 2.0, 0.25, 0.0, 400),
        (SoundEvent("Thunder"), SOUND_EVENT_PROMPT, 4.5, 0.3, 2.5, 200),
    ],
)
def test_the_defaults_are_those_of_the_reference(
    text, prompt, guidance, sigma, temperature, max_steps
):
    use = Request(text).use
    assert (use.prompt, use.guidance, use.sigma) == (prompt, guidance, sigma)
    assert (use.temperature, use.max_steps) == (temperature, max_steps)
    request = Request(text)
    assert request.noise_scale == pytest.approx(sigma * temperature**0.5)
    assert (request.min_steps, request.seed, request.speaker_embedding) == (5, 0, "auto")


def test_what_is_given_goes_before_the_uses_default():
    use = Request(SoundEvent("Rain"), guidance=1, temperature=0, prompt="Hum.", max_steps=7).use
    assert (use.guidance, use.temperature, use.prompt, use.max_steps) == (1.0, 0.0, "Hum.", 7)
    assert use.sigma == 0.3


def test_a_string_is_speech_whatever_its_prompt():
    """The reference's own strings keep the reference's own defaults."""
    assert Request("Thunder", prompt=SOUND_EVENT_PROMPT).use.guidance == 2.0
    assert Request(MUSIC.text(), prompt=MUSIC_PROMPT).use.max_steps == 200


@pytest.mark.parametrize("name", ["voice", "reference", "reference_text", "instruction"])
def test_music_and_sounds_have_no_voice(name):
    with pytest.raises(UserError, match="description alone"):
        Request(MUSIC, **{name: "x"})
    with pytest.raises(UserError, match="description alone"):
        Request(SoundEvent("Rain"), **{name: "x"})


def test_recorded_noise_cannot_be_tried_again():
    noise = RecordedNoise(np.zeros((1, 4, 16), np.float32))
    with pytest.raises(UserError, match="retries and recorded noise"):
        Request("a", noise=noise, retries=1)


@pytest.mark.parametrize(
    "options",
    [
        {"guidance": 0}, {"guidance": 1}, {"guidance": np.float32(4.5)}, {"sigma": 0},
        {"temperature": np.float64(2.5)}, {"temperature": Fraction(1, 2)},
        {"min_steps": 10, "max_steps": 1}, {"min_steps": np.int64(1)}, {"seed": 2**64 - 1},
        {"seed": np.uint64(7)}, {"trace": np.bool_(True)}, {"speaker_embedding": None},
        {"prompt": ""}, {"prompt": "Sing.\n"}, {"on_progress": print}, {"guidance": None},
        {"max_steps": None}, {"split_limit": None}, {"split_limit": 20}, {"posterior": "sample"},
        {"on_runaway": "stop"}, {"retries": 3}, {"normalize": True},
        {"noise": RecordedNoise(np.zeros((1, 4, 16), np.float32))},
    ],
)  # fmt: skip
def test_what_is_taken(options):
    request = Request("a", **options)
    for name, value in options.items():
        assert getattr(request, name) == value


def test_numpy_scalars_become_plain_numbers():
    request = Request("a", guidance=np.float32(1), max_steps=np.int32(3), trace=np.bool_(True))
    assert type(request.guidance) is float
    assert type(request.max_steps) is int
    assert type(request.trace) is bool


@pytest.mark.parametrize("name", ["guidance", "sigma", "temperature"])
@pytest.mark.parametrize(
    "value", [-0.1, math.nan, math.inf, -math.inf, True, "2", 1e39, 10**400, 1j, [1.0],
              np.float32("nan"), np.array(2.0)],
)  # fmt: skip
def test_reals_out_of_range_are_refused(name, value):
    with pytest.raises(UserError, match=rf"{name} cannot be used[\s\S]*finite number"):
        Request("a", **{name: value})


@pytest.mark.parametrize("name", ["min_steps", "max_steps"])
@pytest.mark.parametrize("value", [0, -1, True, 1.0, "5", np.float32(5)])
def test_step_counts_out_of_range_are_refused(name, value):
    with pytest.raises(UserError, match=rf"{name} cannot be used[\s\S]*whole number of 1 or more"):
        Request("a", **{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": True}, "seed"),
        ({"seed": 0.0}, "seed"),
        ({"sigma": 3e38, "temperature": 3e38}, "temperature cannot be used"),
        ({"trace": 1}, "trace cannot be used"),
        ({"normalize": "yes"}, "normalize cannot be used"),
        ({"retries": -1}, "retries cannot be used"),
        ({"retries": None}, "retries cannot be used"),
        ({"min_steps": None}, "min_steps cannot be used"),
        ({"split_limit": 19}, "split_limit cannot be used"),
        ({"posterior": "median"}, "posterior cannot be used"),
        ({"on_runaway": None}, "on_runaway cannot be used"),
        ({"instruction": ["高兴"]}, "nstruction"),
        ({"noise": np.zeros(3)}, "noise cannot be used"),
        ({"on_progress": 3}, "on_progress cannot be used"),
        ({"prompt": "a\x00"}, "prompt holds a control character"),
        ({"prompt": 3}, "prompt is not text"),
        ({"text": ""}, "text is blank"),
        ({"text": "a\x07"}, "text holds a control character"),
        ({"text": None}, "text is not text"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        Request(**({"text": "a"} | options))


def test_noise_scale():
    assert Request("a", sigma=0.3, temperature=2.5).noise_scale == pytest.approx(0.3 * 2.5**0.5)


def test_a_request_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Request("a").seed = 1


@pytest.mark.parametrize(
    ("function", "own"),
    [
        (trt_runtime.synthesize, {"text", "engines", "voices"}),
        (trt_runtime.stream, {"text", "engines", "voices", "chunk_patches"}),
    ],
)
def test_the_functions_take_a_requests_options_with_its_defaults(function, own):
    """Their option lists are written out, for editors and help; none may differ."""
    parameters = inspect.signature(function).parameters
    assert own < set(parameters)
    options = {name: p.default for name, p in parameters.items() if name not in own}
    assert list(options.items()) == [(field.name, field.default) for field in OPTIONS]
    assert all(
        p.kind is inspect.Parameter.KEYWORD_ONLY for n, p in parameters.items() if n != "text"
    )
    for field in OPTIONS:
        if field.name != "on_progress":  # there with the type of what it is called with
            assert parameters[field.name].annotation == field.type, field.name


def test_the_checked_keywords_are_a_requests_options():
    assert list(RequestOptions.__annotations__) == [field.name for field in OPTIONS]


@pytest.mark.parametrize(
    "name", ["guidance", "seed", "max_steps", "retries", "split_limit", "noise"]
)
def test_a_number_too_long_to_write_is_refused_like_any_other(name):
    with pytest.raises(UserError, match="cannot be used"):
        Request("a", **{name: 10**5000})


class Word(str, enum.Enum):  # noqa: UP042 - whose str() is not its value
    HELLO = "hello"


def test_an_enumeration_is_spoken_by_its_value():
    assert Request(Word.HELLO).text == "hello"
    assert type(Request(Word.HELLO).text) is str


def test_a_description_is_not_spelled_out():
    with pytest.raises(UserError, match="nothing of it is spoken"):
        Request(MUSIC, normalize=True)


@pytest.mark.parametrize("embedding", ["zero", np.zeros(192, np.float32)])
def test_music_has_no_speaker(embedding):
    with pytest.raises(UserError, match="description alone"):
        Request(MUSIC, speaker_embedding=embedding)
