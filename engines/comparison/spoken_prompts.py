"""What the loop is asked to say: sentences, in the prompt's grammar, as a request would be.

Prompts of random tokens are nothing that a trained model has seen: its loop then doubles a rounding
error every few steps, and a comparison would measure that.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engines.comparison.sides import Side
from trt_runtime.manifest import TOKENIZER
from trt_runtime.prompt import GRAMMARS, SPEECH_PROMPT, build_prompt
from trt_runtime.text_tokenizer import TextTokenizer

#: One a slot of the loop, long enough that 50 steps are speech: past its end a model says nothing
#: that it was trained to, and rounding grows as it does for random tokens.
TEXTS = (
    "The quick brown fox jumps over the lazy dog, and nobody is surprised at three in the morning, "
    "since the dog has slept through every jump of the long and windy autumn that came before it.",
    "When the train had left the station, the old man folded his newspaper, looked for a while at "
    "the empty rails and the rain on them, and walked home slowly by the river and the mill.",
)
#: Fills the shorter prompts; no token.
PADDING = -1


def spoken_prompts(sides: tuple[Side, Side]) -> NDArray[np.int64]:
    """(slots, tokens) int64 token ids of :data:`TEXTS`, by the tokenizer that the sides have.

    A longer one is followed by nothing, a shorter one by :data:`PADDING`.
    """
    tokenizer, grammar = _tokenizer(sides), GRAMMARS[sides[0].family]
    prompts = [
        build_prompt(tokenizer, grammar, prompt=SPEECH_PROMPT, text=text).ids for text in TEXTS
    ]
    longest = max(map(len, prompts))
    rows = [np.pad(ids, (0, longest - len(ids)), constant_values=PADDING) for ids in prompts]
    return np.stack(rows)


def without_padding(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """One prompt's tokens."""
    return ids[ids != PADDING]


def _tokenizer(sides: tuple[Side, Side]) -> TextTokenizer:
    for side in sides:
        if side.manifest is not None:
            return TextTokenizer.load(side.path / TOKENIZER)
    from export.tokenizer import write_tokenizer

    with tempfile.TemporaryDirectory(prefix="ming-trt-compare-") as folder:
        place = Path(folder) / TOKENIZER
        write_tokenizer(sides[0].path, place)
        return TextTokenizer.load(place)
