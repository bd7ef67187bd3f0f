"""Recordings to clone: what is read, what is refused and why, and what is warned about."""

from __future__ import annotations

import os
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.goldens import OMNI_TTS
from trt_runtime import audio_source, reference_audio
from trt_runtime.errors import UserError
from trt_runtime.reference_audio import read_reference, read_references


def voice(seconds: float = 4.0, rate: int = 16000) -> np.ndarray:
    """Something with the level and the unevenness of speech: (samples,) float32."""
    time = np.arange(round(seconds * rate)) / rate
    envelope = 0.2 + 0.2 * np.sin(2 * np.pi * 3 * time) ** 2
    return (envelope * np.sin(2 * np.pi * 180 * time + 3 * np.sin(time))).astype(np.float32)


def written(path: Path, samples: np.ndarray, rate: int = 16000, **options: str) -> Path:
    soundfile.write(path, samples, rate, **options)
    return path


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("v.wav", {}, 1e-4),
        ("v.wav", {"subtype": "PCM_24"}, 1e-6),
        ("v.wav", {"subtype": "PCM_32"}, 1e-6),
        ("v.wav", {"subtype": "PCM_U8"}, 0.01),
        ("v.wav", {"subtype": "FLOAT"}, 0.0),
        ("v.wav", {"subtype": "DOUBLE"}, 0.0),
        ("v.wav", {"subtype": "ULAW"}, 0.01),
        ("v.wav", {"subtype": "ALAW"}, 0.01),
        ("v.wav", {"subtype": "IMA_ADPCM"}, 0.02),
        ("v.wav", {"subtype": "GSM610"}, 0.05),
        ("v.flac", {}, 1e-4),
        ("v.ogg", {}, 0.05),
        ("v.opus", {"format": "OGG", "subtype": "OPUS"}, 0.05),
        ("v.mp3", {}, 0.05),
        ("v.aiff", {}, 1e-4),
        ("v.caf", {"subtype": "ALAC_16"}, 1e-4),
        ("v.au", {}, 1e-4),
        ("v.w64", {}, 1e-4),
        ("no extension", {"format": "WAV"}, 1e-4),
    ],
)
def test_formats(tmp_path, name, options, error):
    wave = voice()
    recording, warnings = read_reference(written(tmp_path / name, wave, **options))
    assert warnings == ()
    assert recording.sample_rate == 16000
    assert recording.name == str(tmp_path / name)
    assert recording.samples.dtype == np.float32
    assert not recording.samples.flags.writeable
    assert abs(len(recording.samples) - len(wave)) < 600  # ADPCM fills its last block
    difference = recording.samples[: len(wave)] - wave
    assert np.sqrt(np.mean(difference**2)) <= error


def test_telephone_audio(tmp_path):
    """8 kHz stereo µ-law: both channels alike, and a narrow band."""
    wave = voice(rate=8000)
    path = written(tmp_path / "call.wav", np.stack([wave, wave], 1), 8000, subtype="ULAW")
    recording, warnings = read_reference(str(path))
    assert recording.sample_rate == 8000
    assert recording.seconds == 4.0
    assert [w.split(": ")[1] for w in warnings] == ["the voice will sound like on a telephone"]


def test_mp3_of_variable_bit_rate_is_read_whole(tmp_path):
    """soundfile seeks after every read, and goes on elsewhere in such a file."""
    noise = np.random.default_rng(0).standard_normal(320000) * np.linspace(0, 0.2, 320000)
    path = tmp_path / "v.mp3"
    soundfile.write(
        path, noise.astype(np.float32), 16000, bitrate_mode="VARIABLE", compression_level=0.5
    )
    whole, _ = soundfile.read(path, dtype="float32")
    recording, _ = read_reference(path)
    # The decoder's own arithmetic varies with where its buffers lie.
    assert np.abs(recording.samples - whole).max() < 1e-6


