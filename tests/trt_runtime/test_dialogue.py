"""Dialogues against the reference's texts, scripts, and what is refused."""

from __future__ import annotations

import itertools
import json
import os

import pytest

from tests.goldens import load_json, needs_goldens
from trt_runtime.dialogue import (
    LARGEST_SCRIPT,
    LONGEST_NAME,
    MOST_TURNS,
    Dialogue,
    Turn,
    read_script,
    speakers_in_raw_text,
)
from trt_runtime.errors import UserError

RECORDED = " speaker_1:你可以说一下。\n speaker_2:一部搞笑的电影。\n speaker_1:嗯。\n"
RECORDED_PROMPT = " speaker_1:每个月还要考核\n speaker_2:对啊\n"
PAIRS = [("anna", "你可以说一下。"), ("ben", "一部搞笑的电影。"), ("anna", "嗯。")]
MAPPINGS = [{"text": text, "speaker": speaker} for speaker, text in PAIRS]
SCRIPT = "# a talk\n\nanna: 你可以说一下。\n  ben ：一部搞笑的电影。 \n\n# end\nanna:嗯。"


@pytest.mark.parametrize(
    "turns",
    [
        PAIRS,
        MAPPINGS,
        tuple(PAIRS),
        [list(pair) for pair in PAIRS],
        [Turn(*pair) for pair in PAIRS],
        [PAIRS[0], MAPPINGS[1], Turn(*PAIRS[2])],
        Dialogue.from_any(PAIRS),
    ],
    ids=itertools.count(),
)
def test_the_text_is_that_of_the_reference(turns):
    dialogue = Dialogue.from_any(turns)
    assert dialogue.text() == RECORDED
    assert dialogue.speakers == ("anna", "ben")
    assert dialogue.prompt_text(["每个月还要考核", "对啊"]) == RECORDED_PROMPT
    assert dialogue == Dialogue.from_any(iter(PAIRS))


def test_speakers_are_numbered_as_they_first_speak():
    dialogue = Dialogue.from_any([("z", "1"), ("a", "2"), ("a", "3"), ("m", "4"), ("z", "5")])
    assert dialogue.speakers == ("z", "a", "m")
    assert dialogue.text() == (
        " speaker_1:1\n speaker_2:2\n speaker_2:3\n speaker_3:4\n speaker_1:5\n"
    )


def test_white_space_around_names_and_texts_is_dropped():
    assert Turn("\tanna ", " Hello.\n") == Turn("anna", "Hello.")


@pytest.mark.parametrize("count", [2, 3, 11, 120])
def test_speakers_are_found_again_in_the_text(count):
    turns = [(f"name {n}", f"turn {n}: yes") for n in range(count)] * 2
    dialogue = Dialogue.from_any(turns)
    assert len(dialogue.speakers) == count
    assert speakers_in_raw_text(dialogue.text()) == count
    assert speakers_in_raw_text(dialogue.prompt_text(["a"] * count)) == count
    assert dialogue.text().count("\n") == len(turns)


