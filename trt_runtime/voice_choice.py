"""Which voices a request names, and whether its options go together; no engines are needed for it.

The rules are the reference's: a recording always gives a speaker embedding, unless another or none
is asked for, and gives latents only where its words are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trt_runtime.dialogue import Dialogue, speakers_in_raw_text
from trt_runtime.errors import UserError
from trt_runtime.instruction import Instruction
from trt_runtime.printable import shown
from trt_runtime.request import Request
from trt_runtime.sources import Source, dialogue_sources, speech_sources
from trt_runtime.voice_store import VoiceStore


@dataclass(frozen=True, eq=False)
class Chosen:
    """The voices of a request before anything is encoded.

    sources: one a speaker. prompt_text: their words where their latents are used, else None.
    """

    sources: tuple[Source, ...]
    prompt_text: str | None
    warnings: tuple[str, ...]


def choose(request: Request, store: VoiceStore) -> Chosen:
    """The voices that `request` names, read and checked; no engines are needed for it.

    Raises UserError where one cannot be read, and where the options contradict each other.
    """
    content = request.text
    warnings: tuple[str, ...]
    if isinstance(content, Dialogue):
        sources, warnings = dialogue_sources(request, content.speakers, store)
    else:
        sources, warnings = speech_sources(request, store)
        _check_raw_dialogue(content, sources, request.speaker_embedding)
    prompt_text = _prompt_text(request, sources) if request.latents else None
    _check_embedding_choice(request, sources, prompt_text)
    if not sources and (request.posterior != "mean" or not request.latents):
        raise UserError(
            "posterior and latents are for a reference or a voice, and there is none",
            expected="reference=... or voice=..., too",
            found=f"posterior={request.posterior!r}, latents={request.latents}",
            do="leave them out",
        )
    if len(sources) > 1 and isinstance(content, str) and not speakers_in_raw_text(content):
        warnings += (
            f"{len(sources)} references are {len(sources)} speakers, and the text is no dialogue; "
            "several recordings of one speaker make a voice (encode_voice)",
        )
    if request.instruction is not None and prompt_text is not None:
        warnings += (
            "the reference gives instructions with the speaker embedding alone: latents=False "
            "leaves the latents out",
        )
    if _wants_zero_speaker(request) and not sources:
        warnings += (
            'styles and IP voices were made with the zero speaker: give speaker_embedding="zero"',
        )
    wordless = prompt_text is None and request.latents and request.instruction is None
    # A shipped voice is whole as it is.
    if wordless and not all(source.shipped for source in sources):
        warnings += (
            "without the reference's words (reference_text) only its speaker embedding is used, "
            "which clones less of the voice",
        )
    return Chosen(tuple(sources), prompt_text, warnings)


def _wants_zero_speaker(request: Request) -> bool:
    """Whether the reference's cookbook gives such an instruction with the zero speaker."""
    said, choice = request.instruction, request.speaker_embedding
    chosen = isinstance(said, Instruction) and not (said.ip is None and said.style is None)
    return chosen and isinstance(choice, str) and choice == "auto"


def _check_raw_dialogue(content: Any, sources: Sequence[Source], embedding: Any) -> None:
    """Each speaker of a dialogue in the reference's form needs a reference or an embedding."""
    speakers = speakers_in_raw_text(content) if isinstance(content, str) else 0
    if speakers > len(sources) and isinstance(embedding, str | None):
        raise UserError(
            f"The text is a dialogue, and speaker_{speakers} has no reference",
            expected=f"a reference for each of {speakers} speakers",
            found=f"{len(sources)} of them",
            do="give reference=[...] with one recording a speaker, or the typed form: a list of "
            '{"speaker": ..., "text": ...} with voice={speaker: ...}',
        )


def _prompt_text(request: Request, sources: Sequence[Source]) -> str | None:
    """The words of all references in the prompt's form; None where latents are not used."""
    words = [source.transcript for source in sources]
    given = request.reference_text
    if isinstance(given, str) and sources:
        return given
    if not words or all(text is None for text in words):
        return None
    known = [text for text in words if text is not None]
    if len(known) < len(words):
        silent = ", ".join(s.label for s in sources if s.transcript is None)
        raise UserError(
            "Some references have a transcript and others have none",
            expected="the words of every reference, or of none",
            found=f"none for {silent}",
            do="give the missing words in reference_text, or use none: latents=False",
        )
    if isinstance(request.text, Dialogue):
        return request.text.prompt_text(known)
    return known[0]


def _check_embedding_choice(
    request: Request, sources: Sequence[Source], prompt_text: str | None
) -> None:
    choice = request.speaker_embedding
    if isinstance(choice, str) and choice not in ("auto", "zero"):
        raise bad_embedding(shown(choice))
    if not sources:
        return
    if not isinstance(choice, str) and prompt_text is None:
        raise UserError(
            "Nothing of the reference would be used",
            expected="its words in reference_text, or its speaker embedding",
            found="another speaker_embedding, or None, and no reference_text, or latents=False",
            do='give reference_text, or leave speaker_embedding at "auto"',
        )
    if isinstance(choice, str) and choice == "zero":
        raise UserError(
            "The zero speaker and a reference do not go together",
            expected="one or the other, as in the reference implementation",
            found='speaker_embedding="zero" with a reference or voice',
            do="leave one of them out, or give speaker_embedding=None with reference_text",
        )


def bad_embedding(found: str, size: int = 192) -> UserError:
    return UserError(
        "speaker_embedding cannot be used",
        expected=f'"auto", "zero", None, or finite arrays of shape ({size},), one a speaker',
        found=found,
        do="change speaker_embedding, or leave it out",
    )
