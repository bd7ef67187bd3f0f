"""What `ming-trt speak` makes of its arguments: a request, or a refusal before anything loads."""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import re
import sys

import numpy as np
import pytest
import soundfile

from trt_runtime import synthesizer
from trt_runtime.audio_description import Music, SoundEvent
from trt_runtime.cli import inputs, main, speak, speak_options
from trt_runtime.dialogue import Dialogue
from trt_runtime.errors import UserError
from trt_runtime.instruction import Background, Instruction
from trt_runtime.request import Request
from trt_runtime.spoken_text import LONGEST_TEXT
from trt_runtime.uses import MUSIC, SOUND_EVENT, SPEECH
from trt_runtime.voice import Voice
from trt_runtime.voice_store import VoiceStore

MUSIC_WORDS = ("genre=流行乐", "mood=快乐", "instrument=电吉他", "theme=生日", "duration=30")


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    speak.command.add_arguments(parser)
    return parser.parse_args([*map(str, arguments), "-o", "a.wav"])


def asked(*arguments):
    """What is spoken and the options of its request."""
    return speak_options.content_and_options(parsed(*arguments))


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "talk.txt"
    path.write_text("anna: Hello.\nben: Hi.\n", encoding="utf-8")
    return path


@pytest.fixture
def wave(tmp_path):
    path = tmp_path / "ref.wav"
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, 16000)
    soundfile.write(path, noise, 16000)
    return path


def test_nothing_is_asked_for_that_was_not_given():
    assert asked("Hello.") == ("Hello.", {})


def test_text_may_stand_before_and_after_options():
    for arguments in (("a", "--seed", 1), ("--seed", 1, "a"), ("--quiet", "a", "--seed", 1)):
        assert asked(*arguments) == ("a", {"seed": 1})


def test_a_text_comes_from_a_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffEins,\r\nzwei.\n".encode())
    assert asked("--text-file", path) == ("Eins,\nzwei.", {})


def test_a_file_beyond_any_text_is_refused_for_its_length(tmp_path):
    """And not for a character that the limit cuts in two."""
    path = tmp_path / "text.txt"
    path.write_text("语" * (2 * LONGEST_TEXT), encoding="utf-8")
    content, options = asked("--text-file", path)
    assert len(content) < 2 * LONGEST_TEXT
    with pytest.raises(UserError, match="text is too long"):
        Request(content, **options)


