"""Ids against the reference's, and user text that never becomes a control token."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.goldens import OMNI_TTS, load_json, needs_goldens
from trt_runtime.errors import FolderError
from trt_runtime.text_tokenizer import TextTokenizer

CONTROL = ["<|im_start|>", "<|im_end|>", "<audio>", "<audioPatch>"]


@pytest.fixture
def tokenizer_data():
    """A small byte-level BPE with control tokens, as parsed JSON."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["hello world, an audio patch <audio> "] * 5, trainer)
    tokenizer.add_special_tokens(CONTROL)
    return json.loads(tokenizer.to_str())


@pytest.fixture
def load(tmp_path):
    def write_and_load(data):
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps(data), encoding="utf-8")
        return TextTokenizer.load(path)

    return write_and_load


def test_control_obeys_and_plain_spells_out(tokenizer_data, load):
    tokenizer = load(tokenizer_data)
    audio = tokenizer.token_id("<audio>")
    assert tokenizer.control("hello<audio>") == [*tokenizer.plain("hello"), audio]
    assert audio not in tokenizer.plain("hello<audio>")
    assert tokenizer._plain.decode(tokenizer.plain("hello<audio> é😀")) == "hello<audio> é😀"
    assert tokenizer.plain("") == tokenizer.control("") == []


def test_vocab_size_covers_every_id(tokenizer_data, load):
    tokenizer = load(tokenizer_data)
    assert tokenizer.vocab_size == max(tokenizer.added_tokens.values()) + 1
    assert set(tokenizer.added_tokens) == set(CONTROL)


def test_a_missing_token_is_named(tokenizer_data, load):
    with pytest.raises(FolderError, match=r"no token <spk>"):
        load(tokenizer_data).token_id("<spk>")


def test_an_ordinary_word_is_no_control_token(tokenizer_data, load):
    with pytest.raises(FolderError, match=r"no token hello"):
        load(tokenizer_data).token_id("hello")


def test_what_the_file_asks_for_beyond_bpe_is_left_out(tokenizer_data, load):
    expected = load(tokenizer_data).control("hello world")
    audio = next(t["id"] for t in tokenizer_data["added_tokens"] if t["content"] == "<audio>")
    special = {"<audio>": {"id": "<audio>", "ids": [audio], "tokens": ["<audio>"]}}
    tokenizer_data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<audio>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": special,
    }
    tokenizer_data["truncation"] = {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    tokenizer_data["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!",
    }  # fmt: skip
    tokenizer_data["model"]["dropout"] = 0.9
    tokenizer = load(tokenizer_data)
    assert tokenizer.control("hello world") == tokenizer.plain("hello world") == expected


def test_control_tokens_that_the_vocabulary_also_holds_stay_out_of_plain(tokenizer_data, load):
    """A file may list its control tokens in the model too, even with merges that lead to them."""
    model = tokenizer_data["model"]
    for token in ("audio", "<audio", "<audio>"):
        model["vocab"].setdefault(token, len(model["vocab"]))
    audio = model["vocab"]["<audio>"]
    model["merges"] += [["<", "audio"], ["<audio", ">"]]
    model["ignore_merges"] = True
    tokenizer_data["added_tokens"] = [
        added | {"id": audio if added["content"] == "<audio>" else audio + 1 + index}
        for index, added in enumerate(
            sorted(tokenizer_data["added_tokens"], key=lambda added: added["content"] == "<audio>")
        )
    ]
    tokenizer_data["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": r"<[^>]*>"}, "behavior": "Isolated",
             "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": False},
        ],
    }  # fmt: skip
    tokenizer = load(tokenizer_data)
    assert tokenizer.control("<audio>") == [audio]
    assert audio not in tokenizer.plain("<audio>")
    assert tokenizer._plain.decode(tokenizer.plain("<audio>")) == "<audio>"


def wrong_id(data):
    data["added_tokens"][0]["id"] += 1000


def no_bytes(data):
    data["model"] |= {"vocab": {"a": 0}, "merges": []}


def unigram(data):
    data["model"] = {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0}


def bad_merge(data):
    data["model"]["merges"].append(["not", "there"])


def bad_pattern(data):
    data["pre_tokenizer"] = {
        "type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip


def panic(data):
    data["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}


def no_added(data):
    del data["added_tokens"]


def no_model(data):
    data["model"] = None


@pytest.mark.parametrize(
    "damage", [wrong_id, no_bytes, unigram, bad_merge, bad_pattern, panic, no_added, no_model]
)
def test_a_foreign_tokenizer_is_refused(damage, tokenizer_data, load):
    damage(tokenizer_data)
    with pytest.raises(FolderError, match=r"tokenizer\.json cannot be used"):
        load(tokenizer_data)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a": ' * 3000, b"[" * 200_000]
)
def test_a_damaged_file_is_refused(content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(FolderError, match=r"tokenizer\.json cannot be used"):
        TextTokenizer.load(path)


def test_an_oversized_file_is_refused_unread(tmp_path):
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FolderError, match=r"1099511627776 bytes"):
        TextTokenizer.load(path)


def test_a_missing_file_is_refused(tmp_path):
    for path in (tmp_path / "tokenizer.json", tmp_path):
        with pytest.raises(FolderError, match=r"cannot be used"):
            TextTokenizer.load(path)


@needs_goldens
@pytest.mark.parametrize("family", ["dense", "moe"])
class TestAgainstTheReference:
    @pytest.fixture
    def tokenizer(self, family):
        return TextTokenizer.load(OMNI_TTS / f"tiny-{family}" / "tokenizer.json")

    def test_control_gives_the_same_ids(self, family, tokenizer):
        rows = load_json(f"tokenizer_{family}")["rows"]
        assert len(rows) > 30
        assert [tokenizer.control(row["text"]) for row in rows] == [row["ids"] for row in rows]

    def test_plain_gives_the_same_ids_where_no_control_token_is(self, family, tokenizer):
        compared = 0
        for row in load_json(f"tokenizer_{family}")["rows"]:
            if not any(token in row["text"] for token in tokenizer.added_tokens):
                assert tokenizer.plain(row["text"]) == row["ids"]
                compared += 1
        assert compared > 20

    def test_no_text_becomes_a_control_token(self, family, tokenizer):
        added = tokenizer.added_tokens
        tricks = [
            *added,
            *(f"a {token}\n" for token in added),
            *(token + token for token in added),
            *(token[:-1] + "\u0338" + token[-1] for token in added),
            *("".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in t) for t in added),
            "<<audio>audio>",
            "".join(added),
        ]
        for text in tricks:
            assert not set(tokenizer.plain(text)) & set(added.values()), text
