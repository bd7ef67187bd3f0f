"""`ming-trt voices`: what it asks of the synthesizer and the store, and what it prints."""

from __future__ import annotations

import io
import json
import sys
import unicodedata

import numpy as np
import pytest
import soundfile

from trt_runtime.cli import main
from trt_runtime.errors import UserError
from trt_runtime.voice import Voice
from trt_runtime.voice_store import VoiceStore

pytestmark = pytest.mark.usefixtures("shipped")


def a_voice(transcript=None, samples=0, warnings=(), embedding=True, family="ming-omni-tts-dense"):
    latents = None if transcript is None else np.ones((8, 4), np.float32)
    speaker = np.ones(192, np.float32) if embedding else None
    return Voice(family, "", 44100, 4, transcript, speaker, latents, latents, samples, warnings)


class FakeSynthesizer:
    asked = None

    def encode_voice(self, reference, reference_text=None):
        self.asked = (reference, reference_text)
        return a_voice(reference_text, 88200, ("it hums\x1b[2J",))


@pytest.fixture
def fake(in_place_of_load):
    return in_place_of_load(FakeSynthesizer())


@pytest.fixture
def store(tmp_path, monkeypatch):
    folder = tmp_path / "voices"
    monkeypatch.setenv("MING_TRT_VOICES", str(folder))
    return VoiceStore(folder)


@pytest.fixture
def wave(tmp_path):
    path = tmp_path / "ref.wav"
    hum = 0.3 * np.sin(2 * np.pi * 220 / 16_000 * np.arange(64_000))
    soundfile.write(path, hum, 16_000)
    return path


