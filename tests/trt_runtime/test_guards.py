"""Guards: silent stubs and runaways are labelled, cut only where asked, and tried again."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.conftest import Folders
from trt_runtime import Music, Progress, RecordedNoise, SoundEvent, guards, load, loop, speaking
from trt_runtime.dialogue import Dialogue
from trt_runtime.errors import UserError
from trt_runtime.guards import NEAR_SILENCE, expected_steps, is_silent_stub, slow_seconds
from trt_runtime.noise import LARGEST_SEED, derived_seed
from trt_runtime.prompt import MUSIC_PROMPT, SPEECH_PROMPT
from trt_runtime.request import Request
from trt_runtime.speech import Speech
from trt_runtime.synthesizer import Synthesizer

TEXT = "Hi there."
LONG = "The first sentence of all. Here is the second one. And this is the third."

Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def speaker(dense: Folders) -> Iterator[Synthesizer]:
    with load(dense.engines, threads=1) as synthesizer:
        yield synthesizer


@pytest.fixture
def never_stops(monkeypatch: Patch) -> None:
    """No probability is above 2."""
    monkeypatch.setattr(loop, "STOP_THRESHOLD", 2.0)


@pytest.fixture
def stops_at_once(monkeypatch: Patch) -> None:
    """Every probability is above -1: the model stops as soon as it is asked."""
    monkeypatch.setattr(loop, "STOP_THRESHOLD", -1.0)


@pytest.fixture
def all_is_silence(stops_at_once: None, monkeypatch: Patch) -> None:
    monkeypatch.setattr(guards, "NEAR_SILENCE", 100.0)


def bound_of(synthesizer: Synthesizer, text: str, **options: Any) -> int:
    bound = expected_steps(Request(text, **options), text, synthesizer.geometry)
    assert bound is not None
    return bound


def labels(speech: Speech) -> list[str]:
    return [warning.split(":")[0] for warning in speech.warnings]


def silent_audio(audio: np.ndarray) -> float:
    return float(np.sqrt(np.square(audio, dtype=np.float64).mean()))


# What can be expected of a text.


def test_slow_speech_is_slower_than_speech() -> None:
    """At 12 characters a second of English, 4 of Chinese, which is unhurried, nothing runs away."""
    english = "It was the best of times, it was the worst of times, and nobody could tell which."
    chinese = "今天天气很好，我们一起去公园散步吧。"
    assert len(english) / 12 < slow_seconds(english) < 4 * len(english) / 12
    assert len(chinese) / 4 < slow_seconds(chinese) < 4 * len(chinese) / 4


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0.0),
        (" \n\t", 0.0),
        ("ab", 0.18),
        ("a b", 0.18),
        ("éß", 0.18),
        ("今天", 0.6),
        ("カナ", 0.6),
        ("한글", 0.6),
        ("Ａ", 0.3),
        ("12", 0.8),
        ("½", 0.4),
        ("a.", 0.49),
        ("。", 0.4),
        ("€", 0.4),
        ("e\u0301", 0.09),
        ("a\u200d\ufe0f", 0.09),
    ],
)
def test_slow_seconds(text: str, seconds: float) -> None:
    assert slow_seconds(text) == pytest.approx(seconds)


def test_slow_seconds_add_up() -> None:
    parts = ["One, ", "two 33 ", "四五六。"]
    assert slow_seconds("".join(parts)) == pytest.approx(sum(map(slow_seconds, parts)))


def test_expected_steps(speaker: Synthesizer) -> None:
    """Two and a half times a slow speaker's seconds and four more, in whole patches."""
    g = speaker.geometry
    seconds = 2.5 * slow_seconds(TEXT) + 4
    expected = math.ceil(seconds / (g.samples_per_patch / g.sample_rate))
    assert expected_steps(Request(TEXT), TEXT, g) == expected
    assert expected_steps(Request(TEXT, prompt=SPEECH_PROMPT), TEXT, g) == expected
    assert expected_steps(Request(TEXT, max_steps=3), TEXT, g) == expected
    assert expected_steps(Request(TEXT, min_steps=expected + 9), TEXT, g) == expected + 9
    assert expected_steps(Request(LONG), TEXT, g) == expected, "the sentence counts, not the text"


