"""Guards against what these models do now and then: a silent stub, and speech that never ends.

They label and never cut what is given out: speech is stopped at the bound only where the caller
asked for that, or for further attempts, of which all but the last are thrown away.
"""

from __future__ import annotations

import math
import re
import unicodedata

from trt_runtime.audio_description import Music, SoundEvent
from trt_runtime.dialogue import Dialogue
from trt_runtime.geometry import Geometry
from trt_runtime.prompt import SPEECH_PROMPT, describes_music
from trt_runtime.request import Request

#: The labels that warnings begin with.
SILENT_STUB, RUNAWAY = "silent_stub", "runaway"

#: Below this root mean square (-50 dB of full scale) audio is near silence; speech is near -25 dB.
NEAR_SILENCE = 10 ** (-50 / 20)

#: Seconds that a slow speaker takes for one character of a kind, by Unicode category or script.
_SECONDS_A_WIDE_LETTER = 0.3
_SECONDS_A_LETTER = 0.09
_SECONDS_A_DIGIT = 0.4
_SECONDS_A_MARK = 0.4
#: Speech of more than this times a slow speaker's, and this much more, has run away.
_FACTOR, _MARGIN = 2.5, 4.0

_DURATION = re.compile(r"Duration: *([0-9]+(?:\.[0-9]+)?) *s")


def slow_seconds(text: str) -> float:
    """Seconds that a slow speaker takes for `text`; an upper estimate, rough on purpose."""
    total = 0.0
    for character in text:
        kind = unicodedata.category(character)
        if kind[0] == "L":
            # Han, kana and Hangul: a syllable or more a character.
            wide = unicodedata.east_asian_width(character) in "WF"
            total += _SECONDS_A_WIDE_LETTER if wide else _SECONDS_A_LETTER
        elif kind[0] in "NS":
            total += _SECONDS_A_DIGIT
        elif kind[0] == "P":
            total += _SECONDS_A_MARK
    return total


def expected_steps(request: Request, text: str, g: Geometry) -> int | None:
    """Steps by which `text` should have ended; None where its length says nothing about that."""
    seconds = _expected_seconds(request, text)
    if seconds is None or not math.isfinite(seconds):
        return None
    patch_seconds = g.samples_per_patch / g.sample_rate
    return max(request.min_steps, math.ceil((seconds * _FACTOR + _MARGIN) / patch_seconds))


def _expected_seconds(request: Request, text: str) -> float | None:
    content = request.text
    if isinstance(content, SoundEvent):
        return None
    if isinstance(content, Music):
        return content.duration_seconds
    if isinstance(content, str) and describes_music(content):
        found = _DURATION.search(content)
        return float(found[1]) if found else None
    if not isinstance(content, Dialogue) and request.use.prompt != SPEECH_PROMPT:
        return None
    return slow_seconds(text)


def is_silent_stub(root_mean_square: float, steps: int, min_steps: int) -> bool:
    """Whether speech that the model ended after `steps` steps is a stub without sound.

    True for a stop at the earliest step that was allowed, of near silence all in all.
    """
    return steps <= min_steps and root_mean_square < NEAR_SILENCE
