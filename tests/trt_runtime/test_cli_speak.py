"""`ming-trt speak`: what it writes and prints, and what is left when it fails."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from trt_runtime.cli import main, speak, standard_output
from trt_runtime.errors import NumericError
from trt_runtime.speech import (
    AudioChunk,
    FinishReason,
    Progress,
    Speech,
    SpokenSentence,
    Timings,
)

ROOT = Path(__file__).resolve().parents[2]
RATE = 16000


class FakeSynthesizer:
    """Says a sawtooth, 1000 samples a step, and remembers what it was asked."""

    sample_rate = RATE
    folder = Path("/engines")

    def __init__(self, steps=3, failure=None):
        self.steps, self.failure = steps, failure
        self.asked = None

    def audio(self, step):
        return np.linspace(-1.5, 1.5, 1000, dtype=np.float32) / (step + 1)

    def fail(self, step):
        if self.failure is not None and step == 1:
            raise self.failure

    def sentence(self, reason, seed):
        return SpokenSentence("Hello.", 0, 6, 0, 1000 * self.steps, self.steps, reason, seed)

    def synthesize(self, text, **options):
        parts = [chunk.audio for chunk in self.stream(text, **options)]
        timings = Timings(first_audio=0.25, total=0.5, audio=1.0)
        seed = options.get("seed", 0)
        return Speech(
            np.concatenate(parts), RATE, FinishReason.MAX_STEPS, self.steps, seed, timings,
            (self.sentence(FinishReason.MAX_STEPS, seed),), ("half of it was made up",),
        )  # fmt: skip

    def stream(self, text, chunk_patches=1, **options):
        self.asked = (text, options)
        for step in range(self.steps):
            self.fail(step)
            options["on_progress"](Progress(step + 1, self.steps, 0.1, 5.0))
            last, seed = step == self.steps - 1, options.get("seed", 0)
            yield AudioChunk(
                self.audio(step), RATE, 1000 * step, step, last, step + 1,
                seed, FinishReason.STOP if last else None,
                ("half of it was made up",) if last else (),
                ended=self.sentence(FinishReason.STOP, seed) if last else None,
            )  # fmt: skip


@pytest.fixture
def fake(in_place_of_load):
    return in_place_of_load(FakeSynthesizer())


def whole(fake):
    return np.concatenate([fake.audio(step) for step in range(fake.steps)])


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("stream", [[], ["--stream"], ["--stream", "--chunk-patches", "2"]])
def test_speak_writes_a_file_and_tells_about_it(stream, fake, tmp_path, capsys):
    path = tmp_path / "speech.flac"
    assert main.main(["speak", "Hello.", "-o", str(path), "--seed", "7", *stream]) == 0
    audio, rate = soundfile.read(path, dtype="float32")
    assert rate == RATE
    assert np.abs(audio - np.clip(whole(fake), -1, 1)).max() < 1e-4
    assert names(tmp_path) == ["speech.flac"]
    captured = capsys.readouterr()
    assert captured.out == ""
    reason = "stop" if stream else "max_steps"
    for line in (
        rf"wrote +{path}", r"duration +0\.19 s at 16000 Hz", rf"finish reason +{reason} ",
        r"steps +3", r"seed +7", r"first audio +\d\.\d+ s", r"real-time factor +\d\.\d+ ",
        r"engines +/engines",
    ):  # fmt: skip
        assert re.search(line, captured.err), line
    assert "warning: half of it was made up" in captured.err
    assert fake.closed


def test_speak_passes_on_what_was_given_and_nothing_else(fake, tmp_path):
    arguments = [
        "--engines", "E", "--threads", "2", "--prompt", "Sing.", "--seed", "18446744073709551615",
        "--guidance", "0", "--sigma", "0.3", "--temperature", "2.5", "--min-steps", "1",
        "--max-steps", "9",
    ]  # fmt: skip
    path = str(tmp_path / "a.wav")
    assert main.main(["speak", "a", "-o", path, *arguments]) == 0
    assert fake.loaded == {"engines": "E", "threads": 2, "voices": None}
    text, options = fake.asked
    assert options.pop("on_progress") is not None
    assert (text, options) == (
        "a",
        {"prompt": "Sing.", "seed": 2**64 - 1, "guidance": 0.0, "sigma": 0.3, "temperature": 2.5,
         "min_steps": 1, "max_steps": 9},
    )  # fmt: skip
    assert main.main(["speak", "a", "-o", path]) == 0
    assert fake.loaded == {"engines": None, "threads": None, "voices": None}
    assert set(fake.asked[1]) == {"on_progress"}


@pytest.mark.parametrize("stream", [[], ["--stream"]])
@pytest.mark.parametrize("encoding", ["s16", "f32", None])
def test_raw_pcm_goes_to_standard_output(encoding, stream, fake, capsysbinary):
    pcm = [] if encoding is None else ["--pcm", encoding]
    assert main.main(["speak", "a", "-o", "-", *pcm, *stream]) == 0
    captured = capsysbinary.readouterr()
    if encoding == "f32":
        assert np.array_equal(np.frombuffer(captured.out, "<f4"), whole(fake))
    else:
        audio = np.frombuffer(captured.out, "<i2") / 32768
        assert np.abs(audio - np.clip(whole(fake), -1, 1)).max() <= 1 / 32768
    assert b"16000 Hz" in captured.err


def test_pcm_at_full_scale_does_not_wrap():
    audio = np.array([-2, -1, 0, 0.5, 1, 2], np.float32)
    expected = [-32768, -32768, 0, 16384, 32767, 32767]
    assert np.frombuffer(speak.to_pcm(audio, "s16"), "<i2").tolist() == expected


def test_quiet_prints_warnings_only(fake, tmp_path, capsys):
    path = str(tmp_path / "a.wav")
    assert main.main(["speak", "a", "-o", path, "--quiet"]) == 0
    assert capsys.readouterr().err == (
        "warning: half of it was made up\nwarning: ended at the limit of 3 steps (--max-steps)\n"
    )


def test_progress_is_shown_on_a_terminal_only(fake, tmp_path, capsys, monkeypatch):
    path = str(tmp_path / "a.wav")
    main.main(["speak", "a", "-o", path])
    assert "of at most" not in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    main.main(["speak", "a", "-o", path])
    assert "\rstep 3 of at most 3, 5 s" in capsys.readouterr().err
    main.main(["speak", "a", "-o", path, "--quiet"])
    assert "of at most" not in capsys.readouterr().err


def test_text_comes_from_standard_input(fake, tmp_path, monkeypatch):
    text = "\ufeffZwei\r\nZeilen, schön.\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main.main(["speak", "-", "-o", str(tmp_path / "a.wav")]) == 0
    assert fake.asked[0] == "Zwei\nZeilen, schön."


@pytest.mark.skipif(sys.platform == "win32", reason="streams of another kind")
@pytest.mark.parametrize("written", [b"", b"Half of"])
def test_standard_input_that_does_not_wait_is_refused(written, fake, tmp_path, capsys, monkeypatch):
    """Neither a TypeError nor the half of a text."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.write(writing, written)
    with open(reading) as stdin, open(writing, "wb"):  # noqa: PTH123
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main.main(["speak", "-", "-o", str(tmp_path / "a.wav")]) == 2
    assert "Standard input has not ended" in capsys.readouterr().err
    assert fake.loaded is None