@pytest.mark.parametrize(
    ("text", "speakers"),
    [
        (RECORDED, 2),
        (" speaker_7:a", 7),
        (" speaker_2:a\n speaker_10:b\n", 10),
        ("Hello.", 0),
        ("", 0),
        ("As speaker_2: said", 0),
        ("Hello speaker_2:\n", 0),
        ("  speaker_1:<spk>", 0),
        (" speaker_0:a", 0),
        (" speaker_x:a", 0),
        (" speaker_1 a", 0),
        (" speaker_" + "9" * 5000 + ":a", 0),
    ],
    ids=itertools.count(),
)
def test_speakers_in_raw_text(text, speakers):
    assert speakers_in_raw_text(text) == speakers


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([], r"too few speakers[\s\S]*no turns"),
        ([("anna", "a"), (" anna", "b")], r"too few speakers[\s\S]*'anna'"),
        ([("a", "x"), ("b", " ")], r"turn 2: a turn's text is blank"),
        ([("a", "x"), (" ", "y")], r"turn 2: a speaker's name is blank"),
        ([("a", "x\ny"), ("b", "y")], r"turn 1: a turn's text holds a line break"),
        ([("a", "x\u2029y"), ("b", "y")], r"holds a line break"),
        ([("a", "x"), ("b", "y speaker_3: z")], r"turn 2: .*label[\s\S]*'speaker_3:' in 'y"),
        ([("a", "Speaker_12 ：z"), ("b", "y")], r"turn 1: .*holds a speaker's label"),
        ([("a", "x\x00"), ("b", "y")], r"turn 1: .*control character"),
        ([("a", 3), ("b", "y")], r"turn 1: a turn's text is not text"),
        ([(1, "x"), ("b", "y")], r"turn 1: a speaker's name is not text"),
        ([("a\nb", "x"), ("b", "y")], r"turn 1: a speaker's name cannot be used"),
        ([("a\u200bb", "x"), ("b", "y")], r"a speaker's name cannot be used"),
        ([("a" * (LONGEST_NAME + 1), "x"), ("b", "y")], r"a speaker's name cannot be used"),
        ([("a", "x"), "ab"], r"turn 2 is no turn[\s\S]*'ab'"),
        ([("a", "x"), ("b", "y", "z")], r"turn 2 is no turn"),
        ([{"speaker": "a"}, ("b", "y")], r"turn 1 is no turn"),
        ([{"speaker": "a", "text": "x", "mood": "y"}], r"turn 1 is no turn[\s\S]*mood"),
        ([("speaker_2", "x"), ("speaker_1", "y")], r"speaker_2 would be speaker 1"),
        ([("anna", "x"), ("Speaker_1", "y")], r"Speaker_1 would be speaker 2"),
        ("anna: hello", r"a dialogue is a list of turns[\s\S]*str"),
        ({"anna": "hello"}, r"a dialogue is a list of turns[\s\S]*dict"),
        (None, r"a dialogue is a list of turns[\s\S]*NoneType"),
        (itertools.cycle(PAIRS), r"too many turns[\s\S]*1,000"),
        (PAIRS * MOST_TURNS, r"too many turns"),
        ([("a", "x" * 150_000), ("b", "x" * 50_000)], None),
    ],
    ids=itertools.count(),
)
def test_what_is_no_dialogue(turns, message):
    if message is None:
        with pytest.raises(UserError, match="too long"):
            Dialogue.from_any(turns).text()
        return
    with pytest.raises(UserError, match=message):
        Dialogue.from_any(turns)


def test_numbered_names_in_their_order():
    assert Dialogue.from_any([("speaker_1", "a"), ("speaker_2", "b")]).text()[-3:] == ":b\n"


def test_a_dialogue_is_made_of_turns():
    for turns in (PAIRS, "ab", None):
        with pytest.raises(UserError, match="from_any"):
            Dialogue(turns)
    with pytest.raises(UserError, match="too many turns"):
        Dialogue([Turn("a", "x"), Turn("b", "y")] * MOST_TURNS)
    made = Dialogue([Turn("a", "x"), Turn("b", "y")])
    assert made == Dialogue((Turn("a", "x"), Turn("b", "y")))
    assert hash(made)


@pytest.mark.parametrize(
    ("transcripts", "message"),
    [
        ("ab", r"transcripts are no list[\s\S]*str"),
        (None, r"transcripts are no list"),
        (["a"], r"too few or too many[\s\S]*2, for anna, ben in this order[\s\S]*Found: 1"),
        (["a", "b", "c"], r"Found: 3"),
        (["a", ""], r"the transcript of ben is blank"),
        (["a\nb", "c"], r"the transcript of anna holds a line break"),
        (["a", "speaker_1:b"], r"the transcript of ben holds a speaker's label"),
        (["a", 3], r"the transcript of ben is not text"),
    ],
)
def test_transcripts_that_are_refused(transcripts, message):
    with pytest.raises(UserError, match=message):
        Dialogue.from_any(PAIRS).prompt_text(transcripts)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_script(tmp_path, encoding, newline):
    path = tmp_path / "talk.txt"
    path.write_bytes(SCRIPT.replace("\n", newline).encode(encoding))
    assert read_script(path) == Dialogue.from_any(PAIRS)
    assert read_script(str(path)).text() == RECORDED