def test_recorded_files():
    recording, warnings = read_reference(OMNI_TTS / "wavs" / "b_16k.wav")
    assert recording.samples.shape == (9000,)
    assert recording.sample_rate == 16000
    assert len(warnings) == 1
    assert "lasts 0.6 s, too short for a good likeness" in warnings[0]


@pytest.mark.parametrize(
    ("dtype", "scale", "offset"),
    [("int16", 32768, 0), ("int32", 2**31, 0), ("uint8", 128, 128), (">i2", 32768, 0)],
)
def test_integer_arrays_are_scaled_as_in_files(tmp_path, dtype, scale, offset):
    integers = (voice() * 0.9 * scale + offset).astype(dtype)
    recording, warnings = read_reference((integers, 16000))
    assert warnings == ()
    expected = (integers.astype(np.float64) - offset) / scale
    assert np.array_equal(recording.samples, expected.astype(np.float32))
    if dtype == "int16":
        from_file, _ = read_reference(written(tmp_path / "v.wav", integers))
        assert np.array_equal(recording.samples, from_file.samples)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_float_arrays(dtype):
    wave = voice().astype(dtype)
    recording, warnings = read_reference((wave, np.int64(16000)))
    assert warnings == ()
    assert np.array_equal(recording.samples, wave.astype(np.float32))
    wave[:] = 0
    assert recording.samples.any(), "the caller's array is not kept"


def test_lists_and_columns_are_arrays_too():
    assert read_reference((voice().tolist(), 16000))[0].samples.shape == (64000,)
    assert read_reference((voice()[:, None], 16000))[0].samples.shape == (64000,)
    assert read_reference((voice()[::2], 8000))[0].samples.shape == (32000,)


def test_the_first_channel_is_used_and_others_are_mentioned(tmp_path):
    stereo = np.stack([voice(), voice()[::-1]], 1)
    for source in (written(tmp_path / "v.wav", stereo, subtype="FLOAT"), (stereo, 16000)):
        recording, warnings = read_reference(source)
        assert np.array_equal(recording.samples, stereo[:, 0])
        assert len(warnings) == 1
        assert "2 different channels, of which the first is used" in warnings[0]


def test_sound_in_another_channel_alone_is_refused(tmp_path):
    silent = np.zeros_like(voice())
    channels = np.stack([silent, silent, voice()], 1)
    path = written(tmp_path / "v.wav", channels)
    with pytest.raises(UserError, match=r"channel 3 of 3 only[\s\S]*pan=mono\|c0=c2"):
        read_reference(path)
    with pytest.raises(UserError, match=r"channel 3 of 3 only[\s\S]*array\[:, 2\]"):
        read_reference((channels, 16000))


def test_loudness_is_left_alone():
    for gain in (0.01, 1.0, 2.4):
        wave = (voice() * gain).astype(np.float32)
        assert np.array_equal(read_reference((wave, 16000))[0].samples, wave)


@pytest.mark.parametrize(
    ("seconds", "warning"),
    [
        (0.25, "0.2 s, too short for"),
        (1.5, "1.5 s, short for a good"),
        (4, None),
        (61, "61 s, whi"),
    ],
)
def test_lengths_that_are_no_good_are_warned_about(seconds, warning):
    _, warnings = read_reference((voice(seconds), 16000))
    if warning is None:
        assert warnings == ()
    else:
        assert len(warnings) == 1
        assert f"The reference audio lasts {warning}" in warnings[0]
        assert "3 to 15 seconds of clean speech" in warnings[0]


def test_clipping_is_warned_about(tmp_path):
    clipped = np.clip(voice() * 5, -1, 1)
    _, warnings = read_reference(written(tmp_path / "v.wav", clipped))
    assert len(warnings) == 1
    assert "is clipped" in warnings[0]


def test_a_wave_that_only_touches_full_scale_is_not_clipped():
    wave = voice() / np.abs(voice()).max()
    assert read_reference(((wave * 32767).astype(np.int16), 16000))[1] == ()


def test_escape_sequences_of_a_name_do_not_reach_a_warning(tmp_path):
    _, warnings = read_reference(written(tmp_path / "v\x1b[2J.wav", voice(2)))
    assert "\x1b" not in warnings[0]


