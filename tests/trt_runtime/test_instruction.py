"""Instructions against the reference's texts, and what is refused, dropped or suggested."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest

from tests.goldens import FULL, load_json, needs_goldens
from trt_runtime.errors import UserError
from trt_runtime.instruction import Background, Instruction, instruction_text
from trt_runtime.instruction_values import (
    BACKGROUND_FIELDS,
    DIALECTS,
    EMOTIONS,
    ENVIRONMENTS,
    INSTRUCTION_FIELDS,
    LEVELS,
    MUSIC_LABELS,
    RATES,
    VOICES,
)
from trt_runtime.spoken_text import LONGEST_TEXT

HAPPY = (
    '{"audio_sequence": [{"序号": 1, "说话人": "speaker_1", "方言": null, "风格": null, '
    '"语速": null, "基频": null, "音量": null, "情感": "高兴", "BGM": {"Genre": null, '
    '"Mood": null, "Instrument": null, "Theme": null, "ENV": null, "SNR": null}, "IP": null}]}'
)
UNSET = HAPPY.replace('"高兴"', "null")
MIXED = (
    '{"audio_sequence": [{"序号": 1, "说话人": "speaker_1", "BGM": {"Genre": "迪斯科", '
    '"Mood": null, "Instrument": null, "Theme": null, "ENV": "Rainfall", "SNR": 10.0}, '
    '"情感": null, "方言": null, "风格": null, "语速": null, "基频": null, "音量": "高", '
    '"IP": null}]}'
)
CHOICES = {
    "dialect": DIALECTS,
    "rate": RATES,
    "pitch": LEVELS,
    "volume": LEVELS,
    "emotion": EMOTIONS,
    "ip": VOICES,
}


def item(text):
    return json.loads(text)["audio_sequence"][0]


def test_the_whole_json():
    assert Instruction(emotion="happy").to_json() == HAPPY
    assert Instruction().to_json() == UNSET


def test_the_whole_json_with_a_background_to_mix():
    background = Background(genre="迪斯科", environment="rainfall", snr=10)
    assert Instruction(volume="high", background=background).to_json() == MIXED


def test_silence_of_the_background_is_a_mixture_too():
    keys = list(item(Instruction(background=Background(snr=0)).to_json()))
    assert keys[2] == "BGM"
    assert list(item(Instruction(background=Background(genre="迪斯科")).to_json()))[-2] == "BGM"


@pytest.mark.parametrize("field", CHOICES)
def test_every_documented_value_goes_in_as_the_model_knows_it(field):
    for value, others in CHOICES[field].items():
        for name in (value, *others, f" {value.upper()} ", *(other.upper() for other in others)):
            instruction = Instruction.from_fields({field: name})
            assert getattr(instruction, field) == value
            assert item(instruction.to_json())[INSTRUCTION_FIELDS[field]] == value


@pytest.mark.parametrize(
    ("field", "name", "value"),
    [
        ("emotion", "happy", "高兴"),
        ("emotion", "angry", "愤怒"),
        ("emotion", "sad", "悲伤"),
        ("rate", "fast", "快速"),
        ("rate", "medium", "中速"),
        ("rate", "slow", "慢速"),
        ("pitch", "low", "低"),
        ("pitch", "medium", "中"),
        ("volume", "high", "高"),
        ("dialect", "Cantonese", "粤语"),
        ("dialect", "广粤话", "广粤话"),
        ("dialect", "sichuanese", "川渝"),
        ("dialect", "sichuan-chongqing", "川渝"),
    ],
)
def test_english_names(field, name, value):
    assert item(Instruction(**{field: name}).to_json())[INSTRUCTION_FIELDS[field]] == value


@pytest.mark.parametrize("name", ["Birds chirping", "birds CHIRPING", "Tap water running"])
def test_environments(name):
    written = Background(environment=name).environment
    assert written in ENVIRONMENTS
    assert written[:8].casefold() == name[:8].casefold()


def test_how_much_is_documented():
    assert len(ENVIRONMENTS) == 24
    assert len(VOICES) == 40 + 62 * 7 - 5 + 10
    assert {"灵小甄", "灵信远_高兴", "灵晓声_惊讶", "雍正王朝_雍正"} <= set(VOICES)
    assert not {"灵信远", "灵晓声_恐惧", "灵傲尘_惊讶", "灵雨汐_厌恶"} & set(VOICES)
    assert [len(labels) for labels in MUSIC_LABELS.values()] == [9, 11, 6, 10]


def test_names_are_unambiguous():
    for choices in (*CHOICES.values(), ENVIRONMENTS):
        names = [n.casefold() for own, others in choices.items() for n in (own, *others)]
        assert len(set(names)) == len(names)


def test_fields_by_the_models_names():
    english = Instruction(emotion="sad", ip="灵小甄", background=Background(mood="快乐", snr=3))
    assert Instruction(情感="sad", IP="灵小甄", BGM=Background(Mood="快乐", SNR=3)) == english
    fields = {"情感": "悲伤", "ip": "灵小甄", "BGM": {"mood": "快乐", "SNR": 3}}
    assert Instruction.from_fields(fields) == english
    assert Instruction(background={"Mood": "快乐", "snr": 3}).background == english.background


def test_none_is_unset():
    fields = dict.fromkeys([*INSTRUCTION_FIELDS, *INSTRUCTION_FIELDS.values()])
    assert Instruction(**fields) == Instruction.from_fields(fields) == Instruction()
    assert Instruction(emotion=None, 情感="高兴").to_json() == HAPPY
    assert Background(**dict.fromkeys(BACKGROUND_FIELDS.values())) == Background()


def test_an_instruction_is_a_frozen_value():
    happy = Instruction(emotion="happy")
    assert hash(happy) == hash(Instruction(情感="高兴"))
    assert dataclasses.replace(happy, rate="fast").rate == "快速"
    with pytest.raises(dataclasses.FrozenInstanceError):
        happy.emotion = "x"


@pytest.mark.parametrize("field", INSTRUCTION_FIELDS)
def test_both_names_of_one_field_are_refused(field):
    value = {"style": "x", "background": Background()}.get(field) or next(iter(CHOICES[field]))
    both = {field: value, INSTRUCTION_FIELDS[field]: value}
    for make in (Instruction.from_fields, lambda fields: Instruction(**fields)):
        with pytest.raises(UserError, match=rf"{field} is given twice"):
            make(both)


def test_both_names_of_a_background_field_are_refused():
    with pytest.raises(UserError, match="snr is given twice"):
        Background(snr=1, SNR=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"emotoin": "happy"}, r"no field 'emotoin'[\s\S]*write emotion"),
        ({"Emotion": "happy"}, r"write emotion"),
        ({"情绪": "高兴"}, r"no field '情绪'[\s\S]*the nearest is 情感"),
        ({"xyz": None}, r"no field 'xyz'[\s\S]*dialect \(方言\)[\s\S]*leave it out"),
        ({3: "x"}, r"no field 3"),
        ({"\x1b[31m": "x"}, r"no field '\\x1b\[31m'"),
        ({"background": {"gnre": "x"}}, r"background has no field 'gnre'[\s\S]*write genre"),
        ({"background": "迪斯科"}, r"background's fields are no mapping[\s\S]*str"),
        ([("emotion", "happy")], r"instruction's fields are no mapping[\s\S]*list"),
    ],
)
def test_unknown_fields(fields, message):
    with pytest.raises(UserError, match=message):
        Instruction.from_fields(fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"emotion": "hapy"}, r"高兴 \(happy\)[\s\S]*near ones are happy"),
        ({"emotion": "furious"}, r"愤怒 \(angry\)[\s\S]*Found: 'furious'\.[\s\S]*choose another"),
        ({"pitch": "lowest"}, r"pitch is none[\s\S]*低 \(low\)[\s\S]*near ones are low"),
        ({"dialect": "粤"}, r"near ones are 粤语"),
        ({"ip": "灵小真"}, r"one of the 479 names[\s\S]*near ones are .*灵小"),
        ({"ip": "灵信远"}, r"near ones are .*灵信远_高兴"),
        ({"background": {"environment": "rain"}}, r"near ones are Rainfall"),
        ({"background": {"environment": "bird"}}, r"near ones are Birds chirping"),
        ({"emotion": " \n"}, r"emotion is blank"),
        ({"style": ""}, r"style is blank"),
        ({"style": "a\x07"}, r"style holds a control character"),
        ({"style": 3}, r"style is not text"),
        ({"ip": "a\ud800"}, r"ip holds half of a surrogate pair"),
        ({"background": {"genre": "\u3000"}}, r"genre is blank"),
        ({"background": {"theme": "a\x00"}}, r"theme holds a control character"),
        ({"emotion": ["happy"]}, r"emotion is not text[\s\S]*list"),
    ],
)
def test_values_that_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        Instruction.from_fields(fields)


def test_a_refused_voice_lists_near_ones_only():
    with pytest.raises(UserError) as refused:
        Instruction(ip="灵")
    assert 0 < sum(voice in str(refused.value) for voice in VOICES) <= 7
    with pytest.raises(UserError) as refused:
        Instruction(ip="x" * LONGEST_TEXT)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("snr", [10, -3.5, 0, np.float32(2.5), np.int64(4), Fraction(1, 2)])
def test_snr(snr):
    written = Background(snr=snr).snr
    assert type(written) is float
    assert written == snr


@pytest.mark.parametrize("snr", [math.nan, math.inf, -math.inf, True, "10", 10**400, 1j, [1]])
def test_snr_that_is_no_finite_number(snr):
    with pytest.raises(UserError, match="snr cannot be used"):
        Background(snr=snr)


def test_a_label_that_is_not_documented_goes_in_with_a_warning():
    text, warnings = instruction_text(Instruction(background={"genre": "流行摇滚乐", "snr": 1}))
    assert item(text)["BGM"]["Genre"] == "流行摇滚乐"
    assert len(warnings) == 1
    assert "genre '流行摇滚乐'" in warnings[0]
    assert "流行摇滚" in warnings[0].split("near ones are")[1]
    documented = {field: labels[-1] + "." for field, labels in MUSIC_LABELS.items()}
    assert instruction_text(Instruction(background=documented))[1] == ()


def test_nothing_is_no_instruction():
    assert instruction_text(None) == (None, ())


def test_an_instruction_is_its_json():
    assert instruction_text(Instruction(emotion="happy")) == (HAPPY, ())


def test_a_mapping_is_taken_as_in_the_reference():
    assert instruction_text({"情感": "高兴"}) == (HAPPY, ())
    assert instruction_text({}) == (UNSET, ())
    anything = {"语速": ["a", {"b": None}], "序号": 7, "说话人": "x", "音量": 1.5, "BGM": None}
    text, warnings = instruction_text(anything)
    assert warnings == ()
    assert item(text) == {**item(UNSET), **anything}
    assert list(item(text)) == list(item(UNSET))


def test_a_background_of_a_mapping_replaces_the_whole():
    for snr, place in ((None, -2), (0, 2), (10.0, 2)):
        background = {"SNR": snr, "Mood": "b", "other": 1}
        written = item(instruction_text({"BGM": background})[0])
        assert list(written["BGM"].items()) == list(background.items())
        assert list(written).index("BGM") == range(len(written))[place]


def test_unknown_keys_of_a_mapping_are_dropped_with_one_warning():
    text, warnings = instruction_text({"情感": "高兴", "emotion": "sad", 5: object()})
    assert text == HAPPY
    (warning,) = warnings
    assert "'emotion', 5 was dropped" in warning
    assert "Instruction.from_fields" in warning
    (warning,) = instruction_text({f"k{n}": 0 for n in range(50)})[1]
    assert "'k9' and 40 more" in warning
    assert len(warning) < 400


def cyclic():
    value = []
    value.append(value)
    return value


def deep(levels):
    value = "x"
    for _ in range(levels):
        value = [value]
    return value


def doubling(times):
    """Few lists that stand for 2 ** times texts."""
    value = ["x"]
    for _ in range(times):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, r"JSON cannot hold"),
        ([math.inf], r"JSON cannot hold"),
        (object(), r"JSON cannot hold[\s\S]*not JSON serializable"),
        (b"x", r"JSON cannot hold"),
        ({(1, 2): 3}, r"JSON cannot hold"),
        (cyclic(), r"JSON cannot hold[\s\S]*[Cc]ircular"),
        (deep(100_000), r"nested too deeply"),
        (doubling(60), r"instruction is too long"),
        ("x" * (LONGEST_TEXT + 1), r"instruction is too long"),
        ("a\ud800", r"surrogate pair"),
        ("a\x7f", r"control character"),
    ],
    ids=itertools.count(),
)
def test_values_that_json_cannot_hold(value, message):
    with pytest.raises(UserError, match=message):
        instruction_text({"风格": value})


@pytest.mark.parametrize(
    "text",
    [
        "a calm voice",
        "[laughs] in a calm voice",
        "null",
        "17",
        '"happy"',
        ' {"audio_sequence":[{"情感":"高兴"}],\n"x": 1} ',
        '{"audio_sequence": null, "情感": "x"}',
        HAPPY,
    ],
)
def test_a_text_goes_in_as_it_is(text):
    assert instruction_text(text) == (text, ())


def test_json_with_known_keys_is_taken_as_a_mapping():
    text, warnings = instruction_text('{"情感": "高兴", "extra": 1}')
    assert text == HAPPY
    assert len(warnings) == 2
    assert "taken as a mapping" in warnings[0]
    assert "'extra' was dropped" in warnings[1]


def test_a_text_that_looks_like_json_goes_in_with_a_warning():
    for text in ('{"情感": "高兴",}', "{happy}", '{"情感": ' + "1" * 5000 + "}"):
        written, warnings = instruction_text(text)
        assert written == text
        assert "went in as plain text" in warnings[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"emotion": "happy"}', r"not an instr[\s\S]*audio_sequence[\s\S]*keys 'emotion'"),
        ("{}", r"not an instruction[\s\S]*no keys"),
        ('["高兴"]', r"not an instruction[\s\S]*an array"),
        ('{"情感": NaN}', r"JSON cannot hold"),
        ('{"情感": 1e999}', r"JSON cannot hold"),
        ("[" * 100_000, r"nested too deeply"),
        ('{"情感": ' * 20_000, r"nested too deeply"),
        ("", r"instruction is blank"),
        ("a\x00", r"control character"),
        ("x" * (LONGEST_TEXT + 1), r"too long"),
    ],
    ids=itertools.count(),
)
def test_texts_that_are_refused(text, message):
    with pytest.raises(UserError, match=message):
        instruction_text(text)


@pytest.mark.parametrize("value", [b"{}", 3, ["高兴"], True, object(), Background()])
def test_other_types_are_refused(value):
    with pytest.raises(UserError, match=r"instruction cannot be used[\s\S]*Instruction\("):
        instruction_text(value)


def golden_cases():
    if not FULL:
        return [("dense", "")]
    return [
        (family, case)
        for family in ("dense", "moe")
        for case, meta in load_json(f"{family}_e2e")["meta"].items()
        if "instruction" in meta["request"]
    ]


@needs_goldens
@pytest.mark.parametrize(("family", "case"), golden_cases())
def test_texts_are_those_of_the_reference(family, case):
    meta = load_json(f"{family}_e2e")["meta"][case]
    given = meta["request"]["instruction"]
    expected = meta["passed_to_prepare_input_embed"]["instruction"]
    assert instruction_text(given) == (expected, ())
    assert instruction_text(expected) == (expected, ())
    # A typed instruction writes a background's keys in one order, the reference in that given.
    typed, warnings = instruction_text(Instruction.from_fields(given))
    assert json.loads(typed) == json.loads(expected)
    assert warnings == ()
    assert (typed == expected) == ("BGM" not in given)


@needs_goldens
def test_there_are_recorded_instructions():
    assert len(golden_cases()) >= 6


@pytest.mark.parametrize("text", ['{"audio_sequence": NaN}', '{"audio_sequence": [-Infinity]}'])
def test_numbers_that_json_lacks_are_refused(text):
    with pytest.raises(UserError, match="JSON cannot hold"):
        instruction_text(text)
