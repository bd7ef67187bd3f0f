"""The talker through built engines against the reference: prompt embedding, prefill, decode."""

from __future__ import annotations

import numpy as np
import pytest

from tests.goldens import assert_close, cases, load_npz
from trt_runtime.contract import FLOW_ADVANCE
from trt_runtime.folder import OpenFolder
from trt_runtime.prompt_embedding import embed_tokens
from trt_runtime.talker import CALL_COST, Talker, plan_prefill

ARRAYS = load_npz("dense_talker")
#: After the final norm; the recordings before it number the layers.
LAST = max((n for n in ARRAYS if "/prefill_hidden" in n), key=lambda n: int(n[-2:].lstrip("n")))
LAST_HIDDEN = LAST.split("/")[1]


@pytest.mark.parametrize("case", cases(ARRAYS))
def test_prompt_embedding(dense_engines: OpenFolder, case: str) -> None:
    ids, kind = ARRAYS[f"{case}/ids"], ARRAYS[f"{case}/kind"]
    found = embed_tokens(dense_engines.backend, dense_engines.manifest.geometry, ids)
    tokens = kind == 0
    assert_close(found[tokens], ARRAYS[f"{case}/embeds"][tokens], "token embeddings")


@pytest.mark.parametrize("case", cases(ARRAYS))
def test_prefill_and_decode(dense_engines: OpenFolder, case: str) -> None:
    """The whole prompt, then five steps with the recorded patches fed back."""
    backend, g = dense_engines.backend, dense_engines.manifest.geometry
    talker = Talker(backend, g)
    hidden = talker.prefill(ARRAYS[f"{case}/embeds"])
    assert_close(hidden, ARRAYS[f"{case}/{LAST_HIDDEN}"], "prefill")
    advance = backend.bind(FLOW_ADVANCE, {"hidden": talker.hidden, "embedding": talker.embedding})
    rows = [hidden[-1]]
    stops = []
    for patch in ARRAYS[f"{case}/patches"]:
        advance.buffers["patch"].write(patch)
        advance.run()
        stops.append(advance.buffers["stop_probability"].read()[0])
        talker.decode()
        rows.append(talker.hidden.read()[0, 0].copy())
    assert_close(np.stack(rows), ARRAYS[f"{case}/last_hidden"], "hidden states")
    assert_close(np.array(stops), ARRAYS[f"{case}/stop_prob"][: len(stops)], "stop probabilities")


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 63, 64, 65, 200, 2048])
def test_prefill_plan_covers_the_prompt_and_stays_in_the_cache(tokens: int) -> None:
    chunks, cache_length = (16, 64), 2048
    start = 0
    for size in plan_prefill(tokens, chunks):
        assert size in chunks
        assert start % size == 0
        assert start + size <= cache_length
        start += size
    assert tokens <= start < tokens + max(chunks)


def test_prefill_plan_is_the_cheapest() -> None:
    """Against every way to cover a prompt, by the same estimate."""
    chunks = (4, 16, 64)

    def cost(sizes: list[int]) -> int:
        return sum(size + CALL_COST for size in sizes)

    for tokens in range(1, 200):
        best = min(
            cost([64] * large + [16] * middle + [4] * small)
            for large in range(5)
            for middle in range(14)
            for small in range(18)
            if 64 * large + 16 * middle + 4 * small >= tokens
        )
        assert cost(plan_prefill(tokens, chunks)) == best, tokens


def test_chunks_of_any_size_give_the_same_hidden_states(dense_engines: OpenFolder) -> None:
    """One token at a time, through the decode step, against prefill in chunks."""
    backend, g = dense_engines.backend, dense_engines.manifest.geometry
    embeds = ARRAYS[f"{cases(ARRAYS)[0]}/embeds"]
    whole = Talker(backend, g).prefill(embeds)
    single = Talker(backend, g)
    rows = []
    for row in embeds:
        single.embedding.write(row[None, None])
        single.decode()
        rows.append(single.hidden.read()[0, 0].copy())
    assert_close(np.stack(rows), whole, "token by token")
