"""The talker's prompt: the grammar of each family as data, and token ids made from it.

Each piece is encoded on its own and the ids are concatenated, so merges never cross pieces. The
grammar's pieces know control tokens; a user's text does not. Which ids are placeholders follows
from where the grammar put them, never from looking for an id, so no text can move them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trt_runtime.text_tokenizer import TextTokenizer

SPEECH_PROMPT = "Please generate speech based on the following description.\n"
MUSIC_PROMPT = "Please generate music based on the following description.\n"
SOUND_EVENT_PROMPT = "Please generate audio events based on given text.\n"

#: A text that holds all of these describes music, and is then given without :data:`TEXT_INPUT`.
MUSIC_KEYS = ("Genre: ", "Mood: ", "Instrument: ", "Theme: ", "Duration: ")
TEXT_INPUT = " Text input:\n"


def describes_music(text: str) -> bool:
    """Whether the grammar takes `text` for a description of music: it holds every key of one."""
    return all(key in text for key in MUSIC_KEYS)


@dataclass(frozen=True)
class Grammar:
    """The pieces of one family's prompt, in the order in which they are written.

    `opening`, user's prompt, speakers, :data:`TEXT_INPUT`, user's texts, `answer`, instruction and
    `instruction_end`, `audio_start`, patches. A speaker is `speaker_label` with its number,
    `speaker_start`, `speaker_slot`, `speaker_end`. `speaker_slot` and `patch_slot` are placeholders
    that embeddings replace. `control_tokens` must exist in the tokenizer.
    """

    opening: tuple[str, ...]
    speaker_start: str
    speaker_slot: str
    speaker_end: str
    answer: tuple[str, ...]
    control_tokens: tuple[str, ...]
    speaker_label: str = "  speaker_{number}:"
    instruction_end: str = "<|endoftext|>"
    audio_start: str = "<audio>"
    patch_slot: str = "<audioPatch>"


#: By the manifest's `family`.
GRAMMARS: dict[str, Grammar] = {
    "ming-omni-tts-dense": Grammar(
        opening=(
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n",
            "<|im_start|>user\n",
        ),
        speaker_start="<|vision_start|>",
        speaker_slot="<|vision_pad|>",
        speaker_end="<|vision_end|>\n",
        answer=("<|im_end|>\n", "<|im_start|>assistant\n"),
        control_tokens=(
            "<|im_start|>",
            "<|im_end|>",
            "<|vision_start|>",
            "<|vision_pad|>",
            "<|vision_end|>",
            "<|endoftext|>",
            "<audio>",
            "<audioPatch>",
        ),
    ),
    "ming-omni-tts-moe": Grammar(
        opening=("<role>HUMAN</role>",),
        speaker_start="<spk>",
        speaker_slot="<audioPatch>",
        speaker_end="</spk>\n",
        answer=("<role>ASSISTANT</role>",),
        control_tokens=(
            "<role>",
            "</role>",
            "<spk>",
            "</spk>",
            "<|endoftext|>",
            "<audio>",
            "<audioPatch>",
        ),
    ),
}


@dataclass(frozen=True, eq=False)
class Prompt:
    """A prompt for the talker.

    ids: (tokens,) int64. speaker_slots: indices into ids whose embedding is the projection of
    speaker 1, 2, ... in order. patch_slots: indices whose embedding is the aggregator's output for
    patch 0, 1, ... of the reference wave.
    """

    ids: NDArray[np.int64]
    speaker_slots: tuple[int, ...]
    patch_slots: tuple[int, ...]


def check_tokenizer(tokenizer: TextTokenizer, grammar: Grammar) -> None:
    """Raises FolderError unless the tokenizer has every control token that the grammar writes."""
    for token in grammar.control_tokens:
        tokenizer.token_id(token)


def build_prompt(
    tokenizer: TextTokenizer,
    grammar: Grammar,
    *,
    prompt: str,
    text: str,
    speakers: int = 0,
    prompt_text: str | None = None,
    prompt_patches: int = 0,
    instruction: str | None = None,
) -> Prompt:
    """The prompt for `text`, which may be empty; texts are those that `check_text` has passed.

    `speakers` slots are left for speaker projections, `prompt_patches` for the patches of a
    reference wave whose words are `prompt_text`: the two come together or not at all, else
    ValueError. Raises FolderError where the tokenizer lacks a control token.
    """
    if speakers < 0 or prompt_patches < 0 or (prompt_text is None) != (prompt_patches == 0):
        raise ValueError(
            f"{speakers} speakers, {prompt_patches} patches of a reference wave and prompt_text "
            f"{prompt_text!r} do not go together"
        )
    check_tokenizer(tokenizer, grammar)
    ids: list[int] = []
    speaker_slots: list[int] = []
    for piece in grammar.opening:
        ids += tokenizer.control(piece)
    ids += tokenizer.plain(prompt)
    for number in range(1, speakers + 1):
        ids += tokenizer.control(grammar.speaker_label.format(number=number))
        ids += tokenizer.control(grammar.speaker_start)
        speaker_slots.append(len(ids))
        ids.append(tokenizer.token_id(grammar.speaker_slot))
        ids += tokenizer.control(grammar.speaker_end)
    if not describes_music(text):
        ids += tokenizer.control(TEXT_INPUT)
    if prompt_text is not None:
        ids += tokenizer.plain(prompt_text)
    ids += tokenizer.plain(text)
    for piece in grammar.answer:
        ids += tokenizer.control(piece)
    if instruction is not None:
        ids += tokenizer.plain(instruction)
        ids += tokenizer.control(grammar.instruction_end)
    ids += tokenizer.control(grammar.audio_start)
    first_patch = len(ids)
    ids += [tokenizer.token_id(grammar.patch_slot)] * prompt_patches
    return Prompt(
        ids=np.array(ids, np.int64),
        speaker_slots=tuple(speaker_slots),
        patch_slots=tuple(range(first_patch, len(ids))),
    )
