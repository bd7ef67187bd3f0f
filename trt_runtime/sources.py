"""Where a request's voices come from: stored voices and recordings, one source a speaker."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trt_runtime.dialogue import speakers_in_raw_text
from trt_runtime.errors import UserError
from trt_runtime.reference_audio import ReferenceAudio, read_reference, read_references
from trt_runtime.request import Request
from trt_runtime.spoken_text import check_text
from trt_runtime.voice import Voice
from trt_runtime.voice_name import ENDING, FILE_SUFFIXES
from trt_runtime.voice_store import VoiceStore

_FORMS = "a stored voice's name, a voice file, a Voice, a recording, or (recording, its words)"


@dataclass(frozen=True, eq=False)
class Source:
    """One speaker's sound; `label` names it in messages, `transcript` is what it says.

    shipped: whether it is a voice that ships with the embedded default.
    """

    sound: Voice | ReferenceAudio
    label: str
    transcript: str | None = None
    shipped: bool = False


def speech_sources(request: Request, store: VoiceStore) -> tuple[list[Source], tuple[str, ...]]:
    """The sources of a request that is no dialogue of ours, in order, and warnings.

    `reference` may be a list, whose words are one `reference_text` for all: the reference's own
    form of a dialogue.
    """
    for name in ("voice", "reference", "reference_text"):
        if isinstance(getattr(request, name), Mapping):
            raise UserError(
                f"{name} is a mapping of speakers, and the text is no dialogue",
                expected=f"one {name}, or a list of turns as the text",
                do='give the text as [{"speaker": ..., "text": ...}, ...]',
            )
    words = request.reference_text
    if words is not None:
        words = check_text(words, "reference_text")
    if request.voice is not None:
        if request.reference is not None or words is not None:
            raise UserError(
                "A stored voice brings its own reference",
                expected="voice alone",
                found="voice with reference or reference_text",
                do="leave one of them out",
            )
        source, warnings = voice_source(request.voice, store, "the voice")
        return [source], warnings
    if request.reference is None:
        if words is not None:
            raise UserError(
                "reference_text is the words of a reference, and there is none",
                expected="reference=..., too",
                do="give the recording, or leave reference_text out",
            )
        return [], ()
    listed = request.reference if is_list(request.reference) else [request.reference]
    if not listed:
        raise UserError(
            "reference is an empty list", expected="a recording", do="leave reference out"
        )
    audios, warnings = read_references(listed)
    sources = [
        Source(audio, "the reference" if len(listed) == 1 else f"reference {index}", words)
        for index, audio in enumerate(audios, 1)
    ]
    return sources, warnings


def dialogue_sources(
    request: Request, speakers: Sequence[str], store: VoiceStore
) -> tuple[list[Source], tuple[str, ...]]:
    """The source of each speaker of a dialogue, in the order of `speakers`, and warnings."""
    voices = _by_speaker(request.voice, "voice", speakers)
    recordings = _by_speaker(request.reference, "reference", speakers)
    given = request.reference_text
    words = {} if isinstance(given, str) else _by_speaker(given, "reference_text", speakers)
    if isinstance(given, str):
        _check_raw_words(check_text(given, "reference_text"), speakers)
    if twice := sorted(voices.keys() & recordings.keys()):
        raise UserError(
            f"{', '.join(twice)}: both a voice and a reference",
            expected="one of them for each speaker",
            do="leave one out",
        )
    if missing := [name for name in speakers if name not in voices and name not in recordings]:
        raise UserError(
            f"The dialogue has speakers without a reference: {', '.join(missing)}",
            expected="a voice or a reference for each of " + ", ".join(speakers),
            found=", ".join(sorted(voices.keys() | recordings.keys())) or "none",
            do="give voice={speaker: ...} or reference={speaker: ...} for every speaker",
        )
    warnings: tuple[str, ...] = ()
    unused = sorted((voices.keys() | recordings.keys() | words.keys()) - set(speakers))
    if unused:
        warnings += (f"voices of speakers who say nothing are not used: {', '.join(unused)}",)
    spoken_by = [name for name in speakers if name in recordings]
    audios, remarks = read_references([recordings[name] for name in spoken_by])
    warnings += remarks
    heard = dict(zip(spoken_by, audios, strict=True))
    sources: list[Source] = []
    for name in speakers:
        label = f"the voice of {name}"
        if name in voices:
            source, remarks = voice_source(voices[name], store, label)
            warnings += remarks
        else:
            source = Source(heard[name], label)
        if source.transcript is not None and (name in words or isinstance(given, str)):
            raise UserError(
                f"{label} brings its own transcript",
                expected=f"no reference_text for {name}",
                do="leave it out",
            )
        if name in words:
            said = check_text(words[name], f"reference_text of {name}")
            source = Source(source.sound, label, said)
        sources.append(source)
    return sources, warnings


def _check_raw_words(words: str, speakers: Sequence[str]) -> None:
    """Raises UserError unless `words` are the reference's own string for so many speakers."""
    found = speakers_in_raw_text(words)
    if found != len(speakers):
        raise UserError(
            "reference_text is not the words of these speakers",
            expected=f"a mapping from speakers to words, or lines ' speaker_1:...' to "
            f"' speaker_{len(speakers)}:...'",
            found=f"lines of {found} speakers",
            do=f"give reference_text={{{speakers[0]!r}: ..., ...}}",
        )


