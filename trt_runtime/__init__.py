"""The light runtime of ming-trt: text → audio from engines, a bundle or the embedded default.

    import trt_runtime
    speech = trt_runtime.synthesize("Hello.", engines="engines/")
    speech.save("hello.wav")

Importing this package imports nothing heavy; ONNX Runtime is loaded with the first engines.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_runtime.version import __version__

if TYPE_CHECKING:
    from trt_runtime.audio_description import Music, SoundEvent
    from trt_runtime.dialogue import Dialogue, Turn, read_script
    from trt_runtime.errors import BusyError, FolderError, MingError, NumericError, UserError
    from trt_runtime.instruction import Background, Instruction
    from trt_runtime.noise import RecordedNoise
    from trt_runtime.prompt import MUSIC_PROMPT, SOUND_EVENT_PROMPT, SPEECH_PROMPT
    from trt_runtime.request import RequestOptions
    from trt_runtime.speech import (
        AudioChunk,
        FinishReason,
        Progress,
        Speech,
        SpokenSentence,
        Timings,
        Trace,
    )
    from trt_runtime.submission import Submission
    from trt_runtime.synthesizer import Synthesizer, load
    from trt_runtime.text_normalization import spell_out
    from trt_runtime.voice import Voice
    from trt_runtime.voice_store import VoiceStore

# Records go to the handlers of the program, and nowhere where it has none: a result repeats every
# warning.
logging.getLogger(__name__).addHandler(logging.NullHandler())

#: Public name → the module that defines it, imported when the name is first used.
_PUBLIC = {
    "AudioChunk": "speech",
    "Background": "instruction",
    "BusyError": "errors",
    "Dialogue": "dialogue",
    "FinishReason": "speech",
    "FolderError": "errors",
    "Instruction": "instruction",
    "MUSIC_PROMPT": "prompt",
    "MingError": "errors",
    "Music": "audio_description",
    "NumericError": "errors",
    "Progress": "speech",
    "RecordedNoise": "noise",
    "SOUND_EVENT_PROMPT": "prompt",
    "SPEECH_PROMPT": "prompt",
    "SoundEvent": "audio_description",
    "Speech": "speech",
    "SpokenSentence": "speech",
    "Submission": "submission",
    "Synthesizer": "synthesizer",
    "Timings": "speech",
    "Trace": "speech",
    "Turn": "dialogue",
    "UserError": "errors",
    "Voice": "voice",
    "VoiceStore": "voice_store",
    "load": "synthesizer",
    "read_script": "dialogue",
    "spell_out": "text_normalization",
}

__all__ = [
    "MUSIC_PROMPT",
    "SOUND_EVENT_PROMPT",
    "SPEECH_PROMPT",
    "AudioChunk",
    "Background",
    "BusyError",
    "Dialogue",
    "FinishReason",
    "FolderError",
    "Instruction",
    "MingError",
    "Music",
    "NumericError",
    "Progress",
    "RecordedNoise",
    "SoundEvent",
    "Speech",
    "SpokenSentence",
    "Submission",
    "Synthesizer",
    "Timings",
    "Trace",
    "Turn",
    "UserError",
    "Voice",
    "VoiceStore",
    "__version__",
    "load",
    "normalize_text",
    "read_script",
    "spell_out",
    "stream",
    "synthesize",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(f"trt_runtime.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def synthesize(
    text: Any,
    *,
    engines: str | Path | None = None,
    voices: str | os.PathLike[str] | None = None,
    prompt: str | None = None,
    instruction: Any = None,
    voice: Any = None,
    reference: Any = None,
    reference_text: Any = None,
    speaker_embedding: Any = "auto",
    latents: bool = True,
    posterior: str = "mean",
    guidance: float | None = None,
    sigma: float | None = None,
    temperature: float | None = None,
    min_steps: int = 5,
    max_steps: int | None = None,
    seed: int = 0,
    normalize: bool = False,
    split_limit: int | None = 200,
    on_runaway: str = "report",
    retries: int = 0,
    noise: RecordedNoise | None = None,
    trace: bool = False,
    on_progress: Callable[[Progress], object] | None = None,
) -> Speech:
    """Speaks `text` and returns a :class:`Speech` with all of it.

    Loads `engines` for this one call (None: the embedded default); use :func:`load` to keep them.
    What goes with what, and every default, is in docs/speaking.md.

    text: what to say; control tokens in it are spelled, never obeyed. A list of turns is a
    dialogue, :class:`Music` and :class:`SoundEvent` are made and not spoken.
    engines: an engine folder, or a bundle, which ONNX Runtime then runs on CPU as it is.
    voices: the folder of stored voices (None: MING_TRT_VOICES, or the user's).
    prompt: the task prompt; None is the reference's for the use.
    instruction: how it is said: an :class:`Instruction` (checked), a dict or JSON as the reference
    takes them (unchecked), or a string that goes into the prompt as it is.
    voice: a stored voice by name, a voice file or a :class:`Voice`; in a dialogue a mapping from
    speakers to these, to recordings, or to (recording, its words).
    reference: a recording to clone: a path, or (array, rate) with array (samples,) or (samples,
    channels); several in a list; in a dialogue a mapping.
    reference_text: the words of the reference. With them its latents are used, without them only
    its speaker embedding.
    speaker_embedding: "auto" (from each reference, none without one), "zero" (a speaker slot of
    zeros), None (no speaker slot), or arrays (192,) float32, one a speaker.
    latents: False leaves a voice's or reference's latents out, though its words are known: only its
    speaker embedding is used, as the reference does with instructions.
    posterior: "mean" of a reference's latents, or a "sample" drawn with `seed`.
    guidance: strength g of v = c + g (c - u), where 0 means none; the reference's default is 2.
    sigma, temperature: noise of sigma * sqrt(temperature) added inside the solver; 0 is none.
    min_steps, max_steps: patches before a stop counts, and at most (may be below min_steps), of
    each sentence. None: 200, of music 400.
    seed: of the noise, 0 to 2**64 - 1; the same seed and request give the same samples.
    normalize: spell out numbers, dates, units and addresses first (the extra `text`).
    split_limit: a longer text is spoken sentence by sentence, none of more characters, all with
    the same voice and seed; None speaks any text in one go.
    on_runaway: "report" speech far longer than its text in the warnings, or "stop" it there.
    retries: further attempts at a sentence that is a silent stub or runs away, each under a seed
    derived from `seed`.
    noise: recorded noise instead of the generator's.
    trace: keep prompt ids, latents, stop probabilities and hidden states.
    on_progress: called with a :class:`Progress` after every step; returning False cancels.

    Raises UserError for a request or folder that cannot be used, before anything starts, and
    NumericError where a component's output is not finite.
    """
    from trt_runtime.synthesizer import load

    options = _options(locals())
    with load(engines, voices=voices) as synthesizer:
        return synthesizer.synthesize(text, **options)


def stream(
    text: Any,
    *,
    engines: str | Path | None = None,
    voices: str | os.PathLike[str] | None = None,
    chunk_patches: int = 1,
    prompt: str | None = None,
    instruction: Any = None,
    voice: Any = None,
    reference: Any = None,
    reference_text: Any = None,
    speaker_embedding: Any = "auto",
    latents: bool = True,
    posterior: str = "mean",
    guidance: float | None = None,
    sigma: float | None = None,
    temperature: float | None = None,
    min_steps: int = 5,
    max_steps: int | None = None,
    seed: int = 0,
    normalize: bool = False,
    split_limit: int | None = 200,
    on_runaway: str = "report",
    retries: int = 0,
    noise: RecordedNoise | None = None,
    trace: bool = False,
    on_progress: Callable[[Progress], object] | None = None,
) -> Iterator[AudioChunk]:
    """Speaks `text` as an iterator of :class:`AudioChunk`, the first after the first patch.

    chunk_patches: patches a chunk; a sentence's last chunk may be shorter. The chunks' audio,
    joined, equals :func:`synthesize`'s. With `retries` a sentence is given out when it has ended,
    since what was heard cannot be taken back. The iterator may be left at any point; its state is
    freed. Other arguments and errors as there.
    """
    from trt_runtime.synthesizer import load

    options = _options(locals())
    synthesizer = load(engines, voices=voices)
    try:
        chunks = synthesizer.stream(text, chunk_patches=chunk_patches, **options)
    except BaseException:
        synthesizer.close()
        raise

    def closing() -> Iterator[AudioChunk]:
        with synthesizer:
            yield from chunks

    return closing()


def normalize_text(text: str, *, engines: str | Path | None = None, max_tokens: int = 200) -> str:
    """`text` with numbers and signs spelled out by the model itself, of the dense family.

    The talker writes the text in place of speaking it, greedily (the reference's generate_text).
    `normalize=True` and `spell_out` ask a library instead, which is quicker and needs no model.
    Raises UserError where the model writes no end within `max_tokens`.
    """
    from trt_runtime.synthesizer import load

    with load(engines) as synthesizer:
        return synthesizer.normalize_text(text, max_tokens=max_tokens)


def _options(arguments: dict[str, Any]) -> RequestOptions:
    """A request's options among a function's arguments, refused before gigabytes are loaded."""
    from trt_runtime.request import Request, RequestOptions

    options = RequestOptions(**{n: arguments[n] for n in RequestOptions.__annotations__})  # type: ignore[typeddict-item]
    Request(arguments["text"], **options)
    return options
