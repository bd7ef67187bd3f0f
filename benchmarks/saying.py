"""Ways to say sentences: through the audio codec alone, and by the engines in a voice."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import soundfile
from tqdm import tqdm

from benchmarks.listening import Utterance
from benchmarks.source_voice import Wave, wave_name
from trt_runtime.audio_decoder import AudioDecoder
from trt_runtime.audio_encoder import encode_wave
from trt_runtime.errors import UserError
from trt_runtime.folder import OpenFolder
from trt_runtime.resampling import resample
from trt_runtime.synthesizer import Synthesizer
from trt_runtime.voice import Voice
from trt_runtime.voice_name import ENDING, FILE_SUFFIXES
from trt_runtime.voice_store import VoiceStore

#: The name of the voice that speaks where none is asked for.
DEFAULT_VOICE = "default"


def reconstructed(opened: OpenFolder, wave: Wave) -> Wave:
    """`wave` through the audio codec: the mean of its latents, decoded, at the model's rate."""
    g = opened.manifest.geometry
    mean, _ = encode_wave(opened.backend, g, resample(wave.audio, wave.sample_rate, g.sample_rate))
    return Wave(AudioDecoder(opened.backend, g).decode(mean, last=True), g.sample_rate)


def voice_of(synthesizer: Synthesizer, store: VoiceStore, given: str) -> tuple[str, Voice | None]:
    """A voice's name and the voice: that of a file, of a recording, or a stored one."""
    if given == DEFAULT_VOICE:
        return given, None
    if given.endswith(ENDING):
        return Path(given).stem, Voice.load(given)
    if given.lower().endswith(FILE_SUFFIXES):
        return Path(given).stem, synthesizer.encode_voice(given)
    return given, store.get(given)


def voices_of(
    synthesizer: Synthesizer, store: VoiceStore, given: Sequence[str]
) -> list[tuple[str, Voice | None]]:
    """The voices by name, each a row; raises UserError where two have one name."""
    voices = [voice_of(synthesizer, store, name) for name in given]
    names = [name for name, _ in voices]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"Two voices are called {', '.join(twice)}",
            expected=f"a name for each row; {DEFAULT_VOICE} is always one",
            found=", ".join(given),
            do="leave one out, or give its file another name",
        )
    return voices


def speech(
    synthesizer: Synthesizer, voice: Voice | None, texts: Sequence[str], seeds: Sequence[int]
) -> Iterator[Utterance]:
    """Every text under every seed, whole; then its first chunk again, streamed, for its time."""
    options: dict[str, Any] = {} if voice is None else {"voice": voice}
    jobs = [(index, text, seed) for seed in seeds for index, text in enumerate(texts)]
    for index, text, seed in tqdm(jobs, desc="speaking", disable=None):
        spoken = synthesizer.synthesize(text, seed=seed, **options)
        start = time.perf_counter()
        next(iter(synthesizer.stream(text, seed=seed, **options)))
        figures = {
            "seed": seed,
            "finish_reason": str(spoken.finish_reason),
            "real_time_factor": spoken.timings.real_time_factor,
            "first_audio_seconds": time.perf_counter() - start,
        }
        yield Utterance(index, Wave(spoken.audio, spoken.sample_rate), figures)


def kept(folder: Path | None, name: str, utterances: Iterator[Utterance]) -> Iterator[Utterance]:
    """The utterances, each written into a folder of the row's name too, where one is given."""
    for utterance in utterances:
        if folder is not None:
            seed = utterance.engine.get("seed")
            place = folder / (name if seed is None else f"{name}-seed-{seed}")
            place.mkdir(parents=True, exist_ok=True)
            wave = utterance.wave
            path = place / wave_name(utterance.sentence)
            # As it is heard: the last bit of 16 can change a word.
            soundfile.write(path, wave.audio, wave.sample_rate, subtype="FLOAT")
        yield utterance