@pytest.mark.parametrize("level", [0.0, 3e-4])
def test_silence_is_refused(tmp_path, level):
    silence = voice() * np.float32(level) + np.float32(0.1)  # an offset is not sound
    for source in (written(tmp_path / "v.wav", silence, subtype="FLOAT"), (silence, 16000)):
        with pytest.raises(UserError, match=r"is silent[\s\S]*-60 dB"):
            read_reference(source)


@pytest.mark.parametrize(
    ("seconds", "found"), [(0, "no samples"), (0.1, "0.100 s"), (0.199, "0.1")]
)
def test_too_little_audio_is_refused(tmp_path, seconds, found):
    for source in (written(tmp_path / "v.wav", voice(seconds)), (voice(seconds), 16000)):
        with pytest.raises(
            UserError, match=rf"too short[\s\S]*at least 0\.2 seconds[\s\S]*{found}"
        ):
            read_reference(source)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("channel", [0, 1])
def test_what_is_not_finite_is_refused(tmp_path, bad, channel):
    wave = np.stack([voice(), voice()], 1)
    wave[1234, channel] = bad
    for source in (written(tmp_path / "v.wav", wave, subtype="FLOAT"), (wave, 16000)):
        with pytest.raises(UserError, match=r"NaN or infinity[\s\S]*1 that are not[\s\S]*1234"):
            read_reference(source)


def test_values_beyond_float32_are_infinite():
    with pytest.raises(UserError, match="NaN or infinity"):
        read_reference((voice().astype(np.float64) * 1e300, 16000))


@pytest.mark.filterwarnings("error")
def test_huge_values_raise_no_warnings_of_arithmetic():
    wave = np.stack([voice() * 3e38, voice() * -3e38], 1)
    with pytest.raises(UserError, match="far above full scale"):
        read_reference((wave / np.abs(wave).max() * np.float32(3e38), 16000))


def test_integers_that_were_made_floats_without_scaling_are_refused():
    with pytest.raises(UserError, match=r"far above full scale[\s\S]*32768"):
        read_reference((voice() * 32768, 16000))


@pytest.mark.parametrize("frames", [4800001, 2**33])
def test_the_limit_holds_before_anything_is_read(tmp_path, frames):
    """A sparse file, which takes no room: reading its 16 GB would."""
    path = written(tmp_path / "v.w64", voice(), format="W64")
    with path.open("r+b") as file:
        header = file.read(128)
        size = header.index(b"data") + 16
        file.seek(size)
        file.write(struct.pack("<q", 24 + 2 * frames))
        file.truncate(size + 8 + 2 * frames)
    with pytest.raises(UserError, match=r"too long[\s\S]*at most 300 seconds[\s\S]*-t 15"):
        read_reference(path)


def test_the_limit_holds_for_arrays_and_for_what_a_header_hides(monkeypatch):
    monkeypatch.setattr(reference_audio, "LONGEST_SECONDS", 3)
    with pytest.raises(UserError, match=r"too long[\s\S]*at most 3 seconds[\s\S]*4 seconds"):
        read_reference((voice(), 16000))
    gathered = reference_audio._Gathered("v", 16000, 1, "")
    for _ in range(3):
        gathered.add(voice(1)[:, None])
    with pytest.raises(UserError, match="too long"):
        gathered.add(voice(0.1)[:, None])


def test_many_channels_at_a_high_rate_are_read_piece_by_piece(tmp_path, monkeypatch):
    wave = np.random.default_rng(0).uniform(-0.5, 0.5, (20000, 7)).astype(np.float32)
    path = written(tmp_path / "v.wav", wave, 96000, subtype="FLOAT")
    monkeypatch.setattr(reference_audio, "LONGEST_SECONDS", 1)
    monkeypatch.setattr(reference_audio, "MOST_SAMPLES", 25000)
    monkeypatch.setattr(audio_source, "BLOCK", 1000)
    recording, _ = read_reference(path)
    assert np.array_equal(recording.samples, wave[:, 0])


