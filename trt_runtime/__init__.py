"""The light runtime of ming-trt: text → audio from engines, a bundle or the embedded default.

    import trt_runtime
    speech = trt_runtime.synthesize("Hello.", engines="engines/")
    speech.save("hello.wav")

Importing this package imports nothing heavy; ONNX Runtime is loaded with the first engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_runtime.version import __version__

if TYPE_CHECKING:
    from trt_runtime.errors import FolderError, MingError, NumericError, UserError
    from trt_runtime.noise import RecordedNoise
    from trt_runtime.prompt import MUSIC_PROMPT, SOUND_EVENT_PROMPT, SPEECH_PROMPT
    from trt_runtime.request import RequestOptions
    from trt_runtime.speech import AudioChunk, FinishReason, Progress, Speech, Timings, Trace
    from trt_runtime.synthesizer import Synthesizer, load

#: Public name → the module that defines it, imported when the name is first used.
_PUBLIC = {
    "AudioChunk": "speech",
    "FinishReason": "speech",
    "FolderError": "errors",
    "MUSIC_PROMPT": "prompt",
    "MingError": "errors",
    "NumericError": "errors",
    "Progress": "speech",
    "RecordedNoise": "noise",
    "SOUND_EVENT_PROMPT": "prompt",
    "SPEECH_PROMPT": "prompt",
    "Speech": "speech",
    "Synthesizer": "synthesizer",
    "Timings": "speech",
    "Trace": "speech",
    "UserError": "errors",
    "load": "synthesizer",
}

__all__ = [
    "MUSIC_PROMPT",
    "SOUND_EVENT_PROMPT",
    "SPEECH_PROMPT",
    "AudioChunk",
    "FinishReason",
    "FolderError",
    "MingError",
    "NumericError",
    "Progress",
    "RecordedNoise",
    "Speech",
    "Synthesizer",
    "Timings",
    "Trace",
    "UserError",
    "__version__",
    "load",
    "stream",
    "synthesize",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(f"trt_runtime.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def synthesize(
    text: str,
    *,
    engines: str | Path | None = None,
    prompt: str | None = None,
    instruction: Any = None,
    voice: Any = None,
    reference: Any = None,
    reference_text: str | None = None,
    speaker_embedding: Any = "auto",
    guidance: float = 2.0,
    sigma: float = 0.25,
    temperature: float = 0.0,
    min_steps: int = 5,
    max_steps: int = 200,
    seed: int = 0,
    normalize: bool = False,
    retries: int = 0,
    noise: RecordedNoise | None = None,
    trace: bool = False,
    on_progress: Callable[[Progress], object] | None = None,
) -> Speech:
    """Speaks `text` and returns a :class:`Speech` with all of it.

    Loads `engines` for this one call (None: the embedded default); use :func:`load` to keep them.

    text: what to say; control tokens in it are spelled, never obeyed.
    engines: an engine folder, or a bundle, which ONNX Runtime then runs on CPU as it is.
    prompt: the task prompt; None is the reference's speech prompt.
    guidance: strength g of v = c + g (c - u); the reference's default 2 is "3" where 1 means none.
    sigma, temperature: noise of sigma * sqrt(temperature) added inside the solver; 0 is none.
    min_steps, max_steps: patches before a stop counts, and at most (may be below min_steps).
    seed: of the noise, 0 to 2**64 - 1; the same seed and request give the same samples.
    noise: recorded noise instead of the generator's.
    trace: keep prompt ids, latents, stop probabilities and hidden states in `speech.trace`.
    on_progress: called with a :class:`Progress` after every step; returning False cancels.
    instruction, voice, reference, reference_text, speaker_embedding, normalize, retries: not in
    this version; any other value than the default is an error that says so.

    Raises UserError for a request or folder that cannot be used, before anything starts, and
    NumericError where a component's output is not finite.
    """
    from trt_runtime.synthesizer import load

    options = _options(locals())
    with load(engines) as synthesizer:
        return synthesizer.synthesize(text, **options)


def stream(
    text: str,
    *,
    engines: str | Path | None = None,
    chunk_patches: int = 1,
    prompt: str | None = None,
    instruction: Any = None,
    voice: Any = None,
    reference: Any = None,
    reference_text: str | None = None,
    speaker_embedding: Any = "auto",
    guidance: float = 2.0,
    sigma: float = 0.25,
    temperature: float = 0.0,
    min_steps: int = 5,
    max_steps: int = 200,
    seed: int = 0,
    normalize: bool = False,
    retries: int = 0,
    noise: RecordedNoise | None = None,
    trace: bool = False,
    on_progress: Callable[[Progress], object] | None = None,
) -> Iterator[AudioChunk]:
    """Speaks `text` as an iterator of :class:`AudioChunk`, the first after the first patch.

    chunk_patches: patches a chunk. The chunks' audio, joined, equals :func:`synthesize`'s. The
    iterator may be left at any point; its state is freed. Other arguments and errors as there.
    """
    from trt_runtime.synthesizer import load

    options = _options(locals())
    synthesizer = load(engines)
    chunks = synthesizer.stream(text, chunk_patches=chunk_patches, **options)

    def closing() -> Iterator[AudioChunk]:
        with synthesizer:
            yield from chunks

    return closing()


def _options(arguments: dict[str, Any]) -> RequestOptions:
    """A request's options among a function's arguments, refused before gigabytes are loaded."""
    from trt_runtime.request import Request, RequestOptions

    options = RequestOptions(**{n: arguments[n] for n in RequestOptions.__annotations__})  # type: ignore[typeddict-item]
    Request(arguments["text"], **options)
    return options
