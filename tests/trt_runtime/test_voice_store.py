"""The folder of voices: names, what lies there, and several processes at once."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from trt_runtime import voice_store
from trt_runtime.errors import UserError
from trt_runtime.voice import Voice
from trt_runtime.voice_name import check_name
from trt_runtime.voice_store import VoiceStore, default_folder

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.usefixtures("shipped")


def a_voice(number=1.0):
    return Voice("ming-omni-tts-dense", "", 44100, 4, None, np.full(192, number, np.float32),
                 None, None)  # fmt: skip


def number(voice):
    return voice.speaker_embedding[0]


@pytest.fixture
def store(tmp_path):
    return VoiceStore(tmp_path / "deep" / "voices")


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_voice_is_kept_until_it_is_removed(store):
    assert store.names() == []
    assert not store.folder.parent.exists()
    path = store.add("anna", a_voice())
    assert path == store.path("anna") == store.folder / "anna.safetensors"
    assert store.names() == ["anna"]
    assert number(store.get("anna")) == 1
    with pytest.raises(UserError, match=r"a voice anna already(?s:.*)--replace(?s:.*)remove anna"):
        store.add("anna", a_voice(2))
    assert number(store.get("anna")) == 1
    store.add("anna", a_voice(2), replace=True)
    assert number(store.get("anna")) == 2
    assert listed(store.folder) == ["anna.safetensors"]
    store.remove("anna")
    assert listed(store.folder) == []
    with pytest.raises(UserError, match="no voice anna"):
        store.remove("anna")


GOOD = (
    "a", "小明", "Zoë", "हिन्दी", "ไทย", "_x", "a.b-c_d", "1", "a.", "console", "x" * 64,
    "小" * 64, "com10", "٣",
)  # fmt: skip


def test_names_of_every_script(store):
    for name in GOOD:
        store.add(name, a_voice())
        assert check_name(name) == name
    assert sorted(store.names()) == sorted(GOOD)
    assert all(number(store.get(name)) == 1 for name in store.names())


@pytest.mark.parametrize(
    ("name", "found", "suggested"),
    [
        ("", "an empty name", "my-voice"), (".hidden", "beginning", "hidden"),
        ("-x", "beginning", "x"), ("my voice", "' '", "my-voice"), ("../../etc", "'/'", "etc"),
        ("a/b", "'/'", "a-b"), ("a\\b", "U\\+005C", "a-b"), ("C:x", "':'", "C-x"),
        ("a\x00b", r"\\x00", "a-b"), ("a\nb", r"\\n", "a-b"), ("\ud800", "U\\+D800", "my-voice"),
        ("a\u202eb", "U\\+202E", "a-b"), ("😀", "U\\+1F600", "my-voice"),
        ("CON", "Windows", "voice-CON"), ("nul.txt", "Windows", "voice-nul.txt"),
        ("Lpt1", "Windows", "voice-Lpt1"), ("x" * 65, "65 characters", "x" * 64),
        ("𠀀" * 64, "256 bytes", "𠀀" * 60), ("anna.safetensors", "ending", "anna"),
        ("anna.SafeTensors", "ending", "anna"), ("\u0301a", "beginning", "a"),
        ("x" * 1_000_000, "characters", "x" * 64),
    ],
)  # fmt: skip
def test_other_names_are_refused_with_a_suggestion(name, found, suggested, store):
    with pytest.raises(UserError, match=found) as error:
        store.add(name, a_voice())
    assert f"call it {suggested}, for" in error.value.do
    assert check_name(suggested) == suggested
    assert len(str(error.value)) < 1000
    for call in (store.get, store.path, store.remove, store.check_addable):
        with pytest.raises(UserError, match=found):
            call(name)
    assert not store.folder.parent.exists()


def test_a_name_is_text():
    with pytest.raises(UserError, match="not text"):
        check_name(b"anna")


def test_every_suggestion_is_a_name():
    draw = random.Random(0)
    characters = [*" ./-_:aé小ा\u0301\u0345\u200d😀conNULlpt1.safetensors", "\ud800", "𠀀"]
    for _ in range(3000):
        name = "".join(draw.choices(characters, k=draw.choice([1, 2, 3, 8, 80])))
        try:
            kept = check_name(name)
            assert check_name(kept) == kept
        except UserError as error:
            suggested = error.do.removeprefix("call it ").removesuffix(", for example")
            check_name(suggested)


def test_one_name_however_it_is_composed(store):
    decomposed = unicodedata.normalize("NFD", "Zoë")
    store.add(decomposed, a_voice())
    assert store.names() == ["Zoë"]
    assert number(store.get(decomposed)) == number(store.get("Zoë")) == 1


def test_a_missing_voice_is_told_with_the_nearest_name(store):
    with pytest.raises(UserError, match="no voice in"):
        store.get("anna")
    for name in ("anna", "bert", "小明明"):
        store.add(name, a_voice())
    for asked, nearest in (("Ana", "anna"), ("ANNA2", "anna"), ("小明", "小明明")):
        with pytest.raises(UserError) as error:
            store.get(asked)
        assert f"did you mean {nearest}?" in error.value.do
    with pytest.raises(UserError) as error:
        store.get("zzz")
    assert error.value.do.startswith("choose one of these, or make it from a recording: ")
    assert f'voices add zzz REF.wav --voices {store.folder} --text "' in error.value.do
    assert error.value.found == "anna, bert, 小明明"


def test_what_else_lies_in_the_folder(store, tmp_path, caplog):
    store.add("anna", a_voice())
    folder = store.folder
    a_voice(5).save(tmp_path / "elsewhere")
    (folder / "link.safetensors").symlink_to(tmp_path / "elsewhere")
    (folder / "dangling.safetensors").symlink_to("none")
    (folder / "damaged.safetensors").write_bytes(b"x")
    (folder / "notes.txt").write_bytes(b"x")
    (folder / ".ming-trt-0.part").write_bytes(b"x")
    (folder / "._anna.safetensors").write_bytes(b"x")
    (folder / "folder.safetensors").mkdir()
    (folder / "my voice.safetensors").write_bytes(b"x")
    (folder / f"{unicodedata.normalize('NFD', 'Zoë')}.safetensors").write_bytes(b"x")
    assert store.names() == ["anna", "damaged", "dangling", "link"]
    assert "my voice.safetensors is left out" in caplog.text
    assert number(store.get("link")) == 5
    for name in ("dangling", "damaged", "folder"):
        with pytest.raises(UserError, match=f"{name}.safetensors"):
            store.get(name)
    before = listed(folder)
    with pytest.raises(UserError, match="already"):
        store.add("dangling", a_voice())
    with pytest.raises(UserError, match="cannot be deleted"):
        store.remove("folder")
    with pytest.raises(UserError, match="cannot be written"):
        store.add("folder", a_voice(), replace=True)
    assert listed(folder) == before
    # A link is replaced or removed itself; what it names stays.
    store.add("link", a_voice(6), replace=True)
    assert not store.path("link").is_symlink()
    assert number(Voice.load(tmp_path / "elsewhere")) == 5
    store.remove("dangling")
    store.remove("damaged")
    assert store.names() == ["anna", "link"]


def test_shipped_voices_are_found_after_the_users_own(store, shipped, tmp_path):
    for name in ("slt", "rms"):
        a_voice(7).save(shipped / f"{name}.safetensors")
    before = listed(shipped)
    assert store.names() == ["rms", "slt"]
    assert store.path("slt") == shipped / "slt.safetensors"
    assert number(store.get("slt")) == 7
    assert store.is_shipped("slt")
    assert not store.hides_shipped("slt")
    assert not store.folder.parent.exists()
    store.check_addable("slt")
    path = store.add("slt", a_voice(2))
    assert path == store.path("slt") == store.folder / "slt.safetensors"
    assert number(store.get("slt")) == 2
    assert not store.is_shipped("slt")
    assert store.hides_shipped("slt")
    store.add("anna", a_voice())
    assert store.names() == ["anna", "rms", "slt"]
    assert [store.is_shipped(name) for name in store.names()] == [False, True, False]
    assert [store.hides_shipped(name) for name in store.names()] == [False, False, True]
    with pytest.raises(UserError, match="a voice slt already") as error:
        store.add("slt", a_voice(3))
    assert error.value.found == str(path)
    with pytest.raises(UserError, match="a voice slt already"):
        store.check_addable("slt")
    store.add("slt", a_voice(3), replace=True)
    for name, expected in (("slt", 3), ("rms", 7)):
        assert number(Voice.load(store.export(name, tmp_path))) == expected
    store.remove("slt")
    assert number(store.get("slt")) == 7
    assert listed(shipped) == before
    assert all(number(Voice.load(file)) == 7 for file in shipped.iterdir())


def test_a_shipped_voice_cannot_be_removed(store, shipped):
    a_voice().save(shipped / "slt.safetensors")
    with pytest.raises(UserError, match="slt ships with ming-trt and cannot be removed") as error:
        store.remove("slt")
    assert error.value.found == str(shipped / "slt.safetensors")
    assert f"ming-trt voices add slt REF.wav --voices {store.folder}" in error.value.do
    assert listed(shipped) == ["slt.safetensors"]


def test_a_missing_voice_is_told_with_the_shipped_ones(store, shipped):
    a_voice().save(shipped / "slt.safetensors")
    with pytest.raises(UserError, match="no voice stl") as error:
        store.get("stl")
    assert error.value.expected == f"a voice in {store.folder}, or a shipped one"
    assert error.value.found == "slt"
    assert "did you mean slt?" in error.value.do
    with pytest.raises(UserError, match="no voice stl"):
        store.remove("stl")


def test_a_folder_that_cannot_be_read_hides_nothing_in_silence(tmp_path, shipped):
    """It may hold a voice of that name, and the shipped one would be another."""
    a_voice().save(shipped / "slt.safetensors")
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "voices", "null\0"):
        with pytest.raises(UserError, match=r"folder of voices, (?s:.*)cannot be read"):
            VoiceStore(folder).get("slt")
    damaged = VoiceStore(tmp_path)
    damaged.path("anna").with_name("slt.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match=r"slt\.safetensors"):
        damaged.get("slt")


def test_export_and_import(store, tmp_path):
    store.add("anna", a_voice())
    shared = tmp_path / "shared.safetensors"
    assert store.export("anna", shared) == shared
    assert shared.read_bytes() == store.path("anna").read_bytes()
    with pytest.raises(UserError, match="there already"):
        store.export("anna", shared)
    store.add("anna", a_voice(2), replace=True)
    store.export("anna", shared, replace=True)
    assert number(Voice.load(shared)) == 2
    assert store.export("anna", tmp_path) == tmp_path / "anna.safetensors"
    other = VoiceStore(tmp_path / "other")
    assert other.import_(shared) == "shared"
    assert other.import_(str(shared), "anna") == "anna"
    assert number(other.get("anna")) == 2
    with pytest.raises(UserError, match="already"):
        other.import_(shared)
    assert other.import_(shared, replace=True) == "shared"
    assert other.names() == ["anna", "shared"]


def test_what_cannot_be_exported_leaves_nothing(store, tmp_path):
    with pytest.raises(UserError, match="no voice anna"):
        store.export("anna", tmp_path / "a.safetensors")
    store.add("anna", a_voice())
    with pytest.raises(UserError, match=r"ends in \.safetensors"):
        store.export("anna", tmp_path / "a.wav")
    with pytest.raises(UserError, match="mkdir -p"):
        store.export("anna", tmp_path / "none" / "a.safetensors")
    store.path("anna").write_bytes(b"damaged")
    with pytest.raises(UserError, match="damaged"):
        store.export("anna", tmp_path / "a.safetensors")
    assert listed(tmp_path) == ["deep"]


def test_what_cannot_be_imported_leaves_nothing(store, tmp_path):
    file = tmp_path / "my voice.safetensors"
    a_voice().save(file)
    with pytest.raises(UserError, match="call it my-voice"):
        store.import_(file)
    with pytest.raises(UserError, match="No such file"):
        store.import_(tmp_path / "none.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match="damaged"):
        store.import_(file, "anna")
    assert not store.folder.parent.exists()


def test_folders_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for store in (VoiceStore(tmp_path / "file"), VoiceStore(tmp_path / "file" / "voices")):
        for call in (store.names, lambda store=store: store.add("anna", a_voice()),
                     lambda store=store: store.check_addable("anna")):  # fmt: skip
            with pytest.raises(UserError, match="file"):
                call()
    assert listed(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(store):
    store.folder.mkdir(parents=True)
    store.folder.chmod(0o500)
    with pytest.raises(UserError, match="may write"):
        store.check_addable("anna")
    with pytest.raises(UserError, match="cannot be written"):
        store.add("anna", a_voice())


def test_check_addable(store):
    store.check_addable("anna")
    assert not store.folder.parent.exists()
    store.add("anna", a_voice())
    with pytest.raises(UserError, match="already"):
        store.check_addable("anna")
    store.check_addable("anna", replace=True)


ADD = """
import sys
import numpy as np
from trt_runtime.voice import Voice
from trt_runtime.voice_store import VoiceStore
store, number, replace = VoiceStore(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "replace"
ones = np.full((40_000, 4), number, np.float32)
voice = Voice("f", "", 1, 4, "a", None, ones, ones)
sys.stdin.readline()
won = 0
for round in range(30):
    try:
        store.add(f"voice{round}", voice, replace=replace)
        won += 1
    except ValueError:
        pass
    assert np.unique(store.get(f"voice{round}").latent_mean).size == 1
print(won)
"""


@pytest.mark.parametrize("replace", ["replace", "keep"])
def test_several_processes_adding_at_once(replace, store):
    running = [
        subprocess.Popen(
            [sys.executable, "-c", ADD, store.folder, str(n), replace],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )
        for n in (1, 2, 3)
    ]  # fmt: skip
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    won = sum(int(process.communicate(timeout=120)[0]) for process in running)
    assert won == (90 if replace == "replace" else 30)
    assert len(listed(store.folder)) == len(store.names()) == 30


def test_without_hard_links_one_still_wins(store, monkeypatch):
    def refuse(*paths):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store.add("anna", a_voice())
    with pytest.raises(UserError, match="already"):
        store.add("anna", a_voice(2))
    assert number(store.get("anna")) == 1

    def interrupt(*paths):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.add("bert", a_voice())
    assert listed(store.folder) == ["anna.safetensors"]


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {}, "/home/me/.local/share/ming-trt/voices"),
        ("linux", {"XDG_DATA_HOME": "/data"}, "/data/ming-trt/voices"),
        ("linux", {"XDG_DATA_HOME": "relative"}, "/home/me/.local/share/ming-trt/voices"),
        ("freebsd14", {}, "/home/me/.local/share/ming-trt/voices"),
        ("darwin", {"XDG_DATA_HOME": "/data"},
         "/home/me/Library/Application Support/ming-trt/voices"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/ming-trt/voices"),
        ("win32", {}, "/home/me/AppData/Local/ming-trt/voices"),
        ("linux", {"MING_TRT_VOICES": "/v", "XDG_DATA_HOME": "/data"}, "/v"),
        ("darwin", {"MING_TRT_VOICES": "~/v"}, "/home/me/v"),
        ("win32", {"MING_TRT_VOICES": ""}, "/home/me/AppData/Local/ming-trt/voices"),
    ],
)  # fmt: skip
def test_the_default_folder(platform, variables, folder, monkeypatch):
    for name in ("MING_TRT_VOICES", "XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(voice_store.sys, "platform", platform)
    assert default_folder() == VoiceStore().folder == Path(folder)


def test_no_home_folder(monkeypatch):
    monkeypatch.delenv("MING_TRT_VOICES", raising=False)
    with pytest.raises(UserError, match=r"no home folder(?s:.*)MING_TRT_VOICES"):
        VoiceStore("~nobody-of-this-name/voices")
