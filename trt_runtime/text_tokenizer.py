"""Text to token ids, by a checkpoint's `tokenizer.json`.

The file is loaded twice: once as it is, for the pieces that the prompt grammar itself writes, and
once without its added tokens, for what a user wrote. The second encoder has never heard of
`<audio>`, so no user text can become a control token; it is spelled out like any other word.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_runtime.errors import FolderError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_LARGEST_FILE = 64 << 20


class TextTokenizer:
    """Two encoders made from one `tokenizer.json`; safe to use from several threads.

    Neither adds a beginning or end token, pads, truncates or drops merges at random, whatever the
    file asks for.
    """

    def __init__(self, control: Tokenizer, plain: Tokenizer, added: dict[str, int]) -> None:
        self._control = control
        self._plain = plain
        self._added = added

    @classmethod
    def load(cls, path: Path | str) -> TextTokenizer:
        """Reads `path`; raises FolderError where it is missing, damaged, oversized or foreign."""
        path = Path(path)
        data = _read(path)
        try:
            added = {str(token["content"]): int(token["id"]) for token in data["added_tokens"]}
            control = _build(data)
            for content, declared in added.items():
                # The library numbers a token anew where its declared id cannot be right.
                found = control.token_to_id(content)
                if found != declared:
                    raise ValueError(f"added token {content!r} is {declared} but loads as {found}")
            plain = _build(_without_added_tokens(data, set(added.values())))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the library is no Exception
            raise _foreign(path, f"{type(error).__name__}: {error}") from error
        return cls(control, plain, added)

    def control(self, text: str) -> list[int]:
        """Ids of a piece of the grammar, in which an added token stands for itself."""
        return list(self._control.encode(text, add_special_tokens=False).ids)

    def plain(self, text: str) -> list[int]:
        """Ids of text that a user wrote: never the id of an added token."""
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; control tokens among them are written out."""
        return str(self._control.decode(list(ids), skip_special_tokens=False))

    def token_id(self, token: str) -> int:
        """The id of an added token such as `<audio>`; raises FolderError where there is none."""
        try:
            return self._added[token]
        except KeyError:
            raise FolderError(
                f"The tokenizer has no token {token}",
                expected=f"an added token {token}, which this model's prompts are made with",
                found=f"{len(self._added)} other added tokens",
                do="use the tokenizer.json that came with this checkpoint, and build again",
            ) from None

    @property
    def added_tokens(self) -> dict[str, int]:
        """Id by text of every added (control) token."""
        return dict(self._added)

    @property
    def vocab_size(self) -> int:
        """One more than the largest id that can come out: the embedding needs that many rows."""
        return 1 + max(self._control.get_vocab(with_added_tokens=True).values())


def _read(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():
            raise ValueError("no plain file")
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise ValueError(f"{size} bytes, more than the {_LARGEST_FILE} that are read")
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise TypeError("JSON that is not an object")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise _foreign(path, str(error)) from error
    return data


def _build(data: dict[str, Any]) -> Tokenizer:
    """A tokenizer from the file's data, with everything off that would change ids from outside."""
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import ByteLevel

    model = data["model"]
    if model.get("type", "BPE") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise ValueError(f"a model of type {model.get('type')}, not byte-level BPE")
    # A byte without a token would vanish from the text in silence.
    unknown = set(ByteLevel.alphabet()) - model["vocab"].keys()
    if unknown:
        raise ValueError(f"{len(unknown)} of the 256 bytes have no token: not byte-level BPE")
    settled = data | {
        "model": model | {"dropout": None},
        "truncation": None,
        "padding": None,
        "post_processor": None,
    }
    return Tokenizer.from_str(json.dumps(settled))


def _without_added_tokens(data: dict[str, Any], ids: set[int]) -> dict[str, Any]:
    """`data` in which neither the added tokens nor the model itself can give any of `ids`."""
    model = data["model"]
    vocab = {token: id_ for token, id_ in model["vocab"].items() if id_ not in ids}
    if len(vocab) < len(model["vocab"]):
        pairs = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
        merges = [
            [left, right]
            for left, right in pairs
            if left in vocab and right in vocab and left + right in vocab
        ]
        model = model | {"vocab": vocab, "merges": merges}
    return data | {"added_tokens": [], "model": model}


def _foreign(path: Path, found: str) -> FolderError:
    return FolderError(
        f"{path} cannot be used as a tokenizer",
        expected="the tokenizer.json of a byte-level BPE, as the tokenizers package writes it",
        found=found,
        do="copy it again from the checkpoint, and build the folder again",
    )