@pytest.fixture
def voices(monkeypatch, capsys):
    """Runs `ming-trt voices ...`; its status, standard output and standard error."""

    def run(*arguments):
        status = main.main(["voices", *map(str, arguments)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def test_add_encodes_and_keeps(fake, store, wave, voices):
    status, out, err = voices("add", "小明", wave, "--text", "你好。")
    assert (status, out) == (0, "")
    assert err == (
        f"warning: it hums\\x1b[2J\nadded 小明: 2.0 s, speaker + latents, in {store.path('小明')}\n"
    )
    assert fake.loaded == {"engines": None, "threads": None}
    assert fake.asked == (wave, "你好。")
    assert fake.closed
    assert store.get("小明").transcript == "你好。"


def test_add_keeps_the_voice_where_nothing_can_be_told(fake, store, wave, voices, monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    assert voices("add", "anna", wave)[0] == 0
    assert store.names() == ["anna"]


def test_add_reads_the_words_from_a_file(fake, store, wave, voices, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("Guten\nTag.\n", encoding="utf-8")
    assert voices("add", "anna", wave, "--text", f"@{words}")[0] == 0
    assert fake.asked == (wave, "Guten\nTag.")


def test_add_without_words_tells_the_recordings_seconds(fake, store, wave, voices):
    assert "added anna: 2.0 s, speaker, in" in voices("add", "anna", wave)[2]


def test_add_tells_the_seconds_of_what_it_encoded(store, wave, voices, demo_engines):
    _, _, err = voices("add", "anna", wave, "--engines", demo_engines)
    assert "added anna: 4.0 s, speaker, in" in err


def test_add_passes_on_what_was_given(fake, store, wave, voices, tmp_path):
    other = tmp_path / "other"
    where = ["--engines", "E", "--threads", "2", "--voices", other]
    assert voices("add", "anna", wave, wave, *where)[0] == 0
    assert fake.loaded == {"engines": "E", "threads": 2}
    assert fake.asked == ([wave, wave], None)
    assert VoiceStore(other).names() == ["anna"]
    assert not store.folder.exists()
    assert voices("add", "anna", *where, wave)[0] == 2
    assert voices("add", "anna", *where, "--replace", wave)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["my voice", "REF"], "call it my-voice"),
        (["taken", "REF"], "a voice taken already"),
        (["anna", "none.wav"], "No such file"),
        (["anna", *["REF"] * 76], "too long together"),
        (["anna", "REF", "--text", " "], "--text is blank"),
        (["anna", "REF", "--text", "@none.txt"], "none.txt cannot be read"),
        (["anna", "REF", "--text", "@"], "--text names no file"),
        (["anna", "REF", "--voices", "REF"], "is no folder"),
    ],
)
def test_add_refuses_before_anything_is_loaded(arguments, message, fake, store, wave, voices):
    store.add("taken", a_voice())
    status, out, err = voices("add", *(wave if word == "REF" else word for word in arguments))
    assert (status, out) == (2, "")
    assert message in err
    assert fake.loaded is None
    assert store.names() == ["taken"]


def test_add_keeps_nothing_of_a_recording_that_cannot_be_used(fake, store, wave, voices):
    def encode_voice(reference, reference_text=None):
        raise UserError("The recording is silent", do="give another")

    fake.encode_voice = encode_voice
    status, _, err = voices("add", "anna", wave)
    assert status == 2
    assert "silent" in err
    assert fake.closed
    assert not store.folder.exists()


def columns(text):
    return sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def test_list_is_aligned_in_every_script(store, voices):
    store.add("anna", a_voice("In the beginning\nwas the word, and " * 9, 441000))
    store.add("小明同学", a_voice("你好，" * 30, 22050, embedding=False))
    store.add("b", a_voice(family="家-tts"))
    status, out, err = voices("list")
    assert (status, err) == (0, "")
    head, anna, b, ming = out.splitlines()
    assert head.split() == ["name", "origin", "family", "seconds", "holds", "transcript"]
    for line, holds in ((anna, "speaker + latents"), (b, "speaker"), (ming, "latents")):
        assert columns(line[: line.index(holds)]) == head.index("holds")
    assert columns(anna[: anna.index("In the")]) == head.index("transcript")
    assert columns(ming[: ming.index("你好")]) == head.index("transcript")
    assert anna.endswith("In the beginning was the word, and In t…")
    assert ming.endswith(" " + "你好，" * 6 + "你…")
    assert columns(ming) - head.index("transcript") <= 40
    assert " 10.0 " in anna
    assert " 0.5 " in ming
    assert " ? " in b


def test_list_goes_on_past_a_damaged_file(store, voices):
    store.add("anna", a_voice())
    store.path("bad").write_bytes(b"x" * 100)
    store.add("zoe", a_voice())
    status, out, err = voices("list")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["name", "anna", "bad", "zoe"]
    assert lines[2].startswith("bad   own     cannot be used: ")
    assert lines[1].index("ming-omni") == lines[3].index("ming-omni") == 14
    status, out, _ = voices("list", "--json")
    assert status == 0
    facts = json.loads(out)
    assert [fact["name"] for fact in facts] == ["anna", "bad", "zoe"]
    assert "damaged" in facts[1]["error"]
    store.remove("anna")
    store.remove("zoe")
    assert voices("list")[1].splitlines()[1].startswith("bad   own     cannot be used")


def test_an_empty_list(store, voices):
    status, out, err = voices("list")
    assert (status, out) == (0, "")
    assert "no voices in" in err
    assert "voices add" in err
    assert voices("list", "--json") == (0, "[]\n", "")
    assert not store.folder.exists()


def test_show(store, voices):
    store.add("anna", a_voice("Hello\nthere \u202e.", 88200, ("it hums", "it is loud")))
    status, out, _ = voices("show", "anna")
    assert status == 0
    lines = dict(line.split(maxsplit=1) for line in out.splitlines()[:-2])
    assert lines == {
        "name": "anna", "origin": "own", "file": str(store.path("anna")),
        "family": "ming-omni-tts-dense", "checkpoint": "unknown", "sample_rate": "44100",
        "samples": "88200", "seconds": "2.0", "speaker_embedding": "yes", "latents": "8",
        "patch": "4", "transcript": "Hello\\nthere \\u202e.",
    }  # fmt: skip
    assert out.splitlines()[-1].split(maxsplit=1) == ["warning", "it is loud"]
    status, out, _ = voices("show", "anna", "--json")
    assert status == 0
    assert "\\u202e" in out
    assert json.loads(out) == {
        "name": "anna", "file": str(store.path("anna")), "shipped": False,
        "hides_shipped": False, "family": "ming-omni-tts-dense", "checkpoint": "",
        "sample_rate": 44100, "samples": 88200, "seconds": 2.0,
        "speaker_embedding": True, "latents": 8, "patch": 4,
        "transcript": "Hello\nthere \u202e.", "warnings": ["it hums", "it is loud"],
    }  # fmt: skip


def test_show_of_a_voice_without_words(store, voices):
    store.add("anna", a_voice())
    _, out, _ = voices("show", "anna")
    assert "transcript         none\n" in out
    assert "seconds            ?\n" in out
    assert voices("show", "Ana")[0] == 2
    assert "did you mean anna?" in voices("show", "Ana")[2]


def test_remove_export_import(store, voices, tmp_path):
    store.add("anna", a_voice())
    file = tmp_path / "shared.safetensors"
    assert voices("export", "anna", file) == (0, "", f"wrote {file}\n")
    assert voices("export", "anna", file)[0] == 2
    assert voices("export", "anna", file, "--replace")[0] == 0
    assert voices("import", file) == (0, "", "added shared\n")
    assert voices("import", file)[0] == 2
    assert voices("import", file, "--replace")[0] == 0
    assert voices("import", file, "--name", "小明") == (0, "", "added 小明\n")
    assert voices("remove", "anna") == (0, "", "removed anna\n")
    assert voices("remove", "anna")[0] == 2
    assert store.names() == ["shared", "小明"]


def test_shipped_voices_and_a_voice_that_hides_one(fake, store, shipped, wave, voices, tmp_path):
    for name in ("rms", "slt"):
        a_voice(samples=88200, warnings=("it ships",)).save(shipped / f"{name}.safetensors")

    def origins():
        status, out, _ = voices("list")
        assert status == 0
        head, *lines = out.splitlines()
        start, end = head.index("origin"), head.index("family")
        return {line.split()[0]: line[start:end].strip() for line in lines}

    def told(*arguments):
        status, out, _ = voices(*arguments, "--json")
        assert status == 0
        facts = json.loads(out)
        return [facts[key] for key in ("file", "shipped", "hides_shipped")]

    assert origins() == {"rms": "shipped", "slt": "shipped"}
    assert told("show", "slt") == [str(shipped / "slt.safetensors"), True, False]
    assert "origin             shipped\n" in voices("show", "slt")[1]
    status, _, err = voices("remove", "slt")
    assert status == 2
    assert "slt ships with ming-trt and cannot be removed" in err
    file = tmp_path / "e.safetensors"
    assert voices("export", "slt", file) == (0, "", f"wrote {file}\n")
    assert Voice.load(file).warnings == ("it ships",)

    hidden = "slt is now this voice, which hides the shipped one of that name\n"
    assert voices("add", "slt", wave)[2].endswith(hidden)
    assert origins() == {"rms": "shipped", "slt": "own, hides the shipped one"}
    own = store.folder / "slt.safetensors"
    assert told("show", "slt") == [str(own), False, True]
    assert "origin             own, hides the shipped one\n" in voices("show", "slt")[1]
    own.write_bytes(b"x")
    assert origins()["slt"] == "own, hides the shipped one"
    assert voices("add", "slt", wave)[0] == 2
    again = "removed slt\nslt is the shipped voice again\n"
    assert voices("remove", "slt") == (0, "", again)
    assert voices("import", file, "--name", "slt") == (0, "", f"added slt\n{hidden}")
    assert voices("import", file, "--name", "anna") == (0, "", "added anna\n")
    assert origins() == {"anna": "own", "rms": "shipped", "slt": "own, hides the shipped one"}


def test_output_that_cannot_show_a_script(store, voices, monkeypatch):
    store.add("小明", a_voice())
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    assert voices("list")[0] == 0
    assert b"\\u5c0f\\u660e" in narrow.buffer.getvalue()


def test_json_is_in_every_script(store, voices):
    store.add("小明", a_voice("你好。"))
    assert '"transcript": "你好。"' in voices("show", "小明", "--json")[1]
    assert '"name": "小明"' in voices("list", "--json")[1]


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["show", "anna"]])
def test_without_standard_output(arguments, store, voices, monkeypatch):
    store.add("anna", a_voice())
    monkeypatch.setattr(sys, "stdout", None)
    status, _, err = voices(*arguments)
    assert status == 2
    assert "There is no standard output" in err


@pytest.mark.parametrize("arguments", [[], ["sing"], ["add", "anna"], ["show"]])
def test_wrong_usage_has_status_2(arguments, voices, capsys):
    with pytest.raises(SystemExit) as error:
        voices(*arguments)
    assert error.value.code == 2
    assert "usage: ming-trt voices" in capsys.readouterr().err