@pytest.mark.parametrize("claimed", [0xFFFFFFFF, 0x7FFFFFFF, 0xF0000000])
def test_a_header_of_unknown_length_is_not_believed(tmp_path, claimed):
    """4 GB: what programs write that send a WAV file through a pipe."""
    path = written(tmp_path / "v.wav", voice())
    data = bytearray(path.read_bytes())
    data[4:8] = data[40:44] = struct.pack("<I", claimed)
    path.write_bytes(data)
    assert read_reference(path)[0].samples.shape == (64000,)


@pytest.mark.parametrize(
    ("name", "options"),
    [("v.wav", {}), ("v.wav", {"subtype": "PCM_24"}), ("v.wav", {"subtype": "ULAW"}),
     ("v.wav", {"subtype": "GSM610"}), ("v.aiff", {}), ("v.au", {}), ("v.flac", {}), ("v.ogg", {}),
     ("v.mp3", {})],
)  # fmt: skip
def test_files_cut_short_are_refused(tmp_path, name, options):
    path = written(tmp_path / name, voice(), **options)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(
        UserError, match=r"(cut short|cannot be read as audio)[\s\S]*copy it again[\s\S]*ffmpeg -i"
    ):
        read_reference(path)


def test_damage_inside_a_file_is_refused(tmp_path):
    path = written(tmp_path / "v.flac", voice())
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 200] = np.random.default_rng(0).bytes(200)
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"cannot be read as audio[\s\S]*lost sync"):
        read_reference(path)


