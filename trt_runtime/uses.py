"""What the model is used for: a task prompt and the numbers that go with it, one row a use.

The numbers are those of the reference's cookbook.
"""

from __future__ import annotations

from dataclasses import dataclass

from trt_runtime.audio_description import Music, SoundEvent
from trt_runtime.prompt import MUSIC_PROMPT, SOUND_EVENT_PROMPT, SPEECH_PROMPT


@dataclass(frozen=True)
class Use:
    """One use, with what a request has where it leaves these options out.

    The options mean what they mean in :class:`trt_runtime.request.Request`.
    """

    name: str
    prompt: str
    guidance: float = 2.0
    sigma: float = 0.25
    temperature: float = 0.0
    max_steps: int = 200


SPEECH = Use("speech", SPEECH_PROMPT)
MUSIC = Use("music", MUSIC_PROMPT, max_steps=400)
SOUND_EVENT = Use("sound event", SOUND_EVENT_PROMPT, guidance=4.5, sigma=0.3, temperature=2.5)

#: By the type of a request's text. A string is speech, whatever its prompt: that is how the
#: reference's own strings for music and sound events keep the reference's defaults.
_USES: dict[type, Use] = {Music: MUSIC, SoundEvent: SOUND_EVENT}


def use_of(content: object) -> Use:
    """The use that a request's text is for."""
    return _USES.get(type(content), SPEECH)
