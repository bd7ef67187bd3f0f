"""Long text, sentence by sentence: places, one voice and seed, no gaps, bounded memory."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Folders
from tests.trt_runtime.clones import A
from trt_runtime import Progress, RecordedNoise, Voice, load
from trt_runtime.audio_decoder import AudioDecoder
from trt_runtime.errors import NumericError, UserError
from trt_runtime.loop import Run
from trt_runtime.speech import Speech
from trt_runtime.synthesizer import Synthesizer
from trt_runtime.talker import Talker

TEXT = "  Dr. Smith is the first of them. The second is here!  And so,\nat last, is the third?\n"
SENTENCES = [
    "Dr. Smith is the first of them.",
    "The second is here!",
    "And so,\nat last, is the third?",
]
#: Each sentence of TEXT alone.
SPLIT: dict[str, Any] = {"split_limit": 33, "seed": 7}
#: Ends of both kinds: some of these sentences stop by themselves in fewer steps, some do not.
ENDS = [SPLIT, SPLIT | {"max_steps": 8}, SPLIT | {"max_steps": 3}]


@pytest.fixture(scope="module")
def reader(dense: Folders) -> Iterator[Synthesizer]:
    with load(dense.engines, threads=1) as synthesizer:
        yield synthesizer


@pytest.fixture(scope="module")
def voice(reader: Synthesizer) -> Voice:
    return reader.encode_voice(A, "The words of the reference.")


def assert_contiguous(synthesizer: Synthesizer, speech: Speech) -> None:
    position = 0
    for sentence in speech.sentences:
        assert sentence.first_sample == position
        assert sentence.samples == sentence.steps * synthesizer.geometry.samples_per_patch
        position += sentence.samples
    assert position == len(speech.audio)
    assert speech.steps == sum(sentence.steps for sentence in speech.sentences)


@pytest.mark.parametrize("options", ENDS)
def test_places(reader: Synthesizer, options: dict[str, Any]) -> None:
    speech = reader.synthesize(TEXT, **options)
    assert [sentence.text for sentence in speech.sentences] == SENTENCES
    for sentence in speech.sentences:
        assert TEXT[sentence.start : sentence.end] == sentence.text
        assert (sentence.seed, sentence.attempts) == (7, 1)
    assert_contiguous(reader, speech)
    assert speech.timings.audio == pytest.approx(speech.duration)
    assert 0 < speech.timings.first_audio < speech.timings.total


def test_the_ends_differ(reader: Synthesizer) -> None:
    """Or the cases above would be one."""
    reasons = [
        {s.finish_reason for s in reader.synthesize(TEXT, **options).sentences}
        for options in (ENDS[0], ENDS[2])
    ]
    assert reasons == [{"stop"}, {"max_steps"}]


@pytest.mark.parametrize("how", ["plain", "voice", "reference", "zero", "sample", "warm"])
def test_a_sentence_is_what_it_is_alone(reader: Synthesizer, voice: Voice, how: str) -> None:
    """The same seed, voice and history for each, and nothing left of the one before."""
    options: dict[str, Any] = {
        "plain": {},
        "voice": {"voice": voice},
        "reference": {"reference": A, "reference_text": "The words of the reference."},
        "zero": {"speaker_embedding": "zero"},
        "sample": {"voice": voice, "posterior": "sample"},
        "warm": {"temperature": 0.8},
    }[how] | {"max_steps": 8}
    speech = reader.synthesize(TEXT, trace=True, **SPLIT, **options)
    assert len(speech.sentences) == 3
    for sentence in speech.sentences:
        alone = reader.synthesize(sentence.text, split_limit=None, seed=7, trace=True, **options)
        part = speech.audio[sentence.first_sample :][: sentence.samples]
        assert part.tobytes() == alone.audio.tobytes()
        assert sentence.finish_reason == alone.finish_reason
        assert sentence.trace is not None
        assert alone.trace is not None
        for field in dataclasses.fields(alone.trace):
            np.testing.assert_array_equal(
                getattr(sentence.trace, field.name), getattr(alone.trace, field.name)
            )


def test_sentences_with_the_same_words_sound_the_same(reader: Synthesizer) -> None:
    speech = reader.synthesize("Word for word the same. " * 3, **SPLIT)
    parts = {speech.audio[s.first_sample :][: s.samples].tobytes() for s in speech.sentences}
    assert (len(speech.sentences), len(parts)) == (3, 1)


def test_traces_are_each_sentences_own(reader: Synthesizer) -> None:
    speech = reader.synthesize(TEXT, **SPLIT, trace=True)
    assert speech.trace is None
    assert all(sentence.trace is not None for sentence in speech.sentences)
    untraced = reader.synthesize(TEXT, **SPLIT)
    assert all(sentence.trace is None for sentence in untraced.sentences)
    whole = reader.synthesize(TEXT, seed=7, trace=True)
    assert whole.trace is whole.sentences[0].trace is not None


# Streams.


@pytest.mark.parametrize("options", ENDS)
@pytest.mark.parametrize("chunk_patches", [1, 2, 3, 5, 1000])
def test_streamed_equals_whole(
    reader: Synthesizer, options: dict[str, Any], chunk_patches: int
) -> None:
    whole = reader.synthesize(TEXT, **options)
    chunks = list(reader.stream(TEXT, chunk_patches=chunk_patches, **options))
    assert np.concatenate([c.audio for c in chunks]).tobytes() == whole.audio.tobytes()
    lengths = [len(chunk.audio) for chunk in chunks]
    assert min(lengths) > 0
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.start for chunk in chunks] == [0, *np.cumsum(lengths)[:-1]]
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == whole.finish_reason
    assert chunks[-1].warnings == whole.warnings
    assert all(chunk.seed == 7 for chunk in chunks)
    steps = np.diff([0, *(chunk.steps for chunk in chunks)])
    assert (steps > 0).all()
    assert (steps <= chunk_patches).all()
    assert chunks[-1].steps == whole.steps


@pytest.mark.parametrize("chunk_patches", [1, 4, 1000])
def test_chunks_know_their_sentence(reader: Synthesizer, chunk_patches: int) -> None:
    whole = reader.synthesize(TEXT, **SPLIT)
    chunks = list(reader.stream(TEXT, chunk_patches=chunk_patches, **SPLIT))
    ended = [chunk.ended for chunk in chunks if chunk.ended is not None]
    assert [dataclasses.asdict(e) for e in ended] == [
        dataclasses.asdict(s) for s in whole.sentences
    ]
    for number, sentence in enumerate(whole.sentences):
        of_it = [chunk for chunk in chunks if chunk.sentence == number]
        assert [chunk.ended is not None for chunk in of_it] == [False] * (len(of_it) - 1) + [True]
        assert of_it[0].start == sentence.first_sample
        assert sum(len(chunk.audio) for chunk in of_it) == sentence.samples
        assert len(of_it) == -(-sentence.steps // chunk_patches)
    assert [chunk.sentence for chunk in chunks] == sorted(chunk.sentence for chunk in chunks)


def test_audio_comes_with_the_first_patch(reader: Synthesizer) -> None:
    """Of a text of many sentences as early as of a short one."""
    seen: list[Progress] = []
    chunks = reader.stream(TEXT * 20, **SPLIT, on_progress=seen.append)
    assert next(chunks).sentence == 0
    assert [(progress.sentence, progress.step) for progress in seen] == [(0, 1)]
    assert seen[0].sentences == 60


def test_progress_counts_sentences(reader: Synthesizer) -> None:
    seen: list[Progress] = []
    speech = reader.synthesize(TEXT, **SPLIT, on_progress=seen.append)
    assert [(p.sentence, p.step) for p in seen] == [
        (number, step)
        for number, sentence in enumerate(speech.sentences)
        for step in range(1, sentence.steps + 1)
    ]
    assert {(p.sentences, p.attempt, p.max_steps) for p in seen} == {(3, 0, 200)}
    assert [p.seconds for p in seen] == sorted(p.seconds for p in seen)


# Cancelled.


def test_cancelled_in_the_middle_sentence(reader: Synthesizer) -> None:
    whole = reader.synthesize(TEXT, **SPLIT)

    def until(progress: Progress) -> bool:
        return (progress.sentence, progress.step) < (1, 2)

    speech = reader.synthesize(TEXT, **SPLIT, on_progress=until)
    assert speech.finish_reason == "cancelled"
    assert [s.finish_reason for s in speech.sentences] == ["stop", "cancelled"]
    assert_contiguous(reader, speech)
    first = whole.sentences[0].samples
    assert speech.audio[:first].tobytes() == whole.audio[:first].tobytes()
    assert speech.sentences[1].steps == 2
    for size in (1, 3, 100):
        chunks = list(reader.stream(TEXT, chunk_patches=size, **SPLIT, on_progress=until))
        assert np.concatenate([c.audio for c in chunks]).tobytes() == speech.audio.tobytes()
        assert chunks[-1].final
        assert chunks[-1].finish_reason == "cancelled"
        assert [c.final for c in chunks[:-1]] == [False] * (len(chunks) - 1)
        assert chunks[-1].ended is not None
        assert chunks[-1].ended.finish_reason == "cancelled"


def test_cancelled_at_the_last_step_of_a_sentence(reader: Synthesizer) -> None:
    """A caller who says it once, where the sentence ends anyway, hears no further one."""
    last = reader.synthesize(TEXT, **SPLIT).sentences[0].steps
    speech = reader.synthesize(
        TEXT, **SPLIT, on_progress=lambda p: (p.sentence, p.step) != (0, last)
    )
    assert len(speech.sentences) == 1
    assert speech.finish_reason == "cancelled"
    chunks = list(
        reader.stream(TEXT, **SPLIT, on_progress=lambda p: (p.sentence, p.step) != (0, last))
    )
    assert (chunks[-1].final, chunks[-1].sentence) == (True, 0)


def test_a_stream_left_in_a_later_sentence_frees_its_state(
    reader: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a sentence's decoder is freed when the next one begins; the talker's slot serves all."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0
    for kind in (AudioDecoder, Talker):
        original = kind.__init__

        def noting(self: Any, *arguments: Any, original: Any = original) -> None:
            nonlocal most
            original(self, *arguments)
            alive.add(self)
            most = max(most, len(alive))

        monkeypatch.setattr(kind, "__init__", noting)
    chunks = reader.stream(TEXT * 3, **SPLIT, chunk_patches=2)
    for chunk in chunks:
        if chunk.sentence == 5:
            break
    # The talker and one sentence's decoder, and that of the one before until it is replaced.
    assert 2 <= most <= 3
    del chunks, chunk
    gc.collect()
    assert not alive


# What is refused, and when.


def test_recorded_noise_is_for_one_sentence(reader: Synthesizer) -> None:
    g = reader.geometry
    noise = RecordedNoise(np.zeros((3, g.patch, g.latent_dim), np.float32))
    for call in (reader.synthesize, reader.stream):
        with pytest.raises(UserError, match="3 sentences") as caught:
            call(TEXT, split_limit=33, noise=noise)
        assert "split_limit=None" in caught.value.do
    assert reader.synthesize(TEXT, noise=noise, max_steps=3).steps == 3
    assert reader.synthesize(TEXT * 9, split_limit=None, noise=noise, max_steps=3).steps == 3


@pytest.mark.parametrize("limit", [19, 0, -1, 1.5, True, "200", float("inf")])
def test_bad_limits(reader: Synthesizer, limit: Any) -> None:
    with pytest.raises(UserError, match="split_limit"):
        reader.synthesize(TEXT, split_limit=limit)


def test_a_text_longer_than_the_context(reader: Synthesizer) -> None:
    """What cannot be spoken in one go can be sentence by sentence."""
    text = "word " * 3000
    with pytest.raises(UserError, match="too long") as caught:
        reader.synthesize(text, split_limit=None)
    assert "split_limit" in caught.value.do
    with pytest.raises(UserError, match="too long"):
        reader.synthesize(text, split_limit=5000)
    chunks = reader.stream(text, max_steps=1)
    assert {chunk.sentence for chunk in itertools.islice(chunks, 5)} == set(range(5))


def test_a_late_sentence_is_checked_before_the_first_is_spoken(
    reader: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Run, "audio", lambda self, batch: pytest.fail("spoken before it was checked")
    )
    text = f"{TEXT}{'…' * 5000}"
    with pytest.raises(UserError, match=r"too long|too little room"):
        reader.stream(text, **SPLIT)


def test_not_a_number_in_a_later_sentence(
    reader: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sentence was given out; the error says which component, and nothing follows."""
    original = Talker.prefill
    calls = itertools.count()

    def failing(self: Talker, embeddings: np.ndarray, slot: int) -> Any:
        return original(self, embeddings * np.nan if next(calls) else embeddings, slot)

    monkeypatch.setattr(Talker, "prefill", failing)
    heard = []
    with pytest.raises(NumericError, match=r"talker .* step 1\."):
        heard.extend(reader.stream(TEXT, **SPLIT))
    assert {chunk.sentence for chunk in heard} == {0}
    assert heard[-1].ended is not None
    assert not any(chunk.final for chunk in heard)


