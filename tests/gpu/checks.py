"""What a plugin loop must hold, on a GPU or under Triton's interpreter: no test by itself."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from benchmarks.talker_reference import feed_forward, random_weights, reference
from trt_runtime.plugins.groups import Groups
from trt_runtime.plugins.loop import PluginLoop
from trt_runtime.plugins.sizes import TalkerSizes
from trt_runtime.plugins.tiles import Tile, tiles_of

#: Weights, caches and the inputs of products are bfloat16 here and float32 in the reference.
TOLERANCE = 0.02
#: A row whose expert was a near tie in the reference may choose the other one, and then differs.
ROUTED_SHARE = 0.9


@dataclass
class Talker:
    """Random weights of `sizes` on a device, and inputs in float32."""

    sizes: TalkerSizes
    device: str
    seed: int = 0
    weights: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.weights = dict(random_weights(self.sizes, self.seed, self.device))
        self._generator = torch.Generator(self.device).manual_seed(self.seed + 1)

    def inputs(self, length: int) -> Tensor:
        """(length, hidden) float32."""
        shape = (length, self.sizes.hidden)
        return torch.randn(shape, generator=self._generator, device=self.device)

    def loop(self, slots: int, cache_length: int, *prefill_chunks: int) -> PluginLoop:
        return PluginLoop(
            self.sizes, self.weights, slots=slots, cache_length=cache_length,
            prefill_chunks=prefill_chunks or (16,),
        )  # fmt: skip

    def expected(self, x: Tensor) -> Tensor:
        return reference(self.sizes, self.weights, x)[0]


def error(found: Tensor, expected: Tensor) -> float:
    return ((found.flatten() - expected.flatten()).norm() / expected.norm()).item()


def check_errors(talker: Talker, errors: list[float]) -> None:
    close = sum(value < TOLERANCE for value in errors) / len(errors)
    assert close >= (1.0 if talker.sizes.experts is None else ROUTED_SHARE), errors


def follow(loop: PluginLoop, slot: int, x: Tensor, prompt: int) -> list[Tensor]:
    """hidden of the prompt's last row and of each row after it, the slot alone."""
    loop.prefill(slot, x[:prompt])
    found = [loop.hidden[slot, 0].clone()]
    for row in x[prompt:]:
        loop.embedding[slot, 0] = row
        loop.decode(slot + 1)
        found.append(loop.hidden[slot, 0].clone())
    return found


def prefill_and_decode_are_the_reference(
    talker: Talker, prompt: int, steps: int, *chunks: int
) -> None:
    x = talker.inputs(prompt + steps)
    expected = talker.expected(x)[prompt - 1 :]
    loop = talker.loop(1, prompt + steps, *(chunks or (16, 64, 256)))
    found = follow(loop, 0, x, prompt)
    check_errors(talker, [error(*pair) for pair in zip(found, expected, strict=True)])
    assert loop.position(0) == prompt + steps


def identical_rows_are_equal_and_so_are_repeats(talker: Talker, slots: int, steps: int) -> None:
    x = talker.inputs(20 + steps)
    runs = []
    for _ in range(2):
        loop = talker.loop(slots, 20 + steps)
        for slot in range(slots):
            loop.prefill(slot, x[:20])
        for row in x[20:]:
            loop.embedding[:] = row
            loop.decode(slots)
            assert all(torch.equal(loop.hidden[0], other) for other in loop.hidden)
        runs.append(loop.hidden.clone())
    assert torch.equal(*runs)


def alone_is_as_in_a_batch(talker: Talker, slots: int, steps: int) -> None:
    x = [talker.inputs(10 + slot + steps) for slot in range(slots)]
    single, batch = talker.loop(1, 10 + slots + steps), talker.loop(slots, 10 + slots + steps)
    alone = follow(single, 0, x[0], 10)
    for slot, rows in enumerate(x):
        batch.prefill(slot, rows[:-steps])
    errors = [error(batch.hidden[0], alone[0])]
    for step in range(steps):
        for slot, rows in enumerate(x):
            batch.embedding[slot, 0] = rows[len(rows) - steps + step]
        batch.decode(slots)
        errors.append(error(batch.hidden[0], alone[1 + step]))
    check_errors(talker, errors)