def test_expected_steps_of_other_uses(speaker: Synthesizer) -> None:
    g = speaker.geometry
    patch = g.samples_per_patch / g.sample_rate
    of_thirty = math.ceil((30 * 2.5 + 4) / patch)

    def steps(content: Any, **options: Any) -> int | None:
        request = Request(content, **options)
        text = content if isinstance(content, str) else request.text.text()
        return expected_steps(request, text, g)

    music = {"genre": "g", "mood": "m", "instrument": "i", "theme": "t"}
    assert steps(Music(**music, duration=30)) == of_thirty
    assert steps(Music(**music, duration="30s")) == of_thirty
    assert steps(Music(**music, duration="as long as it takes")) is None
    raw = " Genre: g. Mood: m. Instrument: i. Theme: t. Duration: "
    assert steps(f"{raw}30s.", prompt=MUSIC_PROMPT) == of_thirty
    assert steps(f"{raw}30s.") == of_thirty
    assert steps(f"{raw}30.0 s.") == of_thirty
    assert steps(f"{raw}1m30s.") is None
    assert steps(f"{raw}long.") is None
    assert steps(SoundEvent("Thunder")) is None
    assert steps("Thunder", prompt="Please generate audio events based on given text.\n") is None
    turns = Dialogue.from_any([("anna", "Hello."), ("ben", "Hello to you.")])
    spoken = steps(turns)
    assert spoken is not None
    assert spoken >= math.ceil((2.5 * slow_seconds("Hello.Hello to you.") + 4) / patch)


def test_silent_stub() -> None:
    assert is_silent_stub(0.0, 5, 5)
    assert is_silent_stub(NEAR_SILENCE * 0.999, 5, 5)
    assert not is_silent_stub(NEAR_SILENCE, 5, 5)
    assert not is_silent_stub(0.0, 6, 5)
    assert pytest.approx(-50) == 20 * math.log10(NEAR_SILENCE)


# Runaways.


@pytest.mark.usefixtures("never_stops")
@pytest.mark.parametrize("more", [0, 1, 7])
def test_a_runaway_is_labelled_and_not_cut(
    speaker: Synthesizer, caplog: pytest.LogCaptureFixture, more: int
) -> None:
    most = bound_of(speaker, TEXT) + more
    with caplog.at_level(logging.WARNING, "trt_runtime"):
        speech = speaker.synthesize(TEXT, max_steps=most, seed=9)
    assert (speech.steps, speech.finish_reason) == (most, "max_steps")
    assert len(speech.audio) == most * speaker.geometry.samples_per_patch
    (warning,) = speech.warnings
    assert warning.startswith("runaway: sentence 1 of 1, seed 9: ")
    assert f"{most} steps" in warning
    assert "max_steps" in warning
    assert [record.getMessage() for record in caplog.records] == [warning]
    assert caplog.records[0].name == "trt_runtime.speaking"
    (sentence,) = speech.sentences
    assert (sentence.warnings, sentence.attempts, sentence.seed) == ((warning,), 1, 9)


@pytest.mark.usefixtures("never_stops")
def test_below_the_bound_nothing_is_said(
    speaker: Synthesizer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "trt_runtime"):
        speech = speaker.synthesize(TEXT, max_steps=bound_of(speaker, TEXT) - 1)
    assert (speech.finish_reason, speech.warnings, caplog.records) == ("max_steps", (), [])


@pytest.mark.usefixtures("never_stops")
def test_stopped_at_the_bound_where_asked(speaker: Synthesizer) -> None:
    bound = bound_of(speaker, TEXT)
    speech = speaker.synthesize(TEXT, max_steps=bound + 9, on_runaway="stop")
    assert (speech.steps, speech.finish_reason) == (bound, "runaway")
    assert speech.sentences[0].finish_reason == "runaway"
    assert labels(speech) == ["runaway"]
    assert speech.audio.tobytes() == speaker.synthesize(TEXT, max_steps=bound).audio.tobytes()
    chunks = list(speaker.stream(TEXT, max_steps=bound + 9, on_runaway="stop", chunk_patches=4))
    assert np.concatenate([c.audio for c in chunks]).tobytes() == speech.audio.tobytes()
    assert (chunks[-1].finish_reason, chunks[-1].warnings) == ("runaway", speech.warnings)


