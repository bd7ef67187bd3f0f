"""The talker as a language model: writing text, which is how the dense model normalises text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trt_runtime.contract import LANGUAGE_HEAD
from trt_runtime.errors import FolderError, NumericError, UserError
from trt_runtime.folder import OpenFolder
from trt_runtime.numeric import whole_number
from trt_runtime.printable import shown
from trt_runtime.prompt_embedding import embed_tokens
from trt_runtime.text_tokenizer import TextTokenizer

#: The control token with which the model ends what it writes.
TEXT_END = "<text_eos>"


def write_normalized(
    opened: OpenFolder,
    tokenizer: TextTokenizer,
    prompt_ids: NDArray[np.int64],
    *,
    max_tokens: int,
) -> str:
    """What the model writes for a speech prompt, (tokens,) int64, in place of speaking it.

    As in the reference: the prompt without its last token, the start of audio; the likeliest token
    each time; what comes before the end, without the first token. Raises FolderError where the
    folder cannot write, UserError where the prompt does not fit or no end comes in `max_tokens`.
    """
    g = opened.manifest.geometry
    if not opened.backend.has(LANGUAGE_HEAD):
        raise FolderError(
            f"{opened.path} has no language-model head",
            expected=f"the graph {LANGUAGE_HEAD}",
            do="export and build again from the checkpoint",
        )
    end = tokenizer.token_id(TEXT_END)
    if whole_number(max_tokens, 1) is None:
        raise UserError(
            "max_tokens cannot be used",
            expected="a whole number of 1 or more",
            found=shown(max_tokens),
            do="leave it out for 200",
        )
    prompt_ids = prompt_ids[:-1]
    if len(prompt_ids) + max_tokens > g.cache_length:
        raise UserError(
            "The text leaves too little room to write in",
            expected=f"prompt tokens + max_tokens of at most {g.cache_length}",
            found=f"{len(prompt_ids)} + {max_tokens}",
            do="shorten the text, or export with a larger --cache-length",
        )
    written = _greedy(opened, prompt_ids, end, max_tokens)
    if written is None:
        raise UserError(
            "The model did not end the normalised text",
            expected=f"the end within {max_tokens} tokens",
            do="shorten the text, or use normalize=True, which asks a library and not the model",
        )
    return tokenizer.decode(written[1:])


def _greedy(
    opened: OpenFolder, prompt_ids: NDArray[np.int64], end: int, most: int
) -> list[int] | None:
    """The likeliest tokens before `end`; None where `most` come without one."""
    backend, g = opened.backend, opened.manifest.geometry
    talker = backend.talker()
    head = backend.bind(LANGUAGE_HEAD, {"hidden": talker.hidden})
    talker.prefill(embed_tokens(backend, g, prompt_ids))
    written: list[int] = []
    while len(written) < most:
        head.run()
        logits = head.buffers["logits"].read()[0]
        if not np.isfinite(logits).all():
            raise NumericError(
                f"{LANGUAGE_HEAD} produced NaN or infinity at token {len(written) + 1}",
                expected="finite numbers",
                do="check the checkpoint (python -m export --check)",
            )
        token = int(logits.argmax())
        if token == end:
            return written
        written.append(token)
        talker.embedding.write(embed_tokens(backend, g, np.array([token], np.int64))[None])
        talker.decode()
    return None
