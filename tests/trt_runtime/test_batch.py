"""Requests that step together: each is what it is alone, whoever joins and leaves beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.conftest import Folders
from tests.goldens import relative_error
from trt_runtime import load
from trt_runtime.batch import Batch, Slot
from trt_runtime.errors import NumericError
from trt_runtime.speaking import Speaking
from trt_runtime.speech import AudioChunk, Speech
from trt_runtime.synthesizer import Synthesizer
from trt_runtime.talker import Talker

#: float32 sums in another order: a row alone goes through other kernels than a row among others.
#: Steps feed back into each other, so that a difference of one step is carried on.
TOLERANCE = 1e-5
SLOTS = 5


@pytest.fixture(scope="module", params=["dense", "moe"])
def speaker(request: pytest.FixtureRequest) -> Iterator[Synthesizer]:
    folders: Folders = request.getfixturevalue(request.param)
    with load(folders.engines, threads=1) as synthesizer:
        yield synthesizer


def options_of(number: int) -> dict[str, Any]:
    """A request like no other: its length, guidance, noise and prompt follow from its number."""
    rng = np.random.default_rng(number)
    return {
        "text": "Say " + " ".join("word" for _ in range(int(rng.integers(1, 30)))),
        "seed": number,
        "min_steps": 100,
        "max_steps": int(rng.integers(1, 40)),
        "guidance": float(rng.choice([0.0, 1.0, 2.0, 3.5])),
        "temperature": float(rng.choice([0.0, 1.0])),
        "trace": True,
    }


@dataclass
class Beside:
    """A request in a batch, with what has come of it."""

    speaking: Speaking
    chunks: Iterator[AudioChunk | None]
    heard: list[np.ndarray] = field(default_factory=list)

    def advance(self) -> bool:
        """To its next step, or its end: whether it needs a step."""
        for chunk in self.chunks:
            if chunk is None:
                return True
            self.heard.append(chunk.audio)
        return False


def begin(speaker: Synthesizer, batch: Batch, options: dict[str, Any]) -> Beside:
    given = dict(options)
    speaking = speaker._start(given.pop("text"), given)  # type: ignore[arg-type]
    return Beside(speaking, speaking.chunks_in(batch, chunk_patches=1))


def new_batch(speaker: Synthesizer, slots: int = SLOTS) -> Batch:
    opened = speaker._require_open()
    return Batch(opened.backend, opened.manifest.geometry, slots)


def alone(speaker: Synthesizer, options: dict[str, Any]) -> Speech:
    given = dict(options)
    return speaker.synthesize(given.pop("text"), **given)


def assert_the_same(found: Speech, expected: Speech, what: str) -> None:
    assert found.steps == expected.steps, what
    assert found.finish_reason == expected.finish_reason, what
    assert found.trace is not None
    assert expected.trace is not None
    for name in ("latents", "hidden", "stop_probabilities"):
        error = relative_error(getattr(found.trace, name), getattr(expected.trace, name))
        assert error <= TOLERANCE, f"{what}: {name} off by {error:.1e}"
    error = relative_error(found.audio, expected.audio)
    assert error <= TOLERANCE, f"{what}: audio off by {error:.1e}"


def test_two_hundred_steps_of_joining_and_leaving(speaker: Synthesizer) -> None:
    """At random: some end by themselves, some are left; the batch is full, half empty, empty."""
    rng = np.random.default_rng(7)
    batch = new_batch(speaker)
    beside: dict[int, Beside] = {}
    begun, compared, fullest, left = 0, 0, 0, 0
    for step in range(200):
        while len(beside) < SLOTS and rng.random() < 0.3:
            beside[begun] = begin(speaker, batch, options_of(begun))
            begun += 1
        for number in list(beside):
            request = beside[number]
            if not request.advance():
                found = request.speaking.speech(request.heard)
                assert_the_same(found, alone(speaker, options_of(number)), f"request {number}")
                compared += 1
                del beside[number]
            elif rng.random() < 0.01:
                request.chunks.close()  # type: ignore[attr-defined]
                left += 1
                del beside[number]
        assert len(batch) == len(beside), f"step {step}: a slot leaks"
        rows = sorted(slot.row for slot in batch._taken)
        assert rows == list(range(len(beside)))
        fullest = max(fullest, len(beside))
        if beside:
            batch.step()
    assert fullest == SLOTS
    assert compared >= 20
    assert left >= 2


def test_identical_rows_are_equal_bit_for_bit(speaker: Synthesizer) -> None:
    """Three that are the same and two others between them, whatever rows they lie in."""
    same, other = options_of(3) | {"max_steps": 12}, options_of(4) | {"max_steps": 9}
    batch = new_batch(speaker)
    requests = [begin(speaker, batch, options) for options in (same, other, same, other, same)]
    running = list(requests)
    while running := [request for request in running if request.advance()]:
        batch.step()
    found = [request.speaking.speech(request.heard) for request in requests]
    for first, others in ((found[0], (found[2], found[4])), (found[1], (found[3],))):
        for second in others:
            np.testing.assert_array_equal(second.audio, first.audio)
            assert second.trace is not None
            assert first.trace is not None
            np.testing.assert_array_equal(second.trace.hidden, first.trace.hidden)


class Rows:
    """Remembers which row's contents lie where, in place of talker and tail."""

    def __init__(self, slots: int) -> None:
        self.rows: list[int | None] = [None] * slots
        self.decoded: list[list[int | None]] = []

    def move(self, source: int, to: int) -> None:
        self.rows[to] = self.rows[source]

    def decode(self, count: int) -> None:
        self.decoded.append(self.rows[:count])

    def start(self, slot: int, **numbers: Any) -> None:
        pass

    def run(self, initial: np.ndarray, diffusion: np.ndarray) -> None:
        pass


