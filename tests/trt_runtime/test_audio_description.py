"""Descriptions of music and sounds against the reference's texts, and what is refused."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from tests.goldens import load_json, needs_goldens
from trt_runtime.audio_description import Music, SoundEvent
from trt_runtime.errors import UserError
from trt_runtime.instruction_values import MUSIC_LABELS
from trt_runtime.prompt import MUSIC_KEYS

RECORDED = " Genre: 电子舞曲. Mood: 自信 / 坚定. Instrument: 架子鼓. Theme: 节日. Duration: 30s."
VALUES = {
    "genre": "电子舞曲",
    "mood": "自信 / 坚定",
    "instrument": "架子鼓",
    "theme": "节日",
    "duration": 30,
}


def music(**changes):
    return Music(**{**VALUES, **changes})


@pytest.mark.parametrize("duration", [30, 30.0, np.float32(30), Fraction(30), "30s", " 30s. "])
def test_the_text_is_that_of_the_reference(duration):
    assert music(duration=duration).text() == RECORDED


def test_every_value_ends_with_one_point():
    dotted = {name: f"{value}." for name, value in VALUES.items() if name != "duration"}
    assert music(**dotted).text() == RECORDED
    assert music(**{name: f" {value} \n" for name, value in dotted.items()}).text() == RECORDED


def test_any_music_is_read_as_music_by_the_prompt():
    text = Music("a", "b", "c", "d", "e").text()
    assert text == " Genre: a. Mood: b. Instrument: c. Theme: d. Duration: e."
    assert all(text.count(key) == 1 for key in MUSIC_KEYS)


@pytest.mark.parametrize(
    ("duration", "written", "seconds"),
    [
        (12.5, "12.5s", 12.5),
        (1, "1s", 1.0),
        (100, "100s", 100.0),
        (0.00001, "0.00001s", 0.00001),
        (1e16, "10000000000000000s", 1e16),
        ("12.5 s", "12.5 s", 12.5),
        ("7s", "7s", 7.0),
        ("half a minute", "half a minute", None),
        ("30", "30", None),
        ("-3s", "-3s", None),
        ("1e3s", "1e3s", None),
        ("٣s", "٣s", None),
    ],
)
def test_durations(duration, written, seconds):
    described = music(duration=duration)
    assert described.text().endswith(f" Duration: {written}.")
    assert described.duration_seconds == seconds


@pytest.mark.parametrize(
    "duration",
    [0, -1, 0.0, math.nan, math.inf, 10**400, True, None, [30], "0s", "0.0 s", "9" * 400 + "s"],
    ids=itertools.count(),
)
def test_durations_that_are_refused(duration):
    with pytest.raises(UserError, match=r"duration cannot be used[\s\S]*30s"):
        music(duration=duration)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "is blank"),
        (" \t\u3000", "is blank"),
        ("a\nb", "holds a line break"),
        ("a\u2028b", "holds a line break"),
        ("a\x1bb", "holds a control character"),
        ("a. Mood: b", r"name of another part[\s\S]*Mood: in 'a\. Mood: b'"),
        ("Genre: a", r"name of another part[\s\S]*Genre:"),
        ("30s. Duration: 40s", r"name of another part"),
    ],
)
def test_values_that_would_break_the_form(name, value, message):
    with pytest.raises(UserError, match=rf"{name} .*{message}"):
        music(**{name: value})


@pytest.mark.parametrize("name", list(MUSIC_LABELS))
def test_a_label_is_text(name):
    with pytest.raises(UserError, match=f"{name} is not text"):
        music(**{name: 3})


def test_all_five_are_needed():
    for name in VALUES:
        with pytest.raises(TypeError, match=name):
            Music(**{key: value for key, value in VALUES.items() if key != name})


def test_labels_that_are_not_documented_are_warned_of():
    assert music().warnings() == ()
    assert music(genre="电子舞曲.").warnings() == ()
    genre, theme = music(genre="电子音乐舞曲", theme="space").warnings()
    assert "near ones are 电子舞曲" in genre
    assert "theme 'space'" in theme
    assert "they are 励志" in theme


def test_a_sound_goes_in_as_it_is():
    assert SoundEvent("Thunder and a gentle rain").text() == "Thunder and a gentle rain"
    assert SoundEvent(" Mood: rain\n").text() == " Mood: rain\n"


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ("", "description is blank"),
        (None, "description is not text"),
        ("a\x00", "description holds a control character"),
        (RECORDED, r"read as one of music[\s\S]*Music\("),
    ],
)
def test_sounds_that_are_refused(description, message):
    with pytest.raises(UserError, match=message):
        SoundEvent(description)


@needs_goldens
@pytest.mark.parametrize("family", ["dense", "moe"])
def test_recorded_descriptions(family):
    meta = load_json(f"{family}_e2e")["meta"]
    assert music().text() == meta["bgm"]["passed_to_prepare_input_embed"]["text"]
    sound = meta["tta"]["passed_to_prepare_input_embed"]["text"]
    assert SoundEvent(meta["tta"]["request"]["text"]).text() == sound
