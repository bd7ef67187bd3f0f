"""Speech to files: every format, and nothing half-written whatever goes wrong."""

from __future__ import annotations

import errno
import os
import stat

import numpy as np
import pytest
import soundfile

from trt_runtime import audio_file
from trt_runtime.audio_file import AudioFileWriter, check_destination, writable_extensions
from trt_runtime.errors import UserError
from trt_runtime.speech import FinishReason, Speech, Timings

SAMPLE_RATE = 44100


def make_speech(samples=SAMPLE_RATE, sample_rate=SAMPLE_RATE):
    audio = (0.5 * np.sin(np.arange(samples) / 20)).astype(np.float32)
    timings = Timings(first_audio=0.1, total=0.5, audio=samples / sample_rate)
    return Speech(audio, sample_rate, FinishReason.STOP, steps=5, seed=0, timings=timings)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_duration_and_real_time_factor():
    speech = make_speech(samples=22050)
    assert speech.duration == 0.5
    assert speech.timings.real_time_factor == 1.0
    assert Timings(0.1, 0.2, 0.0).real_time_factor == float("inf")
    assert speech.finish_reason == "stop"
    assert f"{speech.finish_reason}" == "stop"


@pytest.mark.parametrize(
    "extension", [e for e in writable_extensions() if e not in ("raw", "opus")]
)
def test_every_format_is_read_back(extension, tmp_path):
    speech, path = make_speech(), tmp_path / f"speech.{extension}"
    speech.save(path)
    audio, rate = soundfile.read(path, dtype="float32")
    assert rate == pytest.approx(SAMPLE_RATE, rel=0.01)
    assert np.abs(audio[: len(speech.audio)] - speech.audio).max() < 0.05
    assert names(tmp_path) == [path.name]


def test_opus_at_a_rate_that_it_has(tmp_path):
    make_speech(sample_rate=48000).save(tmp_path / "speech.opus")
    assert soundfile.info(tmp_path / "speech.opus").subtype == "OPUS"


def test_opus_at_another_rate_says_which_it_has(tmp_path):
    with pytest.raises(UserError, match=r"Opus cannot hold 44100[\s\S]*48000[\s\S]*\.ogg"):
        make_speech().save(tmp_path / "speech.opus")
    assert names(tmp_path) == []


def test_raw_is_16_bit_little_endian(tmp_path):
    speech = make_speech()
    speech.save(tmp_path / "speech.RAW")
    audio = np.fromfile(tmp_path / "speech.RAW", "<i2")
    assert np.abs(audio / 32768 - speech.audio).max() < 1e-4


def test_float_is_kept_bit_for_bit(tmp_path):
    speech = make_speech()
    speech.save(str(tmp_path / "speech.wav"), subtype="float")
    audio, _ = soundfile.read(tmp_path / "speech.wav", dtype="float32")
    assert np.array_equal(audio, speech.audio)


def test_peaks_are_clipped_and_not_wrapped(tmp_path):
    speech = make_speech()
    speech.audio[:] *= 3
    speech.save(tmp_path / "speech.wav")
    audio, _ = soundfile.read(tmp_path / "speech.wav", dtype="float32")
    assert np.abs(audio - np.clip(speech.audio, -1, 1)).max() < 1e-4


def test_an_existing_file_is_replaced(tmp_path):
    path = tmp_path / "speech.wav"
    path.write_bytes(b"old")
    make_speech().save(path)
    assert soundfile.info(path).frames == SAMPLE_RATE
    # As open() would make it, not as a private temporary file.
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_link_is_followed(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.wav").symlink_to(tmp_path / "folder" / "real.wav")
    make_speech().save(tmp_path / "link.wav")
    assert (tmp_path / "link.wav").is_symlink()
    assert soundfile.info(tmp_path / "folder" / "real.wav").frames == SAMPLE_RATE


@pytest.mark.parametrize("name", ["speech", "speech.xyz", "speech.wav.", ".wav", "speech.sd2"])
def test_an_unknown_extension_lists_the_known_ones(name, tmp_path):
    with pytest.raises(UserError, match=r"\.flac, [\s\S]*\.wav"):
        make_speech().save(tmp_path / name)
    with pytest.raises(UserError, match=r"\.flac"):
        check_destination(tmp_path / name)


def test_an_unknown_subtype_lists_the_known_ones(tmp_path):
    for subtype in ("PCM_13", 24):
        with pytest.raises(UserError, match=r"FLOAT[\s\S]*PCM_16"):
            make_speech().save(tmp_path / "speech.wav", subtype=subtype)
    assert names(tmp_path) == []


def test_a_missing_folder_is_named(tmp_path):
    for ask in (make_speech().save, check_destination):
        with pytest.raises(UserError, match=r"no folder[\s\S]*mkdir -p"):
            ask(tmp_path / "none" / "speech.wav")


def test_a_place_that_holds_no_plain_file_is_left_alone(tmp_path):
    (tmp_path / "folder.wav").mkdir()
    os.mkfifo(tmp_path / "pipe.wav")
    with pytest.raises(UserError, match=r"a folder"):
        make_speech().save(tmp_path / "folder.wav")
    with pytest.raises(UserError, match=r"a device or a pipe"):
        make_speech().save(tmp_path / "pipe.wav")
    assert stat.S_ISFIFO((tmp_path / "pipe.wav").stat().st_mode)


def test_an_unwritable_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *arguments: False)
    with pytest.raises(UserError, match=r"no permission to write"):
        make_speech().save(tmp_path / "speech.wav")


