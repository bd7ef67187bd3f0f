"""One request to speak: every option of `synthesize`, checked before anything starts."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypedDict

import numpy as np

from trt_runtime.errors import UserError
from trt_runtime.noise import RecordedNoise, check_seed
from trt_runtime.prompt import SPEECH_PROMPT, check_text

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

#: Options that later versions take, with the values that mean "not asked for".
_LATER: dict[str, tuple[Any, ...]] = {
    "instruction": (None,),
    "voice": (None,),
    "reference": (None,),
    "reference_text": (None,),
    "speaker_embedding": ("auto", None),
    "normalize": (False,),
    "retries": (0,),
}


class RequestOptions(TypedDict, total=False):
    """The options of a :class:`Request` as keywords, for those who check types."""

    prompt: str | None
    instruction: Any
    voice: Any
    reference: Any
    reference_text: str | None
    speaker_embedding: Any
    guidance: float
    sigma: float
    temperature: float
    min_steps: int
    max_steps: int
    seed: int
    normalize: bool
    retries: int
    noise: RecordedNoise | None
    trace: bool
    on_progress: Callable[..., Any] | None


@dataclass(frozen=True)
class Request:
    """What to say and how; raises UserError when made from values that cannot be used.

    Numbers may be NumPy scalars and are kept as int and float.
    """

    text: str
    """What is spoken. Control tokens in it are spelled out, never obeyed."""
    prompt: str | None = None
    """What the talker is asked to make; None is the reference's speech prompt."""
    instruction: Any = None
    """Style of the voice. Not in this version."""
    voice: Any = None
    """A stored voice. Not in this version."""
    reference: Any = None
    """A wave whose voice is cloned. Not in this version."""
    reference_text: str | None = None
    """The words of `reference`. Not in this version."""
    speaker_embedding: Any = "auto"
    """The speaker's 192 numbers; "auto" takes them from `reference`. Not in this version."""
    guidance: float = 2.0
    """Classifier-free guidance g of c + g (c - u); 0 and more."""
    sigma: float = 0.25
    """Size of the noise added inside the solver at temperature 1; 0 and more."""
    temperature: float = 0.0
    """0 is the deterministic solver; the added noise grows with its square root."""
    min_steps: int = 5
    """Steps before which the stop head is not asked; 1 and more."""
    max_steps: int = 200
    """Steps after which speech ends; 1 and more, and may be below `min_steps`."""
    seed: int = 0
    """Seed of the noise, 0 to 2**64 - 1."""
    normalize: bool = False
    """Spell out numbers and abbreviations first. Not in this version."""
    retries: int = 0
    """Further attempts after a runaway. Not in this version."""
    noise: RecordedNoise | None = None
    """Recorded noise in place of the generator."""
    trace: bool = False
    """Whether the result keeps prompt ids, latents, stop probabilities and hidden states."""
    on_progress: Callable[..., Any] | None = None
    """Called with a :class:`trt_runtime.speech.Progress` after each step."""

    def __post_init__(self) -> None:
        self._set("text", check_text(self.text))
        if self.prompt is not None:
            self._set("prompt", check_text(self.prompt, "prompt", may_be_blank=True))
        for name in ("guidance", "sigma", "temperature"):
            self._set(name, _real(name, getattr(self, name)))
        if self.noise_scale > _LARGEST_FLOAT32:
            _refuse("temperature", "sigma * sqrt(temperature) in float32's range", self.noise_scale)
        for name, least in (("min_steps", 1), ("max_steps", 1), ("retries", 0)):
            self._set(name, _whole(name, getattr(self, name), least))
        self._set("seed", check_seed(self.seed))
        for name in ("normalize", "trace"):
            self._set(name, _flag(name, getattr(self, name)))
        if self.noise is not None and not isinstance(self.noise, RecordedNoise):
            _refuse("noise", "None or a RecordedNoise", self.noise)
        if self.noise is not None and self.noise.posterior is not None:
            raise UserError(
                "noise.posterior is not in this version of ming-trt yet",
                expected="None: there is no reference wave to draw a posterior for",
                found=f"an array of shape {self.noise.posterior.shape}",
                do="leave posterior out",
            )
        if self.on_progress is not None and not callable(self.on_progress):
            _refuse("on_progress", "None or a function", self.on_progress)
        for name, unused in _LATER.items():
            value = getattr(self, name)
            # By type first: an array compared with a string has no single truth.
            if not any(type(value) is type(u) and value == u for u in unused):
                raise UserError(
                    f"{name} is not in this version of ming-trt yet",
                    expected=f"{name}=" + " or ".join(repr(u) for u in unused),
                    found=_shown(value),
                    do=f"leave {name} out",
                )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def noise_scale(self) -> float:
        """sigma * sqrt(temperature): what the graphs take as `noise_scale`."""
        return self.sigma * math.sqrt(self.temperature)

    @property
    def prompt_or_default(self) -> str:
        """`prompt`, or the reference's speech prompt where it is None."""
        return SPEECH_PROMPT if self.prompt is None else self.prompt


def _real(name: str, value: Any) -> float:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    # Compared before it is converted: an int may be too large for a float at all.
    if is_number and 0 <= value <= _LARGEST_FLOAT32:
        return float(value)
    _refuse(name, "a finite number of 0 or more, in the range of float32", value)


def _whole(name: str, value: Any, least: int) -> int:
    is_number = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if is_number and value >= least:
        return int(value)
    _refuse(name, f"a whole number of {least} or more", value)


def _flag(name: str, value: object) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    _refuse(name, "True or False", value)


def _refuse(name: str, expected: str, value: object) -> NoReturn:
    raise UserError(
        f"{name} cannot be used",
        expected=expected,
        found=_shown(value),
        do=f"change {name}, or leave it out",
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
