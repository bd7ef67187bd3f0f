"""Every option of a request: what is taken, and what is refused by name."""

from __future__ import annotations

import dataclasses
import inspect
import math
from fractions import Fraction

import numpy as np
import pytest

import trt_runtime
from trt_runtime.errors import UserError
from trt_runtime.noise import RecordedNoise
from trt_runtime.prompt import SPEECH_PROMPT
from trt_runtime.request import Request, RequestOptions


def test_the_defaults_are_those_of_the_reference():
    request = Request("Hello.")
    assert dataclasses.asdict(request) == {
        "text": "Hello.", "prompt": None, "instruction": None, "voice": None, "reference": None,
        "reference_text": None, "speaker_embedding": "auto", "guidance": 2.0, "sigma": 0.25,
        "temperature": 0.0, "min_steps": 5, "max_steps": 200, "seed": 0, "normalize": False,
        "retries": 0, "noise": None, "trace": False, "on_progress": None,
    }  # fmt: skip
    assert request.noise_scale == 0
    assert request.prompt_or_default == SPEECH_PROMPT


@pytest.mark.parametrize(
    "options",
    [
        {"guidance": 0}, {"guidance": 1}, {"guidance": np.float32(4.5)}, {"sigma": 0},
        {"temperature": np.float64(2.5)}, {"temperature": Fraction(1, 2)},
        {"min_steps": 10, "max_steps": 1}, {"min_steps": np.int64(1)}, {"seed": 2**64 - 1},
        {"seed": np.uint64(7)}, {"trace": np.bool_(True)}, {"speaker_embedding": None},
        {"prompt": ""}, {"prompt": "Sing.\n"}, {"on_progress": print},
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
    "value", [-0.1, math.nan, math.inf, -math.inf, True, "2", None, 1e39, 10**400, 1j, [1.0],
              np.float32("nan"), np.array(2.0)],
)  # fmt: skip
def test_reals_out_of_range_are_refused(name, value):
    with pytest.raises(UserError, match=rf"{name} cannot be used[\s\S]*finite number"):
        Request("a", **{name: value})


@pytest.mark.parametrize("name", ["min_steps", "max_steps"])
@pytest.mark.parametrize("value", [0, -1, True, 1.0, "5", None, np.float32(5)])
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


@pytest.mark.parametrize(
    "options",
    [
        {"instruction": {"情感": "高兴"}}, {"instruction": ""}, {"voice": "someone"},
        {"reference": "a.wav"}, {"reference": np.zeros(3)}, {"reference_text": "b"},
        {"speaker_embedding": np.zeros(192, np.float32)}, {"speaker_embedding": "zero"},
        {"normalize": True}, {"retries": 1},
    ],
)  # fmt: skip
def test_what_comes_later_says_so(options):
    (name,) = options
    with pytest.raises(UserError, match=rf"^{name} is not in this version of ming-trt yet"):
        Request("a", **options)


def test_noise_scale():
    assert Request("a", sigma=0.3, temperature=2.5).noise_scale == pytest.approx(0.3 * 2.5**0.5)


def test_a_request_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Request("a").seed = 1


@pytest.mark.parametrize(
    ("function", "own"),
    [
        (trt_runtime.synthesize, {"text", "engines"}),
        (trt_runtime.stream, {"text", "engines", "chunk_patches"}),
    ],
)
def test_the_functions_take_a_requests_options_with_its_defaults(function, own):
    """Their option lists are written out, for editors and help; none may differ."""
    parameters = inspect.signature(function).parameters
    assert own < set(parameters)
    options = {name: p.default for name, p in parameters.items() if name not in own}
    assert list(options.items()) == [
        (field.name, field.default) for field in dataclasses.fields(Request) if field.name != "text"
    ]
    assert all(
        p.kind is inspect.Parameter.KEYWORD_ONLY for n, p in parameters.items() if n != "text"
    )
    for field in dataclasses.fields(Request):
        if field.name != "on_progress":  # there with the type of what it is called with
            assert parameters[field.name].annotation == field.type, field.name


def test_the_checked_keywords_are_a_requests_options():
    options = [field.name for field in dataclasses.fields(Request) if field.name != "text"]
    assert list(RequestOptions.__annotations__) == options