@pytest.mark.parametrize(
    ("name", "head", "found"),
    [
        ("v.mp4", b"\x00\x00\x00\x20ftypisom\x00\x00\x02\x00", "MP4 or QuickTime"),
        ("v.m4a", b"\x00\x00\x00\x20ftypM4A \x00\x00\x02\x00", r"AAC audio \(\.m4a\)"),
        (
            "v.mkv",
            b"\x1a\x45\xdf\xa3\x93\x42\x82\x88matroska",
            "Matroska or WebM container: a video",
        ),
        ("v.avi", b"RIFF\x00\x10\x00\x00AVI LIST", "AVI container: a video"),
        ("v.wmv", b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9", "Windows Media"),
        ("v.aac", b"\xff\xf1\x50\x80\x02\x1f\xfc", "AAC audio"),
    ],
)
def test_videos_and_foreign_formats_come_with_the_command_that_helps(tmp_path, name, head, found):
    path = tmp_path / f"my {name}"
    path.write_bytes(head + bytes(1000))
    command = f"ffmpeg -i {shlex.quote(str(path))} -vn reference.wav"
    with pytest.raises(UserError, match=found) as raised:
        read_reference(path)
    assert command in str(raised.value)


@pytest.mark.parametrize(
    "contents",
    [b"version https://git-lfs.github.com/spec/v1\n", "你好，世界。".encode(), b"RIFF", b"\0",
     b"<!DOCTYPE html>", b"RIFF\x24\0\0\0WAVEfmt ", bytes(5000), os.urandom(5000)],
)  # fmt: skip
def test_what_is_no_audio_is_refused_whatever_its_name(tmp_path, contents):
    for name in ("v.wav", "v.mp3", "v.raw", "v.txt", "v.gsm"):
        path = tmp_path / name
        path.write_bytes(contents)
        with pytest.raises(UserError, match=r"cannot be read as audio[\s\S]*begins with"):
            read_reference(path)


def test_paths_that_lead_to_no_file_are_refused(tmp_path):
    empty = tmp_path / "empty.wav"
    empty.touch()
    for path, message in (
        (tmp_path / "missing.wav", "No such file"),
        (tmp_path, "a folder"),
        (empty, "an empty file"),
        ("/dev/zero", "a device or a pipe"),
        ("a\0b.wav", "null"),
        ("", "No such file"),
        ("x" * 5000, "too long"),
    ):
        with pytest.raises(UserError, match=rf"{message}[\s\S]*What to do"):
            read_reference(path)


@pytest.mark.skipif(os.name != "posix", reason="no named pipes")
def test_a_pipe_that_nobody_writes_to_is_refused_at_once(tmp_path):
    path = tmp_path / "v.wav"
    os.mkfifo(path)
    code = (
        "import sys; from trt_runtime.errors import UserError; "
        "from trt_runtime.reference_audio import read_reference, read_references\n"
        "try: read_reference(sys.argv[1])\nexcept UserError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60
    )
    assert "a device or a pipe" in done.stdout


def test_a_link_to_a_recording_is_followed(tmp_path):
    link = tmp_path / "link.wav"
    link.symlink_to(written(tmp_path / "v.wav", voice()))
    assert read_reference(link)[0].seconds == 4.0


@pytest.mark.parametrize(
    "source",
    [
        None,
        5,
        b"voice.wav",
        voice(1),
        ["a.wav", "b.wav"],
        (voice(1),),
        (voice(1), 16000, 1),
        {"array": 1},
        (),
    ],
    ids=lambda source: type(source).__name__,
)
def test_other_sources_are_refused(source):
    with pytest.raises(UserError, match="path of an audio file, or a pair"):
        read_reference(source)


@pytest.mark.parametrize(
    ("array", "rate", "message"),
    [
        (16000, voice(), "swap the two"),
        (voice(), 0, "sample rate of the reference audio cannot be used"),
        (voice(), -16000, "sample rate"),
        (voice(), 16000.0, "sample rate"),
        (voice(), True, "sample rate"),
        (voice(), None, "sample rate"),
        (voice(), 10**9, "sample rate"),
        (voice()[None], 16000, r"more channels than samples[\s\S]*array\.T"),
        (np.stack([voice(), voice()]), 16000, "more channels than samples"),
        (voice()[:, None, None], 16000, r"shape \(64000, 1, 1\)"),
        (np.float32(0.5), 16000, r"shape \(\)"),
        (voice().astype(np.complex64), 16000, "complex64"),
        (voice() > 0, 16000, "bool"),
        ((voice() * 100).astype(np.int64), 16000, "int64"),
        ((voice() * 100).astype(np.int8), 16000, "int8"),
        (["a", "b"], 16000, "dtype <U1"),
        ([[1.0], [1.0, 2.0]], 16000, "cannot be read"),
        (None, 16000, "object"),
        (np.zeros((0, 2), np.float32), 16000, "no samples"),
        (np.zeros((16000, 0), np.float32), 16000, "no samples"),
    ],
)
def test_arrays_that_are_no_recording_are_refused(array, rate, message):
    with pytest.raises(UserError, match=message):
        read_reference((array, rate))


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    path = written(tmp_path / "v.wav", voice())
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(UserError, match="pip install soundfile"):
        read_reference(path)
    assert read_reference((voice(), 16000))[0].seconds == 4.0


@pytest.mark.parametrize("neighbour", ["._", "._a.mp3"])
def test_an_mp3_beside_what_looks_like_its_resource_fork(tmp_path, monkeypatch, neighbour):
    soundfile.write(tmp_path / "a.mp3", 0.3 * np.sin(np.arange(48_000) / 9), 16_000)
    (tmp_path / neighbour).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    audio, _ = read_reference("a.mp3")
    assert len(audio.samples) >= 48_000


def test_references_have_a_common_bound():
    minute = (np.sin(np.arange(60 * 8000) / 5).astype(np.float32), 8000)
    audios, _ = read_references([minute] * 5)
    assert len(audios) == 5
    with pytest.raises(UserError, match=r"too long together(?s:.*)6 of 9"):
        read_references([minute] * 9)


def test_a_mask_is_not_heard_through():
    hidden = np.ma.masked_array(np.sin(np.arange(32_000) / 5), np.arange(32_000) % 2)
    with pytest.raises(UserError, match="mask"):
        read_reference((hidden, 16_000))