@pytest.mark.usefixtures("never_stops")
def test_at_the_limit_of_both_the_limit_is_the_reason(speaker: Synthesizer) -> None:
    bound = bound_of(speaker, TEXT)
    speech = speaker.synthesize(TEXT, max_steps=bound, on_runaway="stop")
    assert (speech.steps, speech.finish_reason) == (bound, "max_steps")
    assert labels(speech) == ["runaway"]


@pytest.mark.usefixtures("never_stops")
def test_min_steps_beyond_the_bound_are_taken(speaker: Synthesizer) -> None:
    least = bound_of(speaker, TEXT) + 4
    options: dict[str, Any] = {"min_steps": least, "max_steps": least + 9, "on_runaway": "stop"}
    assert speaker.synthesize(TEXT, **options).steps == least


def test_what_stops_by_itself_is_left_alone(speaker: Synthesizer) -> None:
    plain = speaker.synthesize(TEXT)
    asked = speaker.synthesize(TEXT, on_runaway="stop")
    assert plain.finish_reason == asked.finish_reason == "stop"
    assert plain.audio.tobytes() == asked.audio.tobytes()
    assert plain.warnings == asked.warnings == ()


def test_a_late_stop_is_a_runaway_that_stopped(speaker: Synthesizer, monkeypatch: Patch) -> None:
    """Labels do not change the reason; a stop at the bound itself is in time."""
    steps = speaker.synthesize(TEXT).steps
    for bound, expected in ((steps, []), (steps - 1, ["runaway"])):
        monkeypatch.setattr(speaking, "expected_steps", lambda *_, bound=bound: bound)
        speech = speaker.synthesize(TEXT)
        assert (speech.steps, speech.finish_reason) == (steps, "stop")
        assert labels(speech) == expected
    cut = speaker.synthesize(TEXT, on_runaway="stop")
    assert (cut.steps, cut.finish_reason) == (steps - 1, "runaway")


@pytest.mark.usefixtures("never_stops")
def test_a_cancelled_sentence_is_no_runaway(speaker: Synthesizer) -> None:
    bound = bound_of(speaker, TEXT)
    speech = speaker.synthesize(
        TEXT, max_steps=bound + 9, on_progress=lambda progress: progress.step <= bound
    )
    assert (speech.steps, speech.finish_reason, speech.warnings) == (bound + 1, "cancelled", ())


@pytest.mark.usefixtures("never_stops")
def test_sounds_without_a_bound_never_run_away(speaker: Synthesizer) -> None:
    speech = speaker.synthesize(SoundEvent("Rain"), max_steps=60, on_runaway="stop")
    assert (speech.steps, speech.finish_reason, speech.warnings) == (60, "max_steps", ())


@pytest.mark.usefixtures("never_stops")
def test_each_sentence_has_its_own_bound(speaker: Synthesizer) -> None:
    speech = speaker.synthesize(LONG, split_limit=30, max_steps=60, on_runaway="stop")
    assert len(speech.sentences) == 3
    assert speech.finish_reason == "runaway"
    for number, sentence in enumerate(speech.sentences, 1):
        assert sentence.steps == bound_of(speaker, sentence.text)
        assert sentence.warnings[0].startswith(f"runaway: sentence {number} of 3, ")
    assert speech.warnings == sum((s.warnings for s in speech.sentences), ())


# Silent stubs.