def test_standard_input_is_read_up_to_a_limit(monkeypatch):
    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            buffer[:] = b"a" * len(buffer)
            return len(buffer)

    stdin = io.TextIOWrapper(io.BufferedReader(Endless()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert LONGEST_TEXT < len(asked("-")[0]) <= 4 * LONGEST_TEXT + 9


def test_without_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="no standard input"):
        asked("-")


def test_a_script_is_a_dialogue_with_a_voice_a_speaker(script, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("good = morning\n", encoding="utf-8")
    content, options = asked(
        "--script", script, "--voice", "ben=mine", "--reference", "anna=a=b.wav",
        "--reference-text", f"anna=@{words}",
    )  # fmt: skip
    assert content == Dialogue.from_any([("anna", "Hello."), ("ben", "Hi.")])
    assert options == {
        "voice": {"ben": "mine"},
        "reference": {"anna": "a=b.wav"},
        "reference_text": {"anna": "good = morning"},
    }


def test_music_and_sound_events():
    music, options = asked("--music", *MUSIC_WORDS)
    assert (music, options) == (Music("流行乐", "快乐", "电吉他", "生日", 30.0), {})
    music, _ = asked("--music", *MUSIC_WORDS[:3], "--music", "theme=生日", "duration=1 min")
    assert music.duration == "1 min"
    assert asked("--sound-event", "Thunder") == (SoundEvent("Thunder"), {})


def test_references_of_one_speaker():
    assert asked("a", "--reference", "x.wav", "--reference-text", "b = c")[1] == {
        "reference": "x.wav",
        "reference_text": "b = c",
    }
    assert asked("a", "--reference", "x.wav", "--reference", "y.wav")[1] == {
        "reference": ["x.wav", "y.wav"]
    }
    assert asked("a", "--voice", "anna", "--posterior", "sample")[1] == {
        "voice": "anna",
        "posterior": "sample",
    }


def test_numbers_and_guards():
    arguments = ["--normalize", "--split-limit", 40, "--retries", 2, "--on-runaway", "stop"]
    assert asked("a", *arguments)[1] == {
        "normalize": True, "split_limit": 40, "retries": 2, "on_runaway": "stop",
    }  # fmt: skip


@pytest.mark.parametrize("never", ["none", "None"])
def test_a_text_need_not_be_split(never):
    assert asked("a", "--split-limit", never)[1] == {"split_limit": None}


def test_manner_and_background_make_an_instruction():
    manner = {
        "emotion": "happy", "dialect": "cantonese", "style": "warm", "rate": "slow", "pitch": "low",
        "volume": "high", "ip": "灵小安",
    }  # fmt: skip
    given = [word for name, value in manner.items() for word in (f"--{name}", value)]
    background = ["--background", "environment=Tap water running", "--background", "snr=10"]
    _, options = asked("a", *given, *background)
    expected = Background(environment="Tap water running", snr=10)
    assert options == {"instruction": Instruction(**manner, background=expected)}
    assert expected.snr == 10.0


def test_backgrounds_are_one_an_option_or_several():
    expected = Instruction(background=Background(environment="Rainfall", snr=10))
    pairs = ["environment=Rainfall", "snr=10"]
    for given in (["--background", *pairs], ["--background", pairs[0], "--background", pairs[1]]):
        for arguments in (["a", *given], [*given, "--seed", 0, "a"], [*given, "a"]):
            content, options = asked(*arguments)
            assert content == "a"
            assert options["instruction"] == expected


@pytest.mark.parametrize(
    ("option", "found"),
    [
        ("--style", lambda _, options: options["instruction"].style),
        ("--prompt", lambda _, options: options["prompt"]),
        ("--instruction", lambda _, options: options["instruction"]),
        ("--sound-event", lambda content, _: content.description),
    ],
)
def test_texts_come_from_files_wherever_an_option_takes_one(option, found, tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("warm and low\n", encoding="utf-8")
    text = [] if option == "--sound-event" else ["a"]
    assert found(*asked(*text, option, f"@{path}")) == "warm and low"
    assert found(*asked(*text, option, "bright")) == "bright"


def test_the_help_names_values_that_can_be_given():
    for name, text in speak_options._MANNER.items():
        if name not in ("style", "ip"):
            for value in re.split(r", | or ", text):
                assert asked("a", f"--{name}", value)[1]["instruction"] is not None


def test_a_whole_instruction(tmp_path):
    path = tmp_path / "how.json"
    path.write_text('{"audio_sequence": [{}]}\n', encoding="utf-8")
    assert asked("a", "--instruction", f"@{path}")[1] == {"instruction": '{"audio_sequence": [{}]}'}
    assert asked("a", "--instruction", "a warm voice")[1] == {"instruction": "a warm voice"}


@pytest.mark.parametrize(("choice", "value"), [("auto", "auto"), ("zero", "zero"), ("none", None)])
def test_a_speaker_embedding_by_name(choice, value):
    assert asked("a", "--speaker-embedding", choice)[1] == {"speaker_embedding": value}


@pytest.mark.parametrize("shape", [(192,), (1, 192), (3, 192)])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<f2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_speaker_embeddings_from_a_file(shape, dtype, order, tmp_path):
    path = tmp_path / "speaker.npy"
    array = np.arange(np.prod(shape), dtype=dtype).reshape(shape, order=order)
    np.save(path, array)
    _, options = asked("a", "--speaker-embedding", path)
    found = options["speaker_embedding"]
    assert all(row.dtype == np.float32 and row.shape == (192,) for row in found)
    assert np.array_equal(np.stack(found), np.atleast_2d(array).astype(np.float32))


def header(shape, dtype="<f4"):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


class Trap:
    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (npy(np.zeros(191, np.float32)), r"shape \(191,\)"),
        (npy(np.zeros((2, 2, 192), np.float32)), r"shape \(2, 2, 192\)"),
        (npy(np.zeros((0, 192), np.float32)), r"shape \(0, 192\)"),
        (npy(np.zeros(192, np.int64)), "int64"),
        (npy(np.full(192, np.nan, np.float32)), "NaN"),
        (npy(np.full(192, 1e300)), "beyond float32"),
        (npy(np.array([Trap()] * 192, object)), "object"),
        (pickle.dumps([1.0]), "magic string"),
        (npy(np.zeros(192, np.float32))[:-1], "895 bytes"),
        (header("(10**9, 192)"), "malformed"),
        (header("(1000000000000, 192)"), r"shape \(1000000000000, 192\)"),
        (header("(-1, 192)"), r"shape \(-1, 192\)"),
        (b"", "magic string"),
        (npy(np.zeros((2000, 192))), "more"),
    ],
)
def test_a_file_that_is_no_speaker_embedding_is_refused(data, found, tmp_path):
    path = tmp_path / "speaker.npy"
    path.write_bytes(data)
    with pytest.raises(UserError, match=found) as caught:
        inputs.speaker_embeddings(str(path))
    assert "is no speaker embedding" in caught.value.what


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_of_speaker_embeddings_is_not_waited_for(tmp_path):
    path = tmp_path / "speaker.npy"
    os.mkfifo(path)
    with pytest.raises(UserError, match="a device or a pipe"):
        asked("a", "--speaker-embedding", path)


def test_help_gives_the_defaults_of_every_use():
    parser = argparse.ArgumentParser()
    speak.command.add_arguments(parser)
    text = " ".join(parser.format_help().split())
    fields = Request.__dataclass_fields__

    def told(option):
        found = re.search(rf"  ?{option} [^()]*?\S+ [^()]*\(default: ([^)]+)\)", text)
        assert found, option
        return found[1]

    for option in ("seed", "min_steps", "retries", "split_limit"):
        assert told("--" + option.replace("_", "-")) == str(fields[option].default), option
    for option in ("posterior", "on_runaway", "speaker_embedding"):
        assert told("--" + option.replace("_", "-")) == fields[option].default, option
    for option in ("guidance", "sigma", "temperature", "max_steps"):
        usual = getattr(SPEECH, option)
        others = [
            f"{use.name} {getattr(use, option)}"
            for use in (MUSIC, SOUND_EVENT)
            if getattr(use, option) != usual
        ]
        assert told("--" + option.replace("_", "-")) == ", ".join([str(usual), *others]), option


@pytest.fixture
def refused(monkeypatch, tmp_path, capsys):
    """The error of `ming-trt speak ...`, which must have loaded nothing and written nothing."""

    def load(*arguments, **options):
        pytest.fail("the engines were loaded")

    monkeypatch.setattr(synthesizer, "load", load)
    monkeypatch.setenv("MING_TRT_VOICES", str(tmp_path / "voices"))

    def run(*arguments):
        assert main.main(["speak", *map(str, arguments), "-o", str(tmp_path / "a.wav")]) == 2
        assert not (tmp_path / "a.wav").exists()
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to speak"),
        (["a", "--text-file", "b"], "Found: TEXT and --text-file"),
        (["a", "--script", "b"], "Found: TEXT and --script"),
        (["--sound-event", "a", "--music", *MUSIC_WORDS], "Found: --music and --sound-event"),
        (["--text-file", "none.txt"], "none.txt cannot be read"),
        (["--text-file", "."], r"\. cannot be read"),
        (["--script", "none.txt"], "script none.txt cannot be read"),
        (["--music", *MUSIC_WORDS[:4]], "--music needs each part"),
        (["--music", *MUSIC_WORDS, "tempo=3"], "tempo=..."),
        (["--music", *MUSIC_WORDS, "mood=x"], "given twice for mood"),
        (["--music", *MUSIC_WORDS, "Hello."], "value without a name"),
        (["--music", *MUSIC_WORDS[:4], "duration=-1"], "duration cannot be used"),
        (["--music", *MUSIC_WORDS, "--voice", "anna"], "made from its description alone"),
        (["--music", *MUSIC_WORDS, "--emotion", "happy"], "made from its description alone"),
        (["--music", *MUSIC_WORDS, "--no-latents"], "and there is --no-latents"),
        (
            ["--sound-event", "a", "--emotion", "happy", "--background", "snr=1"],
            "A sound event is made from .* alone, and there is --emotion, --background",
        ),
        (["--sound-event", "a", "--instruction", "b"], "and there is --instruction"),
        (["--sound-event", " "], "--sound-event is blank"),
        (["--sound-event", "a", "--normalize"], "--normalize is for words"),
        (["--sound-event", "a", "--split-limit", "50"], "--split-limit is for a text"),
        (["a", "--split-limit", "5"], "--split-limit cannot be used"),
        (["a", "--split-limit", "0"], "Expected: none, or a number of 20 or more"),
        (["a", "--retries", "-1"], "--retries cannot be used"),
        (["a", "--reference", "anna=REF"], "is for a speaker of a --script"),
        (["a", "--voice", "anna=REF"], "give --script FILE, or --voice REF"),
        (["a", "--reference", "anna=none.wav"], "anna=none.wav cannot be opened"),
        (["a", "--no-latents"], "--no-latents is for a recording or a stored voice"),
        (["a", "--speaker-embedding", "zerro"], "auto, zero, none, or a .npy file"),
        (["a", "--speaker-embedding", "None"], "What to do: give none"),
        (["--background", "snr=1", "environment=Rainfall"], "nothing to speak"),
        (["a", "--reference-text", "b"], "words of a recording, and there is none"),
        (["a", "--voice", "anna"], "There is no voice anna"),
        (["a", "--voice", "a", "--voice", "b"], "--voice is given more than once"),
        (["a", "--voice", "x.safetensors"], "x.safetensors"),
        (["a", "--reference", "none.wav"], "none.wav"),
        (["a", "--posterior", "sample"], "--posterior is for the latents"),
        (["a", "--speaker-embedding", "none.npy"], "none.npy cannot be read"),
        (["a", "--speaker-embedding", "zero", "--reference", "b"], "zero is for speaking without"),
        (["a", "--speaker-embedding", "none", "--reference", "b"], "Nothing of the recording"),
        (["a", "--emotion", "bored"], "emotion is none that"),
        (["a", "--background", "noise"], "value without a name"),
        (["a", "--background", "loudness=1"], "no field 'loudness'"),
        (["a", "--background", "snr=loud"], "snr cannot be used"),
        (["a", "--background", "snr=nan"], "snr cannot be used"),
        (["a", "--instruction", "b", "--rate", "slow"], "there is --rate"),
        (["a", "--instruction", "b", "--background", "snr=1"], "there is --background"),
        (["a", "--instruction", '{"情感": "高兴"'], "begins like JSON and is none"),
        (["a", "--instruction", "[laughing]"], "begins like JSON and is none"),
        (["a", "--instruction", "[" * 100_000], "begins like JSON and is none"),
        (["a", "--instruction", "[1]"], "JSON that is not an instruction"),
        (["a", "--instruction", '{"mood": 1}'], "JSON that is not an instruction"),
        (["a", "--instruction", "@none.json"], "none.json cannot be read"),
        (["a", "--instruction", "@"], "names no file"),
        (["a", "--sentences", "none/a.json"], "no folder"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(arguments, message, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "REF").touch()
    error = refused(*arguments)
    assert re.search(message, error), error
    assert "What to do: " in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "without a voice: anna, ben"),
        (["--voice", "anna=x"], "give --voice ben=NAME"),
        (["--voice", "anna=x", "--voice", "bob=y"], "no speaker bob"),
        (["--voice", "x"], "value without a name"),
        (["--voice", "anna=x", "--voice", "anna=y"], "given twice for anna"),
        (["--voice", "anna=x", "--voice", "ben=y"], "There is no voice x"),
        (["--reference", "anna=x.wav", "--voice", "ben=y"], "x.wav"),
        (["--split-limit", "50"], "--split-limit is for a text"),
    ],
)
def test_a_dialogue_that_cannot_be_spoken_is_refused(arguments, message, refused, script):
    error = refused("--script", script, *arguments)
    assert re.search(message, error), error