def test_the_gravest_end_is_the_whole_ones(reader: Synthesizer) -> None:
    whole = reader.synthesize(TEXT, **SPLIT)
    steps = sorted(sentence.steps for sentence in whole.sentences)
    assert whole.finish_reason == "stop"
    limit = steps[-1] - 1
    speech = reader.synthesize(TEXT, **SPLIT, max_steps=limit)
    assert {s.finish_reason for s in speech.sentences} == {"stop", "max_steps"}, steps
    assert speech.finish_reason == "max_steps"


def test_normalised_sentences_keep_their_places(
    reader: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "trt_runtime.text_normalization.spell_out", lambda text: text.replace("3", "three")
    )
    text = "He had 3 of 333 reasons. She had 33 of them, too."
    speech = reader.synthesize(text, split_limit=30, normalize=True, max_steps=2)
    assert [s.text for s in speech.sentences] == [
        "He had three of threethreethree reasons.",
        "She had threethree of them, too.",
    ]
    assert [text[s.start : s.end] for s in speech.sentences] == [
        "He had 3 of 333 reasons.", "She had 33 of them, too.",
    ]  # fmt: skip
    spoken = reader.synthesize(speech.sentences[0].text, split_limit=None, max_steps=2)
    assert speech.audio[: len(spoken.audio)].tobytes() == spoken.audio.tobytes()