@pytest.mark.usefixtures("all_is_silence")
@pytest.mark.parametrize("least", [1, 3, 5])
def test_a_silent_stub_is_labelled(
    speaker: Synthesizer, caplog: pytest.LogCaptureFixture, least: int
) -> None:
    with caplog.at_level(logging.WARNING, "trt_runtime"):
        speech = speaker.synthesize(TEXT, min_steps=least)
    assert (speech.steps, speech.finish_reason) == (least, "stop")
    (warning,) = speech.warnings
    assert warning.startswith("silent_stub: sentence 1 of 1, seed 0: ")
    assert "retries=2" in warning
    assert [record.getMessage() for record in caplog.records] == [warning]


@pytest.mark.usefixtures("stops_at_once")
def test_a_short_text_with_sound_is_no_stub(speaker: Synthesizer, monkeypatch: Patch) -> None:
    """The level is that of the whole audio, to the last sample."""
    speech = speaker.synthesize(TEXT)
    assert (speech.steps, speech.warnings) == (5, ())
    level = silent_audio(speech.audio)
    for limit, expected in ((level * 0.999, []), (level * 1.001, ["silent_stub"])):
        monkeypatch.setattr(guards, "NEAR_SILENCE", limit)
        assert labels(speaker.synthesize(TEXT)) == expected


def test_silence_of_another_length_is_no_stub(speaker: Synthesizer, monkeypatch: Patch) -> None:
    monkeypatch.setattr(guards, "NEAR_SILENCE", 100.0)
    speech = speaker.synthesize(TEXT)
    assert speech.steps > 5
    assert (speech.finish_reason, speech.warnings) == ("stop", ())
    assert speaker.synthesize(TEXT, max_steps=5).warnings == ()
    assert speaker.synthesize(TEXT, max_steps=3).warnings == ()


@pytest.mark.usefixtures("all_is_silence")
def test_stubs_are_streamed_as_they_are(speaker: Synthesizer) -> None:
    chunks = list(speaker.stream(TEXT))
    assert len(chunks) == 5
    assert chunks[-1].warnings[0].startswith("silent_stub")
    assert all(chunk.warnings == () for chunk in chunks[:-1])


# Further attempts.


@pytest.fixture
def third_time(speaker: Synthesizer, stops_at_once: None, monkeypatch: Patch) -> int:
    """A seed whose first two attempts are below the level of silence and the third is above."""
    for seed in range(50):
        levels = [
            silent_audio(speaker.synthesize(TEXT, seed=derived_seed(seed, n)).audio)
            for n in range(3)
        ]
        if levels[2] > 1.001 * max(levels[:2]):
            monkeypatch.setattr(guards, "NEAR_SILENCE", (levels[2] + max(levels[:2])) / 2)
            return seed
    raise AssertionError("no such seed")


@pytest.mark.parametrize("retries", [2, 3, 10])
def test_the_first_good_attempt_is_kept(
    speaker: Synthesizer, third_time: int, retries: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "trt_runtime"):
        speech = speaker.synthesize(TEXT, seed=third_time, retries=retries, trace=True)
    seeds = [derived_seed(third_time, attempt) for attempt in range(3)]
    (sentence,) = speech.sentences
    assert (sentence.attempts, sentence.seed, speech.seed) == (3, seeds[2], third_time)
    assert speech.finish_reason == sentence.finish_reason == "stop"
    first, second, kept = speech.warnings
    assert first.startswith(f"silent_stub: sentence 1 of 1, seed {seeds[0]}: ")
    assert second.startswith(f"silent_stub: sentence 1 of 1, seed {seeds[1]}: ")
    assert kept == f"sentence 1: attempt 3 was kept, seed {seeds[2]}"
    assert [record.getMessage() for record in caplog.records] == [first, second]
    alone = speaker.synthesize(TEXT, seed=seeds[2], trace=True)
    assert speech.audio.tobytes() == alone.audio.tobytes()
    assert alone.warnings == ()
    assert speech.trace is not None
    assert alone.trace is not None
    np.testing.assert_array_equal(speech.trace.latents, alone.trace.latents)