def test_without_the_normaliser_nothing_is_loaded(refused, monkeypatch):
    monkeypatch.setattr("trt_runtime.text_normalization._loaded", [])
    monkeypatch.setitem(sys.modules, "wetext", None)
    assert "wetext" in refused("3 cats", "--normalize")


def test_what_contradicts_a_recording_is_refused(refused, wave):
    assert "brings its own reference" in refused("a", "--voice", "x", "--reference", wave)


def test_a_recording_that_is_none_is_refused(refused, tmp_path):
    path = tmp_path / "ref.wav"
    path.write_bytes(b"RIFF")
    assert "cannot be read as audio" in refused("a", "--reference", path)


def test_stored_voices_are_looked_for_in_the_folder_that_was_named(tmp_path):
    voice = Voice("f", "", 44100, 4, None, np.ones(192, np.float32), None, None, 88200, ())
    VoiceStore(tmp_path).add("anna", voice)
    speak_options.check_request("a", {"voice": "anna"}, str(tmp_path))
    with pytest.raises(UserError, match="no voice anna"):
        speak_options.check_request("a", {"voice": "anna"}, str(tmp_path / "elsewhere"))


@pytest.fixture(scope="module")
def speaks(dense):
    """Runs `ming-trt speak ...` with the goldens' dense engines; the sentences that it reports."""

    def run(folder, *arguments):
        output, sentences = folder / "a.wav", folder / "a.json"
        given = [*map(str, arguments), "-o", str(output), "--sentences", str(sentences)]
        assert main.main(["speak", *given, "--engines", str(dense.engines), "--quiet"]) == 0
        found = json.loads(sentences.read_text(encoding="utf-8"))
        assert soundfile.info(output).frames == sum(s["samples"] for s in found["sentences"])
        return found["sentences"], soundfile.read(output)[0]

    return run


