"""Random checkpoints are whole, the same each time, and of sensible values."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import export.synthetic
from export.checkpoint import Checkpoint
from export.preflight import check_checkpoint
from export.synthetic import CONTROL_TOKENS, write_random_checkpoint
from tests.export import small_random
from trt_runtime.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def hashes(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def test_a_whole_checkpoint(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    checkpoint.require_complete()
    names = {tensor.name for tensor in checkpoint.family.unused(checkpoint.sizes)}
    assert names <= set(checkpoint.tensors)


def test_the_format_s_own_library_reads_it(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    assert tensors["model.model.norm.weight"].dtype == ml_dtypes.bfloat16


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path, config: dict[str, Any]) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_random_checkpoint(tmp_path / name, config, seed=seed)
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")
    assert hashes(tmp_path / "a") != hashes(tmp_path / "c")


def test_a_tensor_depends_on_seed_and_name_alone(
    tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_random_checkpoint(tmp_path / "a", config)
    config["llm_config"]["num_hidden_layers"] = 1
    monkeypatch.setattr(export.synthetic, "_BLOCK", 64)  # and not on how it is cut
    write_random_checkpoint(tmp_path / "b", config, shard_bytes=1)
    a, b = Checkpoint.open(tmp_path / "a"), Checkpoint.open(tmp_path / "b")
    assert set(b.tensors) < set(a.tensors)
    for name in b.tensors:
        assert a.read(name).tobytes() == b.read(name).tobytes()


def test_scales(tmp_path: Path, config: dict[str, Any]) -> None:
    write_random_checkpoint(tmp_path, config, dtype="float32", stop_bias=-2.5)
    tensors = load_file(tmp_path / "model.safetensors")
    weight = tensors["spk_head.weight"]
    assert abs(weight.std() * np.sqrt(192) - 1) < 0.05
    assert abs(weight.mean()) < 0.01
    assert abs(tensors["model.model.embed_tokens.weight"].std() - 1) < 0.05
    norm = tensors["flowloss.cfm.model.blocks.0.norm1.weight"]
    assert abs(norm.mean() - 1) < 0.1
    assert 0 < norm.std() < 0.1
    assert tensors["stop_head.bias"].tolist() == [0.0, -2.5]
    assert all(np.isfinite(tensor).all() for tensor in tensors.values())


def test_buffers_are_exact(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    window = tensors["audio.decoder.head.istft.window"]
    angles = 2 * np.pi * np.arange(64) / 64
    np.testing.assert_allclose(window, 0.5 - 0.5 * np.cos(angles), atol=1e-7)
    frequencies = tensors["flowloss.cfm.model.rotary_embed.inv_freq"]
    np.testing.assert_allclose(frequencies, [1, 0.1, 0.01, 0.001], rtol=1e-6)
    assert window.dtype == frequencies.dtype == np.float32


def test_audio_has_the_level_of_speech(tmp_path: Path, config: dict[str, Any]) -> None:
    """Frames of the head, for hidden states as the final norm leaves them, overlapped and added."""
    for part in ("enc_kwargs", "dec_kwargs"):
        config["audio_tokenizer_config"][part] |= {
            "output_dim": 200,
            "input_dim": 200,
            "hop_size": 200,
        }
    write_random_checkpoint(tmp_path, config, dtype="float32")
    tensors = load_file(tmp_path / "model.safetensors")
    hidden = np.random.Generator(np.random.Philox(0)).standard_normal((50, 8))
    out = hidden @ tensors["audio.decoder.head.out.weight"].T
    out += tensors["audio.decoder.head.out.bias"]
    magnitude, phase = np.exp(np.minimum(out[:, :401], np.log(100))), out[:, 401:]
    frames = (
        np.fft.irfft(magnitude * np.exp(1j * phase)) * tensors["audio.decoder.head.istft.window"]
    )
    audio = np.zeros(49 * 200 + 800)
    for index, frame in enumerate(frames):
        audio[index * 200 : index * 200 + 800] += frame / 1.5
    assert 0.05 < np.abs(audio).max() < 0.9


def test_the_tokenizer_ends_with_the_control_tokens(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = [tokenizer.token_to_id(text) for text in CONTROL_TOKENS]
    assert found == list(range(300 - 23, 300))
    text = "Ça va? 你好 <audio>\n"
    encoded = tokenizer.encode(text, add_special_tokens=False).ids
    assert len(encoded) == len("Ça va? 你好 ".encode()) + 2
    assert max(encoded[:-2]) < 256
    assert tokenizer.decode(encoded, skip_special_tokens=False) == text


def test_a_vocabulary_that_is_too_small(tmp_path: Path, config: dict[str, Any]) -> None:
    config["llm_config"]["vocab_size"] = 278
    with pytest.raises(UserError, match="at least 279"):
        write_random_checkpoint(tmp_path, config)
    write_random_checkpoint(tmp_path, config, tokenizer=False)
    assert not (tmp_path / "tokenizer.json").exists()


def test_an_unknown_dtype(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="No such dtype: int4"):
        write_random_checkpoint(tmp_path, config, dtype="int4")


def test_progress_counts_every_byte(tmp_path: Path, config: dict[str, Any]) -> None:
    seen: list[tuple[int, int]] = []
    write_random_checkpoint(tmp_path, config, on_progress=lambda *pair: seen.append(pair))
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_shards_and_index(tmp_path: Path, config: dict[str, Any]) -> None:
    write_random_checkpoint(tmp_path, config, shard_bytes=20_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == files
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    Checkpoint.open(tmp_path).require_complete()


#: SHA-256: the weights are drawn by name and seed alone.
RANDOM_WEIGHTS = "d14db492f07c300518b041eb1e26c8eef18ee669a00343216e1d376bb0d86f9f"


def test_the_same_bytes_everywhere(tmp_path: Path) -> None:
    write_random_checkpoint(
        tmp_path, small_random.CONFIG, seed=small_random.SEED, stop_bias=small_random.STOP_BIAS
    )
    assert hashes(tmp_path)["model.safetensors"] == RANDOM_WEIGHTS
    assert check_checkpoint(tmp_path).ok
