"""Do a checkpoint's tokenizer and its embedding table have what the family's prompts are made of?

Asked before an export, which takes minutes: the runtime would refuse the folder when it loads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from export.families import Family
from export.sizes import ModelSizes
from export.tokenizer import load_tokenizer, tokenizer_json
from trt_runtime.errors import UserError
from trt_runtime.manifest import TOKENIZER
from trt_runtime.printable import printable

_SHOWN = 5


def require_control_tokens(folder: Path, family: Family, sizes: ModelSizes) -> None:
    """Raises UserError where :func:`token_problems` finds something in checkpoint `folder`."""
    tokenizer = load_tokenizer(tokenizer_json(folder), folder / TOKENIZER)
    problems = list(token_problems(tokenizer, family, sizes.talker.vocab_size))
    if problems:
        raise UserError(
            f"The tokenizer of {folder} does not fit the model",
            expected=f"the tokens of {family.name}: {', '.join(family.control_tokens)}",
            found="; ".join(problems),
            do="download the tokenizer's files that came with this checkpoint",
        )


def token_problems(tokenizer: Tokenizer, family: Family, rows: int | None) -> Iterator[str]:
    """What is wrong: control tokens that are no added tokens, ids beyond the table's `rows`."""
    # Added ones only, as in the runtime: an ordinary token of this name could be typed by a user.
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    absent = [text for text in family.control_tokens if text not in added]
    if absent:
        yield f"The tokenizer lacks control tokens of the prompt grammar: {', '.join(absent)}"
    if rows is None:
        return
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    beyond = sorted((token_id, text) for text, token_id in vocabulary.items() if token_id >= rows)
    if beyond:
        shown = ", ".join(f"{printable(text)} ({token_id})" for token_id, text in beyond[:_SHOWN])
        more = f", and {len(beyond) - _SHOWN} more" if len(beyond) > _SHOWN else ""
        yield f"The embedding table has {rows} rows, too few for: {shown}{more}"