# Memory.

# VmHWM, not getrusage: that one also counts the process that started this one.
_CHILD = """
import json, sys
from pathlib import Path
import trt_runtime

folder, way, text, steps = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
with trt_runtime.load(folder, threads=1) as synthesizer:
    options = {"max_steps": steps, "min_steps": steps}
    if way == "stream":
        last = samples = 0
        for chunk in synthesizer.stream(text, **options):
            samples += len(chunk.audio)
            last = chunk.sentence
        sentences = last + 1
    else:
        speech = synthesizer.synthesize(text, **options)
        samples, sentences = len(speech.audio), len(speech.sentences)
        spans = [text[s.start : s.end] for s in speech.sentences]
        assert "".join("".join(spans).split()) == "".join(text.split())
        position = 0
        for sentence in speech.sentences:
            assert sentence.first_sample == position
            position += sentence.samples
        assert position == samples
    seconds = samples / synthesizer.sample_rate
status = Path("/proc/self/status").read_text().splitlines()
peak = int(next(line.split()[1] for line in status if line.startswith("VmHWM:"))) * 1024
print(json.dumps({"megabytes": peak / 1e6, "seconds": seconds, "sentences": sentences}))
"""

_SENTENCE = "The rain had stopped at last, and nobody in the whole long street had gone to bed. "
#: 3,000 characters, which are some 200 s of speech.
LONG = (_SENTENCE * 40)[:3000]
STEPS = 20


def peak(folder: Path, way: str, text: str) -> dict[str, float]:
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(folder), way, text, str(STEPS)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    found: dict[str, float] = json.loads(child.stdout)
    print(f"{way}, {len(text)} characters: {found}")
    return found


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says what was resident")
def test_a_long_text_takes_little_more_memory_than_a_short_one(dense: Folders) -> None:
    """At most 100 MB more for 3,000 characters; streamed, none that grows with the text."""
    for way, most in (("stream", 50), ("synthesize", 100)):
        short = peak(dense.engines, way, _SENTENCE)
        long = peak(dense.engines, way, LONG)
        assert short["sentences"] == 1
        assert long["sentences"] >= 15
        assert long["seconds"] > 150
        assert long["megabytes"] - short["megabytes"] < most, way