def test_standard_input_that_cannot_be_read_is_refused(tmp_path):
    program = ENDLESS.replace("'speak', 'a'", "'speak', '-'")
    path = shlex.quote(str(tmp_path / "in"))
    result = redirected(program, "-o a.wav", f"0>{path}", stderr=subprocess.PIPE, text=True)
    assert result.returncode == 2
    assert "Standard input cannot be read" in result.stderr


def test_standard_input_that_is_no_text_is_refused(fake, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff")))
    assert main.main(["speak", "-", "-o", str(tmp_path / "a.wav")]) == 2
    assert "byte 0xFF at offset 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["", "-o", "a.wav"], "text is blank"),
        (["a\x07", "-o", "a.wav"], r"U\+0007"),
        (["a", "-o", "a.xyz"], r"\.wav"),
        (["a", "-o", "none/a.wav"], "no folder"),
        (["a", "-o", "a.wav", "--seed", "-1"], "seed"),
        (["a", "-o", "a.wav", "--guidance", "nan"], "guidance"),
        (["a", "-o", "a.wav", "--max-steps", "0"], "--max-steps cannot be used"),
        (["a", "-o", "a.wav", "--pcm", "f32"], "--pcm is for -o -"),
        (["a", "-o", "a.wav", "--chunk-patches", "2"], "--chunk-patches is for --stream"),
    ],
)
def test_bad_input_is_refused_before_anything_is_loaded(
    arguments, message, fake, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main.main(["speak", *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert fake.loaded is None
    assert names(tmp_path) == []


def test_audio_is_not_written_to_a_terminal(fake, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main.main(["speak", "a", "-o", "-"]) == 2
    assert "Standard output is a terminal" in capsys.readouterr().err


@pytest.mark.parametrize("stream", [[], ["--stream"]])
@pytest.mark.parametrize(
    ("failure", "status", "message"),
    [
        (
            NumericError("flow produced NaN at step 2", do="check the checkpoint"),
            2,
            "ming-trt: flow produced NaN at step 2",
        ),
        (KeyboardInterrupt(), 130, "ming-trt: interrupted"),
    ],
)
def test_a_failure_on_the_way_leaves_the_old_file(
    failure, status, message, stream, fake, tmp_path, capsys
):
    path = tmp_path / "speech.wav"
    path.write_bytes(b"old")
    fake.failure = failure
    assert main.main(["speak", "a", "-o", str(path), *stream]) == status
    assert message in capsys.readouterr().err
    assert names(tmp_path) == ["speech.wav"]
    assert path.read_bytes() == b"old"
    assert fake.closed


#: `ming-trt speak a` in a process of its own, with a synthesizer that speaks for minutes.
ENDLESS = (
    "import contextlib, signal, sys\n"
    "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # ignored under nohup
    "from tests.trt_runtime.test_cli_speak import FakeSynthesizer\n"
    "from trt_runtime import synthesizer\n"
    "from trt_runtime.cli.main import main\n"
    "synthesizer.load = lambda *a, **b: contextlib.nullcontext(FakeSynthesizer(10**9))\n"
    "sys.exit(main(['speak', 'a', *sys.argv[1:]]))\n"
)


#: What could not be written is tried once more at the interpreter's end.
BUFFERED = os.environ | {"PYTHONUNBUFFERED": ""}


def start(*arguments, stdout=subprocess.PIPE):
    return subprocess.Popen(
        [sys.executable, "-c", ENDLESS, *map(str, arguments)],
        stdout=stdout, stderr=subprocess.PIPE, cwd=ROOT, env=BUFFERED,
    )  # fmt: skip


def test_a_reader_that_goes_away_is_no_error_message():
    process = start("-o", "-", "--stream")
    assert len(process.stdout.read(2000)) == 2000
    process.stdout.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait() == 141
    assert errors.splitlines() == ["raw PCM to standard output: s16 little-endian, mono, 16000 Hz"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [["speak", "a", "-o", "-", "--stream"], ["doctor"]])
def test_a_full_disk_behind_standard_output_is_explained(arguments):
    """And the interpreter does not complain once more at its end."""
    program = ENDLESS.replace("'speak', 'a', ", "")
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            stdout=full, stderr=subprocess.PIPE, check=False, cwd=ROOT, env=BUFFERED,
        )  # fmt: skip
    assert result.returncode == 2
    error = result.stderr.decode()
    assert "ming-trt: Standard output cannot be written." in error
    assert "No space left on device" in error
    assert "What to do: " in error
    assert "Traceback" not in error
    assert "Exception ignored" not in error


def redirected(program, arguments, streams, **options):
    """Runs a program of Python with streams as a shell makes them: `>&-`, `0>FILE`."""
    command = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(program)} {arguments} {streams}"
    return subprocess.run(
        ["sh", "-c", command], check=False, cwd=ROOT, timeout=60, env=BUFFERED, **options
    )


def test_without_standard_output():
    result = redirected(ENDLESS, "-o -", ">&-", stderr=subprocess.PIPE, text=True)
    assert result.returncode == 2
    assert "There is no standard output" in result.stderr


#: The same with three steps, during which a library in C says something, too.
SHORT = ENDLESS.replace("10**9", "3").replace(
    "sys.exit(",
    "import os\nFakeSynthesizer.fail = lambda *a: os.write(2, b'noise')\nsys.exit(",
)


@pytest.mark.parametrize(
    "streams",
    ["2>&-", pytest.param("2>/dev/full", marks=pytest.mark.skipif(
        not Path("/dev/full").exists(), reason="needs a device that is always full"))],
)  # fmt: skip
@pytest.mark.parametrize("stream", ["", "--stream"])
def test_without_standard_error(stream, streams, tmp_path):
    """Nothing is told, the audio is what it is otherwise, and so is the exit status."""
    program = SHORT if streams == "2>&-" else ENDLESS.replace("10**9", "3")
    path = tmp_path / "a.wav"
    assert redirected(program, f"-o {shlex.quote(str(path))} {stream}", streams).returncode == 0
    audio = soundfile.read(path, dtype="float32")[0]
    expected = np.clip(whole(FakeSynthesizer()), -1, 1)
    assert np.abs(audio - expected).max() <= 1 / 32768
    assert names(tmp_path) == ["a.wav"]
    piped = redirected(program, f"-o - --pcm f32 {stream}", streams, stdout=subprocess.PIPE)
    assert piped.returncode == 0
    assert np.array_equal(np.frombuffer(piped.stdout, "<f4"), whole(FakeSynthesizer()))


def test_an_error_without_standard_error_has_its_status():
    assert redirected(ENDLESS, "-o a.xyz", "2>&-").returncode == 2
    if Path("/dev/full").exists():
        assert redirected(ENDLESS, "-o a.xyz", "2>/dev/full").returncode == 2


@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_sentences_that_find_no_room_leave_the_old_audio(
    stream, fake, tmp_path, capsys, monkeypatch
):
    audio, sentences = tmp_path / "a.wav", tmp_path / "a.json"
    audio.write_bytes(b"old")
    sentences.write_bytes(b"old")
    opened = Path.open

    class Full(io.BytesIO):
        def write(self, data):
            if data and fake.loaded is not None:
                raise OSError(28, "No space left on device")
            return len(data)

    def open_full(path, mode="r", **options):
        return Full() if mode == "xb" else opened(path, mode, **options)

    monkeypatch.setattr(Path, "open", open_full)
    arguments = ["-o", str(audio), "--sentences", str(sentences), *stream]
    assert main.main(["speak", "a", *arguments]) == 2
    assert f"{sentences} cannot be written" in capsys.readouterr().err
    assert names(tmp_path) == ["a.json", "a.wav"]
    assert audio.read_bytes() == sentences.read_bytes() == b"old"


def test_a_request_to_end_while_files_appear_leaves_both(fake, tmp_path, monkeypatch):
    audio, sentences = tmp_path / "a.wav", tmp_path / "a.json"
    monkeypatch.setattr(os, "fsync", lambda descriptor: signal.raise_signal(signal.SIGTERM))
    arguments = ["-o", str(audio), "--sentences", str(sentences)]
    assert main.main(["speak", "a", *arguments]) == 128 + signal.SIGTERM
    assert names(tmp_path) == ["a.json", "a.wav"]


def test_audio_that_finds_no_room_leaves_the_old_sentences(fake, tmp_path, capsys, monkeypatch):
    audio, sentences = tmp_path / "a.wav", tmp_path / "a.json"
    sentences.write_bytes(b"old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    arguments = ["-o", str(audio), "--sentences", str(sentences)]
    assert main.main(["speak", "a", *arguments]) == 2
    assert f"{audio} cannot be written" in capsys.readouterr().err
    assert names(tmp_path) == ["a.json"]
    assert sentences.read_bytes() == b"old"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_leaves_the_old_file(number, tmp_path):
    """Ctrl-C, SIGTERM of `kill`, SIGHUP of a closed terminal; mostly while it is encoding."""
    path = tmp_path / "speech.wav"
    path.write_bytes(b"old")
    process = start("-o", path, "--stream", stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(names(tmp_path)) == 1 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(names(tmp_path)) == 2
    process.send_signal(number)
    assert process.communicate(timeout=60)[1].decode().splitlines() == ["ming-trt: interrupted"]
    assert process.returncode == 128 + number
    assert names(tmp_path) == ["speech.wav"]
    assert path.read_bytes() == b"old"


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of another kind")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_gets_every_byte_whatever_python_buffers(unbuffered):
    """Unbuffered, a write to a pipe may take a part: the rest must follow, not vanish."""
    program = (
        "import os, sys; from trt_runtime.cli import standard_output; "
        "standard_output.write(bytes(range(256)) * 4096)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )
    assert child.stdout is not None
    assert child.stdout.read() == bytes(range(256)) * 4096
    assert child.wait() == 0


def test_a_short_write_is_continued(monkeypatch):
    """What a raw file does: takes a part and says how much."""

    class Raw:
        taken = b""

        def write(self, data):
            part = bytes(data[:1000])
            self.taken += part
            return len(part)

        def flush(self):
            pass

    class Output:
        buffer = Raw()

    monkeypatch.setattr(sys, "stdout", Output())
    standard_output.write(bytes(2500))
    assert Output.buffer.taken == bytes(2500)
