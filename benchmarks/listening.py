"""Sentences listened to: what was heard of each, and the figures of a row of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.recognition import Recogniser
from benchmarks.source_voice import Wave
from benchmarks.word_errors import WordErrorRate, word_errors, words
from trt_runtime.errors import UserError, reason_of
from trt_runtime.spread import spread

#: Lengths that count as the source's: this part of it shorter or longer at most.
LENGTH_TOLERANCE = 0.3


@dataclass(frozen=True, eq=False)
class Utterance:
    """A wave in which sentence number `sentence`, from 0, is said; `engine` is what made it tells.

    engine: seed, finish_reason, real_time_factor, first_audio_seconds; nothing of other waves.
    """

    sentence: int
    wave: Wave
    engine: Mapping[str, Any] = field(default_factory=dict)


class Listener:
    """Hears utterances of the sentences in `texts`."""

    def __init__(self, recogniser: Recogniser, texts: Sequence[str]) -> None:
        self._recogniser = recogniser
        self.texts = list(texts)
        self.said = [words(text) for text in texts]

    @property
    def unknown_words(self) -> list[str]:
        """Words that cannot be heard, since the dictionary lacks them: each is an error anyhow."""
        distinct = sorted({word for said in self.said for word in said})
        return [word for word in distinct if not self._recogniser.knows(word)]

    def row(
        self, utterances: Iterable[Utterance], source: Sequence[Wave] | None = None
    ) -> dict[str, Any]:
        """The figures of one way to say every sentence, once or more each, and all that was heard.

        source: the source's waves, to which the lengths of an engine's are compared.
        """
        spoken = []
        for utterance in utterances:
            said, wave = self.said[utterance.sentence], utterance.wave
            heard = self._recogniser.words(wave.audio, wave.sample_rate)
            line = {
                "text": self.texts[utterance.sentence],
                "heard": " ".join(heard),
                "words": len(said),
                "errors": word_errors(said, heard),
                "seconds": wave.seconds,
                **utterance.engine,
            }
            if source is not None and utterance.engine:
                line["length_ratio"] = wave.seconds / source[utterance.sentence].seconds
            spoken.append((utterance.sentence, line))
        lines = [line for _, line in spoken]
        # A sentence that is said under several seeds is drawn as one: its errors go together.
        errors, counts = [0] * len(self.said), [0] * len(self.said)
        for sentence, line in spoken:
            errors[sentence] += line["errors"]
            counts[sentence] += line["words"]
        return {
            "utterances": len(lines),
            "words": sum(counts),
            "errors": sum(errors),
            "word_error_rate": asdict(WordErrorRate.of(errors, counts)),
            "exact": sum(line["errors"] == 0 for line in lines),
            **(_engine_figures(lines) if lines[0].keys() & {"finish_reason"} else {}),
            "spoken": lines,
        }


def _engine_figures(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ratios = [line["length_ratio"] for line in lines if "length_ratio" in line]
    near = sum(abs(ratio - 1) <= LENGTH_TOLERANCE for ratio in ratios)
    return {
        "stopped": sum(line["finish_reason"] == "stop" for line in lines),
        "length_ratio": {"near": near, **spread(ratios)} if ratios else None,
        "real_time_factor": spread([line["real_time_factor"] for line in lines]),
        "first_audio_seconds": spread([line["first_audio_seconds"] for line in lines]),
    }


def read_sentences(path: Path) -> list[str]:
    """The lines of a text file that are not blank. Raises UserError where one cannot be scored."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"The sentences in {path} cannot be read",
            expected="a text file in UTF-8, a sentence a line",
            found=reason_of(error),
            do="give another with --sentences",
        ) from error
    texts = [" ".join(line.split()) for line in lines if line.strip()]
    if not texts:
        raise UserError(
            f"{path} has no sentences",
            expected="a sentence a line",
            found="only blank lines" if lines else "an empty file",
            do="give another with --sentences",
        )
    if wordless := [text for text in texts if not words(text)]:
        raise UserError(
            f"{path} has a line without words",
            expected="a sentence a line",
            found=wordless[0],
            do="take it out",
        )
    return texts
