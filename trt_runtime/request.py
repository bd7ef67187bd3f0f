"""One request to speak: every option of `synthesize`, checked before anything starts."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypedDict

import numpy as np

from trt_runtime.audio_description import Music, SoundEvent
from trt_runtime.dialogue import Dialogue
from trt_runtime.errors import UserError
from trt_runtime.instruction import instruction_text
from trt_runtime.noise import RecordedNoise, check_seed
from trt_runtime.numeric import whole_number
from trt_runtime.printable import shown
from trt_runtime.spoken_text import check_text
from trt_runtime.uses import Use, use_of

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

#: Texts of more characters are spoken sentence by sentence: some 13 s of English, 45 s of Chinese,
#: well inside the 64 s of the default `max_steps`.
SPLIT_LIMIT = 200

#: Options whose default depends on what the text is for.
_OF_THE_USE = ("prompt", "guidance", "sigma", "temperature", "max_steps")

#: The least and the most that each whole number may be. A shorter limit would cut words; no engines
#: have room for a sentence of a longer one.
_WHOLE_NUMBERS = {
    "min_steps": (1, 1 << 31),
    "max_steps": (1, 1 << 31),
    "retries": (0, 1000),
    "split_limit": (20, 5000),
}
_MAY_BE_NONE = ("max_steps", "split_limit")

#: Options that only speech has, with the values that leave them out.
_OF_SPEECH: dict[str, tuple[Any, ...]] = {
    "voice": (None,),
    "reference": (None,),
    "reference_text": (None,),
    "instruction": (None,),
    "speaker_embedding": ("auto", None),
}

#: Options that choose one of a few words.
_CHOICES = {"posterior": ("mean", "sample"), "on_runaway": ("report", "stop")}


class RequestOptions(TypedDict, total=False):
    """The options of a :class:`Request` as keywords, for those who check types."""

    prompt: str | None
    instruction: Any
    voice: Any
    reference: Any
    reference_text: Any
    speaker_embedding: Any
    latents: bool
    posterior: str
    guidance: float | None
    sigma: float | None
    temperature: float | None
    min_steps: int
    max_steps: int | None
    seed: int
    normalize: bool
    split_limit: int | None
    on_runaway: str
    retries: int
    noise: RecordedNoise | None
    trace: bool
    on_progress: Callable[..., Any] | None


@dataclass(frozen=True)
class Request:
    """What to say and how; raises UserError when made from values that cannot be used.

    Numbers may be NumPy scalars and are kept as int and float. Where `prompt`, `guidance`, `sigma`,
    `temperature` or `max_steps` is None, `use` has the default that goes with the text.
    """

    text: Any
    """What is spoken: a str, a :class:`Dialogue` or the turns of one, :class:`Music` or
    :class:`SoundEvent`. Control tokens in it are spelled out, never obeyed."""
    prompt: str | None = None
    """What the talker is asked to make."""
    instruction: Any = None
    """How it is said: an :class:`trt_runtime.instruction.Instruction`, a dict or JSON as the
    reference takes them, or a string that goes into the prompt as it is."""
    voice: Any = None
    """A stored voice: its name, its file, a :class:`Voice`; for a dialogue a mapping of them."""
    reference: Any = None
    """Recordings whose voice is cloned: a path, (array, rate), a list; a mapping for a dialogue."""
    reference_text: Any = None
    """The words of `reference`; for a dialogue a mapping, or the reference's own string."""
    speaker_embedding: Any = "auto"
    """"auto" (from each reference, none without one), "zero", None (no speaker), or arrays."""
    latents: bool = True
    """Whether the latents of references whose words are known are used."""
    posterior: str = "mean"
    """"mean" of a reference's latents, which is the same each time, or a "sample"."""
    guidance: float | None = None
    """Classifier-free guidance g of c + g (c - u); 0 and more."""
    sigma: float | None = None
    """Size of the noise added inside the solver at temperature 1; 0 and more."""
    temperature: float | None = None
    """0 is the deterministic solver; the added noise grows with its square root."""
    min_steps: int = 5
    """Steps before which the stop head is not asked; 1 and more."""
    max_steps: int | None = None
    """Steps after which a sentence ends; 1 and more, and may be below `min_steps`."""
    seed: int = 0
    """Seed of the noise, 0 to 2**64 - 1; every sentence of a long text is spoken with it."""
    normalize: bool = False
    """Spell out numbers, dates, units and addresses first (the extra `text`)."""
    split_limit: int | None = SPLIT_LIMIT
    """A longer text is spoken sentence by sentence, none of more characters; None never splits."""
    on_runaway: str = "report"
    """What to do where speech runs away: "report" it, or "stop" there."""
    retries: int = 0
    """Further attempts at a sentence that is a silent stub or runs away, under derived seeds."""
    noise: RecordedNoise | None = None
    """Recorded noise in place of the generator."""
    trace: bool = False
    """Whether the result keeps prompt ids, latents, stop probabilities and hidden states."""
    on_progress: Callable[..., Any] | None = None
    """Called with a :class:`trt_runtime.speech.Progress` after each step."""
    use: Use = field(init=False)
    """What the text is for, with the request's own prompt and numbers."""
    instruction_text: str | None = field(default=None, init=False)
    """What of `instruction` goes into the prompt."""
    warnings: tuple[str, ...] = field(default=(), init=False)
    """What of the request is done otherwise than it says."""

    def __post_init__(self) -> None:
        self._set("text", _content(self.text))
        if self.prompt is not None:
            self._set("prompt", check_text(self.prompt, "prompt", may_be_blank=True))
        for name in ("guidance", "sigma", "temperature"):
            if getattr(self, name) is not None:
                self._set(name, _real(name, getattr(self, name)))
        for name, (least, most) in _WHOLE_NUMBERS.items():
            if getattr(self, name) is not None or name not in _MAY_BE_NONE:
                self._set(name, _whole(name, getattr(self, name), least, most))
        given = {name: getattr(self, name) for name in _OF_THE_USE}
        chosen = {name: value for name, value in given.items() if value is not None}
        self._set("use", replace(use_of(self.text), **chosen))
        if self.noise_scale > _LARGEST_FLOAT32:
            _refuse("temperature", "sigma * sqrt(temperature) in float32's range", self.noise_scale)
        self._set("seed", check_seed(self.seed))
        for name in ("latents", "normalize", "trace"):
            self._set(name, _flag(name, getattr(self, name)))
        for name, choices in _CHOICES.items():
            # By type first: an array compared with a string has no single truth.
            if not isinstance(getattr(self, name), str) or getattr(self, name) not in choices:
                _refuse(name, " or ".join(map(repr, choices)), getattr(self, name))
        if self.noise is not None and not isinstance(self.noise, RecordedNoise):
            _refuse("noise", "None or a RecordedNoise", self.noise)
        if self.on_progress is not None and not callable(self.on_progress):
            _refuse("on_progress", "None or a function", self.on_progress)
        said, warnings = instruction_text(self.instruction)
        if isinstance(self.text, Music):
            warnings += self.text.warnings()
        self._set("instruction_text", said)
        self._set("warnings", warnings)
        self._check_together()

    def _check_together(self) -> None:
        """Options that each may be used, and not with one another."""
        if self.noise is not None and self.retries:
            raise UserError(
                "retries and recorded noise do not go together",
                expected="noise that another seed can change",
                do="leave retries out",
            )
        if isinstance(self.text, Music | SoundEvent):
            if self.normalize:
                raise UserError(
                    f"{self.use.name.capitalize()} is described, and nothing of it is spoken",
                    expected="a text for normalize",
                    do="leave normalize out",
                )
            for name, unset in _OF_SPEECH.items():
                # By type first: an array compared with a string has no single truth.
                value = getattr(self, name)
                if not any(type(value) is type(u) and value == u for u in unset):
                    raise UserError(
                        f"{self.use.name.capitalize()} is made from its description alone",
                        expected=f"no {name}",
                        found=shown(getattr(self, name)),
                        do=f"leave {name} out; for speech over music give a text and "
                        "Instruction(background=Background(...))",
                    )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def noise_scale(self) -> float:
        """sigma * sqrt(temperature): what the graphs take as `noise_scale`."""
        return self.use.sigma * math.sqrt(self.use.temperature)


def _content(text: Any) -> str | Dialogue | Music | SoundEvent:
    """A request's text in one of its forms; raises UserError where it is none."""
    if isinstance(text, Dialogue | Music | SoundEvent):
        return text
    if isinstance(text, Sequence) and not isinstance(text, str | bytes | bytearray):
        return Dialogue.from_any(text)
    return check_text(text)


def _real(name: str, value: Any) -> float:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    # Compared before it is converted: an int may be too large for a float at all.
    if is_number and 0 <= value <= _LARGEST_FLOAT32:
        return float(value)
    _refuse(name, "a finite number of 0 or more, in the range of float32", value)


def _whole(name: str, value: Any, least: int, most: int) -> int:
    number = whole_number(value, least, most)
    if number is not None:
        return number
    _refuse(name, f"a whole number of {least} or more, up to {most}", value)


def _flag(name: str, value: object) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    _refuse(name, "True or False", value)


def _refuse(name: str, expected: str, value: object) -> NoReturn:
    raise UserError(
        f"{name} cannot be used",
        expected=expected,
        found=shown(value),
        do=f"change {name}, or leave it out",
    )
