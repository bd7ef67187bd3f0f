"""The plugin loop: slots with static caches, a prefill into one, a step of all active together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trt_runtime.errors import UserError
from trt_runtime.plugins.graphs import Replay
from trt_runtime.plugins.layout import kernel_tensors
from trt_runtime.plugins.sizes import TalkerSizes
from trt_runtime.plugins.step import Caches, Rows, Step


class PluginLoop:
    """A talker's layers over `slots` requests at a time.

    weights: the tensors of :func:`~trt_runtime.plugins.layout.kernel_tensors` on one device.
    cache_length: positions that a slot can hold. prefill_chunks: rows of a captured prefill,
    powers of two. Calls only enqueue work, on the current stream; the host waits for nothing.

    embedding: (slots, 1, hidden) float32, what the next step reads: whoever makes the next input
    writes it here. hidden: (slots, 1, hidden) float32, after the final norm.
    """

    embedding: Tensor
    hidden: Tensor

    def __init__(
        self,
        sizes: TalkerSizes,
        weights: Mapping[str, Tensor],
        *,
        slots: int,
        cache_length: int,
        prefill_chunks: Sequence[int] = (16, 64, 256),
    ) -> None:
        check_weights(sizes, weights)
        if slots < 1 or cache_length < 1:
            raise UserError(
                "A plugin loop needs slots, and room in them",
                expected="at least 1 slot and a cache length of at least 1",
                found=f"{slots} slots, cache length {cache_length}",
                do="ask for more",
            )
        for chunk in prefill_chunks:
            if chunk < 16 or chunk & (chunk - 1):
                raise UserError(
                    f"A prefill cannot be cut into chunks of {chunk} rows",
                    expected="powers of two of at least 16",
                    found=str(chunk),
                    do="choose other chunks",
                )
        self.sizes, self.slots, self.cache_length = sizes, slots, cache_length
        device = weights["norm"].device
        buckets = [2**power for power in range(math.ceil(math.log2(slots)) + 1)]
        padded = buckets[-1]  # rows beyond the slots are read, and written nowhere
        shape = (sizes.layers, slots, sizes.kv_heads, cache_length, sizes.head_dim)
        hidden = torch.zeros((padded, 1, sizes.hidden), dtype=torch.float32, device=device)
        embedding = torch.zeros_like(hidden)
        self.embedding, self.hidden = embedding[:slots], hidden[:slots]
        self._caches = Caches(
            torch.zeros(shape, dtype=torch.bfloat16, device=device),
            torch.zeros(shape, dtype=torch.bfloat16, device=device),
            torch.zeros(padded, dtype=torch.int32, device=device),
            hidden,
        )
        self._positions = [0] * slots  # the host's own account, so that it never has to ask
        tables = rotary_tables(sizes, cache_length, device)
        ascending = torch.arange(max(padded, *prefill_chunks, 1), dtype=torch.int32, device=device)
        self._ascending = ascending

        def count() -> Tensor:
            return torch.zeros(1, dtype=torch.int32, device=device)

        self._count, self._counted = count(), 0
        self._decode: dict[int, Replay] = {}
        for bucket in reversed(buckets):
            rows = Rows(
                embedding.view(padded, -1)[:bucket], ascending[:bucket],
                self._caches.positions[:bucket], self._count,
            )  # fmt: skip
            step = Step(sizes, weights, self._caches, rows, *tables, prefill=False)
            self._decode[bucket] = Replay(step)
        self._prefill: dict[int, tuple[Rows, Replay]] = {}
        for chunk in sorted(prefill_chunks):
            rows = Rows(
                torch.zeros((chunk, sizes.hidden), dtype=torch.float32, device=device),
                torch.zeros(chunk, dtype=torch.int32, device=device),
                torch.zeros(chunk, dtype=torch.int32, device=device),
                count(),
            )
            step = Step(sizes, weights, self._caches, rows, *tables, prefill=True)
            self._prefill[chunk] = (rows, Replay(step))

    def position(self, slot: int) -> int:
        """How many positions of the slot are taken."""
        self._check_slot(slot)
        return self._positions[slot]

    def prefill(self, slot: int, embeddings: Tensor) -> None:
        """Starts the slot anew with T rows; hidden[slot] is then that of the last.

        embeddings: (T, hidden) float32 on the loop's device, T from 1 to cache_length.
        """
        self._check_slot(slot)
        length = embeddings.shape[0]
        shaped = embeddings.shape[1:] == (self.sizes.hidden,) and 1 <= length <= self.cache_length
        if not shaped or embeddings.dtype != torch.float32:
            raise UserError(
                "A prefill does not fit its slot",
                expected=f"float32 (T, {self.sizes.hidden}), T from 1 to {self.cache_length}",
                found=f"{str(embeddings.dtype).removeprefix('torch.')} {tuple(embeddings.shape)}",
                do="shorten the prompt, or ask for a longer cache",
            )
        start = 0
        while start < length:
            rest = length - start
            chunk = next((c for c in self._prefill if c >= rest), max(self._prefill))
            taken = min(chunk, rest)
            rows, replay = self._prefill[chunk]
            rows.inputs[:taken].copy_(embeddings[start : start + taken])
            rows.slots.fill_(slot)
            torch.add(self._ascending[:chunk], start, out=rows.positions)
            rows.count.fill_(taken)
            replay()
            start += taken
        self._positions[slot] = length

    def decode(self, count: int) -> None:
        """One step of slots 0 to count - 1: embedding to hidden, and each is a position further."""
        self._check_slot(count - 1)
        full = [slot for slot in range(count) if self._positions[slot] >= self.cache_length]
        if full:
            raise UserError(
                f"The cache of slot {full[0]} is full",
                expected=f"at most {self.cache_length} positions",
                found="one more",
                do="end the request earlier, or ask for a longer cache",
            )
        if count != self._counted:
            self._count.fill_(count)
            self._counted = count
        self._decode[1 << (count - 1).bit_length()]()
        for slot in range(count):
            self._positions[slot] += 1

    def move(self, source: int, to: int) -> None:
        """Copies a slot over another: its caches up to its position, hidden and embedding."""
        self._check_slot(source)
        self._check_slot(to)
        if source == to:
            return
        taken = self._positions[source]
        for cache in (self._caches.keys, self._caches.values):
            cache[:, to, :, :taken].copy_(cache[:, source, :, :taken])
        for state in (self._caches.positions, self.hidden, self.embedding):
            state[to].copy_(state[source])
        self._positions[to] = taken

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.slots:
            raise UserError(
                f"The loop has no slot {slot}",
                expected=f"0 to {self.slots - 1}",
                found=str(slot),
                do="make a loop of more slots",
            )


def rotary_tables(
    sizes: TalkerSizes, cache_length: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cosine, sine (cache_length, head_dim) float32; the sine's first half negative.

    Angles in float32, position * inverse frequency, the powers rounded from float64: as the
    exported graphs have them.
    """
    powers = torch.tensor(
        [
            math.pow(sizes.rope_theta, float(exponent))
            for exponent in torch.arange(0, sizes.head_dim, 2, dtype=torch.float32) / sizes.head_dim
        ],
        dtype=torch.float32,
    )
    angles = torch.arange(cache_length).float().unsqueeze(-1) * (1 / powers)
    sine = torch.cat((-angles.sin(), angles.sin()), -1)
    return torch.cat((angles.cos(),) * 2, -1).to(device), sine.to(device)


def check_weights(sizes: TalkerSizes, weights: Mapping[str, Tensor]) -> None:
    """Raises UserError where a tensor of the kernels is missing or not as they want it."""
    for tensor in kernel_tensors(sizes):
        found = weights.get(tensor.name)
        expected = f"{tensor.dtype} {tensor.shape}, contiguous"
        if found is None:
            described = "none"
        else:
            described = f"{str(found.dtype).removeprefix('torch.')} {tuple(found.shape)}"
            described += ", contiguous" if found.is_contiguous() else ", with gaps"
        if described != expected:
            raise UserError(
                f"The kernels cannot use the weight {tensor.name}",
                expected=expected,
                found=described,
                do="build the engine folder again",
            )