@pytest.mark.parametrize(
    "use",
    ["long", "described", "cloned", "stored", "dialogue", "music", "sound event", "embedding"],
)
def test_every_use_speaks(use, speaks, dense, wave, script, tmp_path):
    """And what was given makes a difference: each use sounds otherwise than plain speech."""
    words = ["--reference", wave, "--reference-text", "hello"]
    if use == "stored":
        made = ["mine", str(wave), "--text", "hello", "--engines", str(dense.engines)]
        assert main.main(["voices", "add", *made, "--voices", str(tmp_path)]) == 0
    embedding = tmp_path / "speaker.npy"
    np.save(embedding, np.ones(192, np.float32))
    arguments = {
        "long": ["Hello there, all. How are you today?", "--split-limit", 20],
        "described": ["Hello.", "--emotion", "happy", "--background", "snr=10"],
        "cloned": ["Hello.", *words],
        "stored": ["Hello.", "--voice", "mine", "--voices", tmp_path],
        "dialogue": ["--script", script, "--reference", f"anna={wave}", "--voice", f"ben={wave}"],
        "music": ["--music", *MUSIC_WORDS],
        "sound event": ["--sound-event", "Thunder"],
        "embedding": ["Hello.", "--speaker-embedding", embedding],
    }[use]
    limit = ["--max-steps", 3]
    sentences, audio = speaks(tmp_path, *arguments, *limit)
    plain = speaks(tmp_path, "Hello.", *limit)[1]
    assert len(audio) != len(plain) or not np.array_equal(audio, plain)
    spoken = [sentence["text"] for sentence in sentences]
    if use == "long":
        assert spoken == ["Hello there, all.", "How are you today?"]
    else:
        assert len(spoken) == 1