@pytest.mark.parametrize("extension", ["wav", "flac", "ogg", "mp3", "aiff"])
@pytest.mark.parametrize("room", [0, 10, 3000])
def test_a_disk_that_fills_leaves_the_old_file(extension, room, tmp_path, monkeypatch):
    path = tmp_path / f"speech.{extension}"
    path.write_bytes(b"old")
    left = room

    class FullDisk(audio_file._ErrorKeepingFile):
        """Takes `room` bytes, then has no space left, as a file system would."""

        def write(self, data):
            nonlocal left
            if left < len(memoryview(data).cast("B")):
                self._kept = self._kept or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return 0
            left -= len(memoryview(data).cast("B"))
            return super().write(data)

    monkeypatch.setattr(audio_file, "_ErrorKeepingFile", FullDisk)
    with pytest.raises(UserError, match=rf"speech\.{extension} cannot be written[\s\S]*No space"):
        make_speech().save(path)
    assert names(tmp_path) == [path.name]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failure_at_the_very_end_leaves_nothing(broken, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    owner = os if broken == "fsync" else audio_file.Path
    monkeypatch.setattr(owner, broken, fail)
    with pytest.raises(UserError, match=r"Input/output error"):
        make_speech().save(tmp_path / "speech.wav")
    assert names(tmp_path) == []


def test_a_real_limit_on_the_file_size(tmp_path):
    """The operating system's own refusal, in a process of its own."""
    import subprocess
    import sys

    program = (
        "import resource, signal, sys\n"
        "from tests.trt_runtime.test_speech import make_speech\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "make_speech().save(sys.argv[1])\n"
    )
    for extension in ("wav", "flac", "ogg", "mp3"):
        result = subprocess.run(
            [sys.executable, "-c", program, tmp_path / f"speech.{extension}"],
            capture_output=True, text=True, check=False,
            cwd=audio_file.Path(__file__).parents[2],
        )  # fmt: skip
        assert "UserError" in result.stderr
        assert "File too large" in result.stderr
    assert names(tmp_path) == []


def test_chunks_make_the_same_file(tmp_path):
    speech = make_speech()
    speech.save(tmp_path / "whole.wav")
    with AudioFileWriter(tmp_path / "chunks.wav", SAMPLE_RATE) as file:
        for chunk in np.array_split(speech.audio, 7):
            file.write(chunk)
        assert not (tmp_path / "chunks.wav").exists()
    assert (tmp_path / "chunks.wav").read_bytes() == (tmp_path / "whole.wav").read_bytes()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_leaves_nothing(error, tmp_path):
    def interrupted():
        with AudioFileWriter(tmp_path / "speech.wav", SAMPLE_RATE) as file:
            file.write(make_speech().audio)
            raise error

    with pytest.raises(error):
        interrupted()
    assert names(tmp_path) == []


@pytest.mark.parametrize("extension", ["ogg", "flac", "mp3", "wav"])
def test_a_minute_is_written_whole(extension, tmp_path):
    """One write of a minute ends the process inside libsndfile's Vorbis encoder."""
    audio = np.sin(np.arange(44_100 * 70, dtype=np.float32) / 50) * np.float32(0.3)
    path = tmp_path / f"long.{extension}"
    speech = Speech(audio, 44_100, FinishReason.STOP, 1, 0, Timings(0.1, 0.2, 70.0))
    speech.save(path)
    assert abs(soundfile.info(path).duration - 70.0) < 0.2