def test_what_lies_in_a_row_goes_where_the_slot_goes() -> None:
    """Against a plain list, over a thousand random joins, leaves and steps."""
    rng = np.random.default_rng(1)
    batch = Batch.__new__(Batch)
    rows = Rows(6)
    batch.slots, batch._taken, batch._decoding = 6, [], 0
    batch.talker = batch.tail = rows  # type: ignore[assignment]
    alive: dict[int, tuple[Slot, bool]] = {}
    noise = np.zeros((1, 1), np.float32)
    for number in range(1000):
        if len(alive) < 6 and rng.random() < 0.5:
            slot = batch.join(guidance=0, noise_scale=0, history=noise)
            rows.rows[slot.row] = number
            slot.draw(noise, noise)
            alive[number] = (slot, False)
        if alive and rng.random() < 0.4:
            gone = int(rng.choice(list(alive)))
            alive.pop(gone)[0].leave()
        assert {rows.rows[slot.row]: slot.row for slot, _ in alive.values()} == {
            name: slot.row for name, (slot, _) in alive.items()
        }
        if alive and rng.random() < 0.5:
            batch.step()
            stepped = {name for name, (_, old) in alive.items() if old}
            if stepped:
                assert set(rows.decoded[-1]) == stepped
            alive = {name: (slot, True) for name, (slot, _) in alive.items()}
    assert len(rows.decoded) > 100


def test_a_full_batch_takes_no_more(speaker: Synthesizer) -> None:
    batch = new_batch(speaker, 1)
    first = begin(speaker, batch, options_of(1))
    assert first.advance()
    with pytest.raises(IndexError, match="taken"):
        begin(speaker, batch, options_of(2)).advance()


def test_not_a_number_in_one_slot_stays_there(
    speaker: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbours are what they are alone, and so is who gets its slot after it."""
    options = [options_of(number) | {"max_steps": 8} for number in (11, 12, 13)]
    expected = [alone(speaker, given) for given in options]
    batch = new_batch(speaker, 2)
    neighbour, bad = (begin(speaker, batch, given) for given in options[:2])
    original = Talker.prefill

    def damaging(self: Talker, embeddings: np.ndarray, slot: int) -> np.ndarray:
        return original(self, embeddings * (np.nan if slot == 1 else 1.0), slot)

    with monkeypatch.context() as patch:
        patch.setattr(Talker, "prefill", damaging)
        assert neighbour.advance()
        assert bad.advance()
    batch.step()
    with pytest.raises(NumericError, match="talker"):
        bad.advance()
    assert neighbour.advance()
    after = begin(speaker, batch, options[2])
    running = [neighbour, after]
    assert after.advance()
    batch.step()
    while running := [request for request in running if request.advance()]:
        batch.step()
    for request, wanted in ((neighbour, expected[0]), (after, expected[2])):
        assert_the_same(request.speaking.speech(request.heard), wanted, "beside NaN")