def voice_source(value: Any, store: VoiceStore, label: str) -> tuple[Source, tuple[str, ...]]:
    """The source that `voice=` names, in any of its forms, and warnings."""
    if isinstance(value, Voice):
        return Source(value, label, value.transcript), value.warnings
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str):
        audio, warnings = read_reference(value[0])
        return Source(audio, label, check_text(value[1], f"the words of {label}")), warnings
    if isinstance(value, os.PathLike) or (isinstance(value, str) and _is_path(value)):
        path = Path(value)
        if not path.exists():
            raise UserError(
                f"{label} cannot be found: {path}",
                expected=_FORMS,
                found="no such file",
                do="check the path; the names of stored voices: ming-trt voices list",
            )
        if path.suffix.lower() == ENDING:
            voice = Voice.load(path)
            return Source(voice, label, voice.transcript), voice.warnings
        audio, warnings = read_reference(path)
        return Source(audio, label), warnings
    if isinstance(value, str):
        voice, shipped = store.get(value), store.is_shipped(value)
        return Source(voice, f"voice {value!r}", voice.transcript, shipped), voice.warnings
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], np.ndarray):
        audio, warnings = read_reference(value)
        return Source(audio, label), warnings
    raise UserError(
        f"{label} cannot be used", expected=_FORMS, found=type(value).__name__, do="change it"
    )


def _is_path(text: str) -> bool:
    """Whether a string is meant as a path: names of stored voices have no separators."""
    return "/" in text or os.sep in text or Path(text).suffix.lower() in FILE_SUFFIXES


def is_list(value: Any) -> bool:
    """Whether `reference` is several recordings and not one (array, rate)."""
    if isinstance(value, list):
        return True
    pair = isinstance(value, tuple) and len(value) == 2 and not isinstance(value[1], str)
    return isinstance(value, tuple) and not (pair and not isinstance(value[1], os.PathLike | tuple))


def _by_speaker(value: Any, name: str, speakers: Sequence[str]) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    if name == "reference" and is_list(value) and len(value) == len(speakers):
        return dict(zip(speakers, value, strict=True))
    raise UserError(
        f"A dialogue's {name} cannot be used",
        expected=f"a mapping from each speaker ({', '.join(speakers)}) to a {name}",
        found=type(value).__name__,
        do=f"give {name}={{{speakers[0]!r}: ..., ...}}",
    )