def a_larger_bucket_leaves_other_slots_alone(
    talker: Talker, slots: int, count: int, prompt: int = 20
) -> None:
    """slots is the bucket that a step of `count` runs in."""
    x = talker.inputs(prompt + 1)
    loop = talker.loop(slots, 32)
    for slot in range(slots):
        loop.prefill(slot, x[:prompt])
        loop.embedding[slot, 0] = x[prompt]
    hidden, embedding = loop.hidden.clone(), loop.embedding.clone()
    loop.decode(count)
    assert torch.equal(loop.hidden[count:], hidden[count:])
    assert torch.equal(loop.embedding, embedding)
    assert not torch.equal(loop.hidden[:count], hidden[:count])
    first = loop.hidden[0].clone()
    for slot in range(count):  # the caches too: the rest now steps as the first did
        loop.move(count, slot)
    loop.decode(count)
    assert error(loop.hidden[0], first) < TOLERANCE


def requests_that_come_move_and_go(talker: Talker, slots: int, steps: int, seed: int) -> None:
    """Requests start at any step in the first free slot; where one ends, the last moves down."""
    choose = random.Random(seed)
    length = 80
    loop = talker.loop(slots, length)
    active: list[tuple[Tensor, Tensor, int]] = []  # inputs, what is expected, rows done
    errors: list[float] = []
    for _ in range(steps):
        while len(active) < slots and choose.random() < 0.4:
            x = talker.inputs(length)
            prompt = choose.randrange(1, 30)
            loop.prefill(len(active), x[:prompt])
            expected = talker.expected(x)
            errors.append(error(loop.hidden[len(active)], expected[prompt - 1]))
            active.append((x, expected, prompt))
        if not active:
            continue
        for slot, (x, _, done) in enumerate(active):
            loop.embedding[slot, 0] = x[done]
        loop.decode(len(active))
        for slot, (x, expected, done) in enumerate(active):
            errors.append(error(loop.hidden[slot], expected[done]))
            active[slot] = (x, expected, done + 1)
        for slot in reversed(range(len(active))):
            if active[slot][2] == length or choose.random() < 0.05:
                loop.move(len(active) - 1, slot)
                active[slot] = active[-1]
                active.pop()
    check_errors(talker, errors)


def experts_of_sorted_rows_are_the_reference(talker: Talker, rows: int, count: int) -> None:
    """The feed-forward half of a prefill alone: of `rows` rows `count` are there."""
    sizes, at = talker.sizes, "layers.0."
    assert sizes.experts is not None
    x, norm = talker.inputs(rows), talker.weights[at + "mlp_norm"]
    scaled, squares = (x * norm).bfloat16(), x.square().sum(1, keepdim=True)
    next_squares = torch.zeros_like(squares)
    tiles = replace(
        tiles_of(64, prefill=True, routed=True), group_rows=16, gate_up=Tile(16, 32, 4, 2)
    )
    groups = Groups(
        sizes, talker.weights, torch.tensor([count], dtype=torch.int32, device=talker.device),
        tiles, 1 << 16, found := x.clone(), scaled, squares, next_squares,
    )  # fmt: skip
    groups.enqueue(0, norm)
    expected = feed_forward(sizes, talker.weights, at, x)[0]
    # The router reads the same float32 rows on both sides: no row may choose another expert.
    errors = [error(*pair) for pair in zip(found[:count], expected[:count], strict=True)]
    assert max(errors) < TOLERANCE, errors
    assert torch.equal(found[count:], x[count:])
    torch.testing.assert_close(next_squares, found.square().sum(1, keepdim=True))
