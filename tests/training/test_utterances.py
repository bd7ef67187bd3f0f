"""Rows of utterances: the prompts of the runtime, the pairs, and what each bucket takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from training.shape import sizes_of
from training.speech import DEFAULT_VOICE
from training.tokenizer import demonstration_tokenizer
from training.utterances import FAMILY, Row, Utterances, rows_of
from training.voice_stage import buckets_of
from trt_runtime.prompt import GRAMMARS, SPEECH_PROMPT, Prompt, build_prompt
from trt_runtime.text_tokenizer import TextTokenizer

OTHER_VOICE = 1 - DEFAULT_VOICE
TEXTS = ["one of them", "two, of them!", "In 1905?", "café", "the last", "and more"]
VOICES = [0, 0, 1, 1, 1, 0]
FIRST = [0, 8, 13, 21, 30, 34, 38]


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return demonstration_tokenizer(320)


def shard() -> dict[str, np.ndarray]:
    return {
        "texts": np.array(TEXTS), "voices": np.array(VOICES, np.uint8), "first": np.array(FIRST),
    }  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """Utterance `index`, alone or behind the one before it."""

    index: int
    before: bool


def request(tokenizer: TextTokenizer, wanted: Wanted, speakers: int, patches: int) -> Prompt:
    """What the runtime makes for a request with `patches` of a recording."""
    return build_prompt(
        tokenizer, GRAMMARS[FAMILY], prompt=SPEECH_PROMPT, text=TEXTS[wanted.index],
        speakers=speakers, prompt_text=TEXTS[wanted.index - 1] if wanted.before else None,
        prompt_patches=patches if wanted.before else 0,
    )  # fmt: skip


def rows(tokenizer: TextTokenizer, patch: int, first: int = 100) -> list[Row]:
    return rows_of(shard(), tokenizer, sizes_of(patch, patch)[1], first)


#: In the order of the rows.
EVERY = [
    Wanted(0, False), Wanted(1, True), Wanted(1, False), Wanted(2, False), Wanted(3, True),
    Wanted(3, False), Wanted(4, True), Wanted(4, False), Wanted(5, False),
]  # fmt: skip


def test_neighbours_of_one_voice_are_rows_too(tokenizer: TextTokenizer) -> None:
    made = rows(tokenizer, 1)
    assert len(made) == len(EVERY)
    for row, wanted in zip(made, EVERY, strict=True):
        start = FIRST[wanted.index - wanted.before]
        assert row.first == 100 + start
        assert row.steps == FIRST[wanted.index + 1] - start
        assert row.speakers == VOICES[wanted.index]
        assert row.lengths == len(row.ids)


def test_pairs_begin_a_patch_anew(tokenizer: TextTokenizer) -> None:
    """With patches of 4 the second must begin where a patch does; the last patch is filled up."""
    made = rows(tokenizer, 4)
    assert [row.first - 100 for row in made] == [0, 0, 8, 13, 13, 21, 30, 34]
    assert [row.steps for row in made] == [2, 4, 2, 2, 5, 3, 1, 1]


@pytest.mark.parametrize("seed", range(8))
def test_ids_are_those_of_the_runtimes_prompt(tokenizer: TextTokenizer, seed: int) -> None:
    for row, wanted in zip(rows(tokenizer, 1, first=seed), EVERY, strict=True):
        prompt = request(tokenizer, wanted, int(row.slots >= 0), patches=5)
        if wanted.before:
            # A clone's recording comes behind the ids: the first of its patches is what is trained.
            assert prompt.patch_slots == tuple(range(row.lengths, row.lengths + 5))
            assert len(prompt.ids) == row.lengths + 5
        assert row.ids.tolist() == prompt.ids[: row.lengths].tolist()
        if not wanted.before:
            assert row.lengths == len(prompt.ids)
        assert prompt.speaker_slots == (() if row.slots < 0 else (row.slots,))


def test_only_the_default_voice_goes_without_its_slot(tokenizer: TextTokenizer) -> None:
    shares: dict[tuple[bool, bool], list[bool]] = {}
    for seed in range(60):
        for row, wanted in zip(rows(tokenizer, 1, first=seed), EVERY, strict=True):
            key = (row.speakers == DEFAULT_VOICE, wanted.before)
            shares.setdefault(key, []).append(row.slots >= 0)
    share = {key: np.mean(slots) for key, slots in shares.items()}
    assert share[False, False] == 1.0
    assert 0.25 < share[True, False] < 0.55
    assert 0.5 < share[True, True] < 0.9
    assert 0.55 < share[False, True] < 0.85
    made = [row.slots for row in rows(tokenizer, 1, 3)]
    assert made == [row.slots for row in rows(tokenizer, 1, 3)]


def test_buckets_take_what_fits_and_no_more() -> None:
    for patch in (1, 4):
        geometry = sizes_of(patch, patch)[1]
        buckets = buckets_of(geometry, 1.0)
        assert [bucket.tokens for bucket in buckets] == [80, 144, 224]
        # Up to 14.4 s of speech, and within what the exported voice can hold.
        assert [bucket.patches * patch for bucket in buckets] == [48, 120, 180]
        assert all(b.tokens + b.patches <= geometry.cache_length for b in buckets)
        small = buckets_of(geometry, 1e-6)
        assert [bucket.batch for bucket in small] == [2, 2, 2]
        bucket = buckets[0]
        assert bucket.takes(bucket.tokens, bucket.patches)
        assert not bucket.takes(bucket.tokens + 1, bucket.patches)
        assert not bucket.takes(bucket.tokens, bucket.patches + 1)


def empty(most: int, tokens: int) -> Utterances:
    return Utterances.empty(
        most, tokens, torch.zeros(9, 24), torch.zeros(36, dtype=torch.uint8), torch.zeros(2, 1, 192)
    )


def test_rows_fill_the_buffers_in_order(tokenizer: TextTokenizer) -> None:
    made = rows(tokenizer, 1)
    utterances = empty(20, 224)
    utterances.add(made[:4])
    utterances.add([])
    utterances.add(made[4:])
    assert int(utterances.count) == len(made)
    for index, row in enumerate(made):
        assert utterances.ids[index, : row.lengths].tolist() == row.ids.tolist()
        assert not utterances.ids[index, row.lengths :].any()
        for name in ("lengths", "slots", "speakers", "steps", "first"):
            assert int(getattr(utterances, name)[index]) == getattr(row, name)
    assert not utterances.lengths[len(made) :].any()


def test_rows_beyond_the_buffers_are_left_out(tokenizer: TextTokenizer) -> None:
    made = rows(tokenizer, 1)
    utterances = empty(3, 224)
    utterances.add(made[:2])
    utterances.add(made[2:])
    utterances.add(made)
    assert int(utterances.count) == 3
    assert utterances.first.tolist() == [row.first for row in made[:3]]
