"""The tokenizer of a checkpoint as one tokenizer.json, without running code that came with it.

Either the checkpoint's own file, checked, or one made from the files of the Qwen2 byte-level BPE
(vocab.json, merges.txt and the added tokens), as transformers' Qwen2Tokenizer would make it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from export.whole_file import whole_file
from trt_runtime.errors import UserError
from trt_runtime.manifest import TOKENIZER

VOCABULARY = "vocab.json"
MERGES = "merges.txt"
TOKENIZER_CONFIG = "tokenizer_config.json"
ADDED_TOKENS = "added_tokens.json"
SPECIAL_TOKENS = "special_tokens_map.json"

#: How Qwen2 splits text before the byte pairs: transformers' Qwen2Tokenizer.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_LARGEST_FILE = 256 << 20
_KNOWN_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizerFast")

_log = logging.getLogger(__name__)


def write_tokenizer(folder: Path, out_path: Path) -> None:
    """Writes the tokenizer of checkpoint `folder` to `out_path`, a file of the tokenizers package.

    The bytes depend on the folder's files alone. Raises UserError where there is no tokenizer, or
    one that cannot be loaded.
    """
    content = tokenizer_json(folder).encode("utf-8")
    with whole_file(out_path, len(content)) as file:
        file.write(content)


def tokenizer_json(folder: Path) -> str:
    """The text of a checked tokenizer.json for checkpoint `folder`."""
    _warn_of_code(folder)
    own = folder / TOKENIZER
    if own.exists():
        text = _read_text(own)
        load_tokenizer(text, own)
        return text
    absent = [name for name in (VOCABULARY, MERGES) if not (folder / name).is_file()]
    if absent:
        raise UserError(
            f"{folder} holds no tokenizer",
            expected=f"{TOKENIZER}, or {VOCABULARY} with {MERGES}",
            found=f"no {TOKENIZER}, no {', no '.join(absent)}",
            do="download the tokenizer's files of the model into the folder",
        )
    vocabulary = _read_vocabulary(folder / VOCABULARY)
    merges = _read_merges(folder / MERGES)
    text = byte_level_bpe(vocabulary, merges, _read_added_tokens(folder))
    load_tokenizer(text, folder / VOCABULARY)
    return text


def load_tokenizer(text: str, path: Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json's text; raises UserError naming `path` if it is broken."""
    try:
        tokenizer = Tokenizer.from_str(text)
        tokenizer.encode("a", add_special_tokens=False)
    except Exception as error:  # the package raises bare Exceptions
        raise _unreadable(path, "a tokenizer of the tokenizers package", error) from error
    _check_added_ids(tokenizer, json.loads(text).get("added_tokens") or (), path)
    return tokenizer


def _check_added_ids(tokenizer: Tokenizer, added: Iterable[Mapping[str, Any]], path: Path) -> None:
    """The package numbers added tokens itself and only warns where the file says otherwise."""
    for token in added:
        found = tokenizer.token_to_id(token["content"])
        if found != token["id"]:
            raise _unreadable(
                path, f"{token['content']!r} to have the id {token['id']}", f"the id {found}"
            )


def byte_level_bpe(
    vocabulary: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    added: Sequence[Mapping[str, Any]],
) -> str:
    """The text of a tokenizer.json with Qwen2's normaliser, split and byte-level BPE.

    `added` holds entries of the file's own form (id, content, special, ...). They are also put into
    the vocabulary: the package numbers tokens that it does not find there, which would close gaps.
    """
    entries = {**vocabulary, **{token["content"]: token["id"] for token in added}}
    by_id = sorted(entries.items(), key=lambda item: item[1])
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(added, key=lambda token: token["id"]),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": QWEN2_SPLIT},
                    "behavior": "Isolated",
                    "invert": False,
                },
                _byte_level(use_regex=False, add_prefix_space=False),
            ],
        },
        "post_processor": None,
        "decoder": _byte_level(use_regex=True, add_prefix_space=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": dict(by_id),
            "merges": [list(pair) for pair in merges],
        },
    }
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _byte_level(*, use_regex: bool, add_prefix_space: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def added_token(content: str, token_id: int, *, special: bool = True) -> dict[str, Any]:
    """An entry of added_tokens as Qwen2 has them: matched as it stands, before normalisation."""
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": not special,
        "special": special,
    }


