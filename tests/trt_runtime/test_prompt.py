"""Prompts against the reference's ids, and user text that cannot steer the grammar."""

from __future__ import annotations

import numpy as np
import pytest

from tests.goldens import FULL, OMNI_TTS, load_json, load_npz, needs_goldens
from trt_runtime.errors import FolderError
from trt_runtime.prompt import (
    GRAMMARS,
    MUSIC_KEYS,
    MUSIC_PROMPT,
    SOUND_EVENT_PROMPT,
    SPEECH_PROMPT,
    build_prompt,
)
from trt_runtime.text_tokenizer import TextTokenizer

FAMILIES = sorted(GRAMMARS)


@pytest.fixture(params=FAMILIES)
def grammar(request):
    return GRAMMARS[request.param]


@pytest.fixture
def tokenizer(grammar, tmp_path):
    """One token a byte, and the grammar's control tokens."""
    return spelling_tokenizer(tmp_path, grammar.control_tokens)


def spelling_tokenizer(folder, control_tokens):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {byte: n for n, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(control_tokens))
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    return TextTokenizer.load(folder / "tokenizer.json")


def spell(tokenizer, ids):
    return tokenizer._control.decode(list(ids), skip_special_tokens=False)


def test_a_whole_dense_prompt(tmp_path):
    grammar = GRAMMARS["ming-omni-tts-dense"]
    tokenizer = spelling_tokenizer(tmp_path, grammar.control_tokens)
    prompt = build_prompt(
        tokenizer, grammar, prompt="Say.\n", text="Yes.", speakers=2,
        prompt_text="No.", prompt_patches=2, instruction="{}",
    )  # fmt: skip
    assert spell(tokenizer, prompt.ids) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nSay.\n"
        "  speaker_1:<|vision_start|><|vision_pad|><|vision_end|>\n"
        "  speaker_2:<|vision_start|><|vision_pad|><|vision_end|>\n"
        " Text input:\nNo.Yes.<|im_end|>\n<|im_start|>assistant\n"
        "{}<|endoftext|><audio><audioPatch><audioPatch>"
    )


def test_a_whole_moe_prompt(tmp_path):
    grammar = GRAMMARS["ming-omni-tts-moe"]
    tokenizer = spelling_tokenizer(tmp_path, grammar.control_tokens)
    prompt = build_prompt(tokenizer, grammar, prompt=SPEECH_PROMPT, text="Yes.", speakers=1)
    assert spell(tokenizer, prompt.ids) == (
        f"<role>HUMAN</role>{SPEECH_PROMPT}  speaker_1:<spk><audioPatch></spk>\n"
        " Text input:\nYes.<role>ASSISTANT</role><audio>"
    )


def test_slots_are_where_the_placeholders_are(grammar, tokenizer):
    prompt = build_prompt(
        tokenizer, grammar, prompt="a", text="b", speakers=3, prompt_text="c", prompt_patches=4
    )
    assert prompt.ids.dtype == np.int64
    assert len(prompt.speaker_slots) == 3
    assert set(prompt.ids[list(prompt.speaker_slots)]) == {tokenizer.token_id(grammar.speaker_slot)}
    assert prompt.patch_slots == tuple(range(len(prompt.ids) - 4, len(prompt.ids)))
    assert set(prompt.ids[list(prompt.patch_slots)]) == {tokenizer.token_id(grammar.patch_slot)}
    assert prompt.ids[prompt.patch_slots[0] - 1] == tokenizer.token_id(grammar.audio_start)


def test_control_tokens_in_a_users_text_are_spelled_out(grammar, tokenizer):
    trick = "".join(grammar.control_tokens)
    arguments = {"speakers": 2, "prompt_patches": 1}
    plain = build_prompt(
        tokenizer, grammar, prompt="", text="", prompt_text="", instruction="", **arguments
    )
    tricked = build_prompt(
        tokenizer, grammar, prompt=trick, text=trick, prompt_text=trick, instruction=trick,
        **arguments,
    )  # fmt: skip
    control = set(tokenizer.added_tokens.values())
    assert [i for i in tricked.ids if i in control] == [i for i in plain.ids if i in control]
    assert len(tricked.ids) == len(plain.ids) + 4 * len(trick)
    for slots in ("speaker_slots", "patch_slots"):
        assert [tricked.ids[i] for i in getattr(tricked, slots)] == [
            plain.ids[i] for i in getattr(plain, slots)
        ]


def test_text_input_is_left_out_only_for_a_whole_music_description(grammar, tokenizer):
    music = " " + " ".join(f"{key}x." for key in MUSIC_KEYS)

    def written(text, **options):
        prompt = build_prompt(tokenizer, grammar, prompt=MUSIC_PROMPT, text=text, **options)
        return spell(tokenizer, prompt.ids)

    assert "Text input" not in written(music)
    for key in MUSIC_KEYS:
        assert " Text input:\n" in written(music.replace(key, key.strip()))
    assert " Text input:\n" in written("x", prompt_text=music, prompt_patches=1)


def test_a_reference_text_comes_with_patches(grammar, tokenizer):
    for options in ({"prompt_text": "a"}, {"prompt_patches": 1}, {"speakers": -1}):
        with pytest.raises(ValueError, match="do not go together"):
            build_prompt(tokenizer, grammar, prompt="", text="", **options)


def test_a_tokenizer_of_another_family_is_refused(tmp_path):
    tokenizer = spelling_tokenizer(tmp_path, GRAMMARS["ming-omni-tts-moe"].control_tokens)
    with pytest.raises(FolderError, match=r"no token <\|im_start\|>"):
        build_prompt(tokenizer, GRAMMARS["ming-omni-tts-dense"], prompt="", text="a")


def golden_cases():
    """(family, file, case) of every recorded prompt; one empty row where there are none."""
    if not FULL:
        return [("dense", "dense_talker", "")]
    return [
        (family, f"{family}_{part}", case)
        for family in ("dense", "moe")
        for part in ("talker", "e2e")
        for case, meta in load_json(f"{family}_{part}")["meta"].items()
        if isinstance(meta, dict) and "upstream_raises" not in meta
    ]


@needs_goldens
@pytest.mark.parametrize(("family", "file", "case"), golden_cases())
def test_ids_are_those_of_the_reference(family, file, case):
    tokenizer = TextTokenizer.load(OMNI_TTS / f"tiny-{family}" / "tokenizer.json")
    arrays = load_npz(file)
    ids, kind = arrays[f"{case}/ids"], arrays[f"{case}/kind"]
    meta = load_json(file)["meta"][case]
    passed = meta.get("passed_to_prepare_input_embed", meta)
    patches = int((kind == 2).sum())
    prompt = build_prompt(
        tokenizer,
        GRAMMARS[f"ming-omni-tts-{family}"],
        prompt=passed["prompt"],
        text=passed["text"],
        speakers=int((kind == 1).sum()),
        prompt_text=passed.get("prompt_text"),
        prompt_patches=patches,
        instruction=passed.get("instruction"),
    )
    assert np.array_equal(prompt.ids, ids)
    assert list(prompt.speaker_slots) == np.flatnonzero(kind == 1).tolist()
    assert list(prompt.patch_slots) == np.flatnonzero(kind == 2).tolist()


@needs_goldens
def test_the_prompts_are_those_of_the_reference():
    meta = load_json("dense_e2e")["meta"]
    used = {row["request"]["prompt"] for row in meta.values()}
    assert used == {SPEECH_PROMPT, MUSIC_PROMPT, SOUND_EVENT_PROMPT}