def test_the_last_attempt_is_kept_however_it_is(speaker: Synthesizer, third_time: int) -> None:
    speech = speaker.synthesize(TEXT, seed=third_time, retries=1)
    (sentence,) = speech.sentences
    assert (sentence.attempts, sentence.seed) == (2, derived_seed(third_time, 1))
    assert [warning.split(":")[0] for warning in speech.warnings] == [
        "silent_stub", "silent_stub", "sentence 1",
    ]  # fmt: skip
    alone = speaker.synthesize(TEXT, seed=derived_seed(third_time, 1))
    assert speech.audio.tobytes() == alone.audio.tobytes()


@pytest.mark.parametrize("retries", [1, 2, 4])
@pytest.mark.parametrize("chunk_patches", [1, 2, 5, 100])
def test_streamed_equals_whole_with_retries(
    speaker: Synthesizer, third_time: int, retries: int, chunk_patches: int
) -> None:
    options: dict[str, Any] = {"seed": third_time, "retries": retries, "temperature": 0.0}
    whole = speaker.synthesize(TEXT, **options)
    chunks = list(speaker.stream(TEXT, chunk_patches=chunk_patches, **options))
    assert np.concatenate([c.audio for c in chunks]).tobytes() == whole.audio.tobytes()
    assert len(chunks) == -(-whole.steps // chunk_patches)
    assert [c.index for c in chunks] == list(range(len(chunks)))
    assert [c.start for c in chunks] == [0, *np.cumsum([len(c.audio) for c in chunks])[:-1]]
    assert chunks[-1].steps == whole.steps
    assert [c.final for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].warnings == whole.warnings
    assert chunks[-1].ended is not None
    assert chunks[-1].ended.attempts == whole.sentences[0].attempts


def test_nothing_is_given_out_before_an_attempt_is_kept(
    speaker: Synthesizer, third_time: int
) -> None:
    seen: list[tuple[int, int]] = []
    chunks = speaker.stream(
        TEXT, seed=third_time, retries=2,
        on_progress=lambda progress: seen.append((progress.attempt, progress.step)),
    )  # fmt: skip
    next(chunks)
    assert seen == [(attempt, step) for attempt in range(3) for step in range(1, 6)]


def test_retries_change_nothing_that_is_well(speaker: Synthesizer) -> None:
    plain, ready = speaker.synthesize(TEXT), speaker.synthesize(TEXT, retries=3)
    assert plain.audio.tobytes() == ready.audio.tobytes()
    assert plain.warnings == ready.warnings == ()
    assert ready.sentences[0].attempts == 1
    assert 0 < ready.timings.first_audio <= ready.timings.total


def test_retries_are_deterministic(speaker: Synthesizer, third_time: int) -> None:
    speeches = [speaker.synthesize(TEXT, seed=third_time, retries=2) for _ in range(2)]
    assert speeches[0].audio.tobytes() == speeches[1].audio.tobytes()
    assert speeches[0].warnings == speeches[1].warnings


@pytest.mark.usefixtures("never_stops")
def test_runaways_with_attempts_left_are_cut(speaker: Synthesizer) -> None:
    """The first attempts end at the bound, to save time; the last one as the caller asked."""
    bound = bound_of(speaker, TEXT)
    for on_runaway, reason, last in (
        ("report", "max_steps", bound + 5),
        ("stop", "runaway", bound),
    ):
        steps = [0, 0, 0]

        def note(progress: Progress, steps: list[int] = steps) -> None:
            steps[progress.attempt] = progress.step

        speech = speaker.synthesize(
            TEXT, max_steps=bound + 5, retries=2, on_runaway=on_runaway, on_progress=note
        )
        assert steps == [bound, bound, last]
        assert (speech.steps, speech.finish_reason) == (last, reason)
        assert labels(speech) == ["runaway"] * 3 + ["sentence 1"]
        assert speech.sentences[0].attempts == 3


def _cancel_at(attempt: int, step: int) -> tuple[Callable[[Progress], bool], list[Progress]]:
    """A callback that returns False once, and what it saw."""
    seen: list[Progress] = []

    def on_progress(progress: Progress) -> bool:
        seen.append(progress)
        return (progress.attempt, progress.step) != (attempt, step)

    return on_progress, seen


@pytest.mark.parametrize("attempt", [0, 1, 2])
def test_cancelled_during_an_attempt(speaker: Synthesizer, third_time: int, attempt: int) -> None:
    on_progress, seen = _cancel_at(attempt, 2)
    speech = speaker.synthesize(TEXT, seed=third_time, retries=5, on_progress=on_progress)
    assert seen[-1].attempt == attempt
    assert (speech.steps, speech.finish_reason) == (2, "cancelled")
    (sentence,) = speech.sentences
    assert (sentence.attempts, sentence.seed) == (attempt + 1, derived_seed(third_time, attempt))
    assert len(speech.audio) == 2 * speaker.geometry.samples_per_patch
    assert labels(speech).count("silent_stub") == attempt


@pytest.mark.usefixtures("all_is_silence")
def test_cancelled_at_the_last_step_of_an_attempt(speaker: Synthesizer) -> None:
    """Who says stop at the very step where the model does too has said stop."""
    on_progress, seen = _cancel_at(0, 5)
    speech = speaker.synthesize(TEXT, retries=3, on_progress=on_progress)
    assert len(seen) == 5
    assert speech.sentences[0].attempts == 1


@pytest.mark.usefixtures("third_time")
def test_each_sentence_has_its_own_attempts(speaker: Synthesizer) -> None:
    """Every sentence starts from the request's seed again."""
    speech = speaker.synthesize(LONG, split_limit=30, retries=3, seed=4)
    for sentence in speech.sentences:
        alone = speaker.synthesize(sentence.text, retries=3, seed=4)
        assert sentence.attempts == alone.sentences[0].attempts
        assert sentence.seed == derived_seed(4, sentence.attempts - 1)
        part = speech.audio[sentence.first_sample :][: sentence.samples]
        assert part.tobytes() == alone.audio.tobytes()


def test_derived_seeds() -> None:
    seeds = [0, 1, 2**32, 2**32 - 1, LARGEST_SEED]
    for seed in seeds:
        assert derived_seed(seed, 0) == seed
    derived = [derived_seed(seed, attempt) for seed in seeds for attempt in range(20)]
    assert len(set(derived)) == len(derived)
    assert all(0 <= seed <= LARGEST_SEED for seed in derived)
    assert derived == [derived_seed(seed, attempt) for seed in seeds for attempt in range(20)]
    assert max(derived) > 2**62, "the upper word is not used"
    assert derived_seed(np.uint64(7), 3) == derived_seed(7, 3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="seed"):
        derived_seed(-1, 1)


def test_derived_seeds_are_those_of_this_version() -> None:
    """Recorded: a kept attempt can be spoken again by its seed in years to come."""
    assert [derived_seed(0, 1), derived_seed(0, 2), derived_seed(12345, 1)] == RECORDED


RECORDED = [5453943974891398022, 2255287266077590735, 12651040778188199660]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"retries": -1}, "retries"),
        ({"retries": 1.5}, "retries"),
        ({"retries": True}, "retries"),
        ({"retries": None}, "retries"),
        ({"on_runaway": "cut"}, "on_runaway"),
        ({"on_runaway": None}, "on_runaway"),
        ({"on_runaway": True}, "on_runaway"),
    ],
)
def test_bad_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(UserError, match=match):
        Request(TEXT, **options)


def test_recorded_noise_cannot_be_tried_again(speaker: Synthesizer) -> None:
    g = speaker.geometry
    noise = RecordedNoise(np.zeros((3, g.patch, g.latent_dim), np.float32))
    with pytest.raises(UserError, match="retries and recorded noise"):
        speaker.synthesize(TEXT, noise=noise, retries=1)


@pytest.mark.parametrize("answer", [False, np.False_])
def test_any_false_cancels(speaker: Synthesizer, answer: Any) -> None:
    speech = speaker.synthesize("Hello there.", on_progress=lambda progress: answer)
    assert (speech.finish_reason, speech.steps) == ("cancelled", 1)