def test_only_the_first_colon_of_a_line_ends_the_name(tmp_path):
    path = tmp_path / "talk.txt"
    path.write_text("anna: At 12:30.\nben：Note: yes：no", encoding="utf-8")
    assert read_script(path).turns == (Turn("anna", "At 12:30."), Turn("ben", "Note: yes：no"))


@pytest.mark.parametrize("turns", [PAIRS, MAPPINGS])
def test_a_json_script(tmp_path, turns):
    path = tmp_path / "talk.JSON"
    path.write_text(json.dumps(turns), encoding="utf-8")
    assert read_script(path).text() == RECORDED


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"anna: hi\n\nhello\nben: hi", r"a\.txt: line 3 names no speaker[\s\S]*'hello'"),
        ("a.txt", b"anna: hi\n# x\nben:", r"a\.txt: line 3: a turn's text is blank"),
        ("a.txt", b": hi\nben: hi", r"line 1: a speaker's name is blank"),
        ("a.txt", b"anna: hi\nben: a\x07", r"line 2: .*control character"),
        ("a.txt", b"anna: hi\nben: speaker_1: a", r"line 2: .*label"),
        ("a.txt", b"anna: hi\n", r"a\.txt: a dialogue has too few speakers"),
        ("a.txt", b"", r"too few speakers[\s\S]*no turns"),
        ("a.txt", b"anna: hi\nben: \xff", r"UTF-8 text[\s\S]*byte 0xFF at offset 14"),
        ("a.txt", "anna: hi\nben: ho".encode("utf-16"), r"binary data"),
        ("a.txt", b"RIFF\0\0\0\0WAVE", r"binary data"),
        ("a.txt", b"a" * (LARGEST_SCRIPT + 1), r"at most 1,000,000 bytes"),
        ("a.txt", b"a: b\n" * (MOST_TURNS + 1), r"too many turns"),
        ("a.json", b"{", r"a\.json: the script is no JSON"),
        ("a.json", b"[" * 100_000, r"the script is no JSON"),
        ("a.json", b'{"turns": []}', r"a dialogue is a list of turns[\s\S]*dict"),
        ("a.json", b'[["a", "b"], ["c"]]', r"turn 2 is no turn"),
        ("a.json", b'[["a", "b"], ["c", null]]', r"turn 2: a turn's text is not text"),
        ("a.json", b'[["a", "b"], ["c", "\\ud800"]]', r"turn 2: .*surrogate"),
    ],
    ids=itertools.count(),
)
def test_scripts_that_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_script(path)


def test_scripts_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"missing\.txt cannot be read[\s\S]*no file"):
        read_script(tmp_path / "missing.txt")
    with pytest.raises(UserError, match=r"cannot be read[\s\S]*something else of that name"):
        read_script(tmp_path)
    with pytest.raises(UserError, match=r"cannot be read"):
        read_script(tmp_path / ("x" * 5000))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "talk.txt")
    with pytest.raises(UserError, match="something else of that name"):
        read_script(tmp_path / "talk.txt")


@needs_goldens
@pytest.mark.parametrize("family", ["dense", "moe"])
def test_recorded_dialogues(family):
    passed = load_json(f"{family}_e2e")["meta"]["podcast"]["passed_to_prepare_input_embed"]
    dialogue = Dialogue.from_any(PAIRS)
    assert dialogue.text() == passed["text"]
    assert dialogue.prompt_text(["每个月还要考核", "对啊"]) == passed["prompt_text"]
    assert speakers_in_raw_text(passed["text"]) == 2


@needs_goldens
@pytest.mark.parametrize("family", ["dense", "moe"])
def test_other_recorded_texts_are_no_dialogues(family):
    meta = load_json(f"{family}_e2e")["meta"]
    texts = [row["request"]["text"] for case, row in meta.items() if case != "podcast"]
    assert {speakers_in_raw_text(text) for text in texts} == {0}