def _unreadable(path: Path, expected: str, found: object) -> UserError:
    shown = str(found)
    return UserError(
        f"{path} cannot be used",
        expected=expected,
        found=shown if len(shown) <= 200 else shown[:200] + "...",
        do="download the tokenizer's files again",
    )


def _read_text(path: Path) -> str:
    try:
        if not path.is_file():  # a pipe would be waited for, a device never ends
            raise ValueError("not a plain file")
        if path.stat().st_size > _LARGEST_FILE:
            raise ValueError(f"{path.stat().st_size} bytes are too many for a tokenizer")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _unreadable(path, "a text file in UTF-8", error) from error


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(_read_text(path))
    except UserError:  # a ValueError too
        raise
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, "a JSON object", error) from error
    if not isinstance(data, dict):
        raise _unreadable(path, "a JSON object", type(data).__name__)
    return data


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _read_vocabulary(path: Path) -> dict[str, int]:
    vocabulary = _read_object(path)
    for token, token_id in vocabulary.items():
        if not _is_id(token_id):
            raise _unreadable(path, "an id for each token", f"{token_id!r} for {token!r}")
    if len(set(vocabulary.values())) != len(vocabulary):
        raise _unreadable(path, "one token an id", "an id given twice")
    return vocabulary


def _read_merges(path: Path) -> list[tuple[str, str]]:
    merges = []
    # Not splitlines: it would also split at characters that a token may hold.
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        line = line.removesuffix("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not all(pair):
            raise _unreadable(path, "two tokens and a space a line", f"line {number}: {line!r}")
        merges.append((pair[0], pair[1]))
    return merges


def _read_added_tokens(folder: Path) -> list[dict[str, Any]]:
    """Added tokens by id, from tokenizer_config.json and, for those it lacks, added_tokens.json."""
    added: dict[int, dict[str, Any]] = {}
    older = folder / ADDED_TOKENS
    if older.exists():
        special = _special_contents(folder)
        for content, token_id in _read_object(older).items():
            if not _is_id(token_id):
                raise _unreadable(older, "an id for each token", f"{token_id!r} for {content!r}")
            added[token_id] = added_token(content, token_id, special=content in special)
    config = folder / TOKENIZER_CONFIG
    decoder = _read_object(config).get("added_tokens_decoder") if config.exists() else None
    if decoder is not None and not isinstance(decoder, dict):
        raise _unreadable(config, "added_tokens_decoder: a JSON object", type(decoder).__name__)
    for key, entry in (decoder or {}).items():
        text = entry.get("content") if isinstance(entry, dict) else None
        if (
            not re.fullmatch(r"[0-9]{1,10}", key)
            or not _is_id(int(key))
            or not isinstance(text, str)
        ):
            raise _unreadable(config, "an added token for each id", f"{entry!r} for {key!r}")
        token = added_token(text, int(key), special=entry.get("special") is True)
        for flag in ("single_word", "lstrip", "rstrip", "normalized"):
            token[flag] = entry.get(flag, token[flag]) is True
        added[int(key)] = token
    return [added[token_id] for token_id in sorted(added)]


def _special_contents(folder: Path) -> set[str]:
    """Every token that special_tokens_map.json mentions, alone, in lists or as objects."""
    path = folder / SPECIAL_TOKENS
    found: set[str] = set()
    for value in _read_object(path).values() if path.exists() else ():
        for item in value if isinstance(value, list) else [value]:
            content = item.get("content") if isinstance(item, dict) else item
            if isinstance(content, str):
                found.add(content)
    return found


def _warn_of_code(folder: Path) -> None:
    path = folder / TOKENIZER_CONFIG
    if not path.exists():
        return
    config = _read_object(path)
    named = config.get("tokenizer_class")
    if config.get("auto_map") or (named is not None and named not in _KNOWN_CLASSES):
        _log.info(
            "%s names the Python tokenizer class %s: ignored, no code of a checkpoint is run",
            path,
            named or config.get("auto_map"),
        )
