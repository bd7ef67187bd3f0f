"""Random checkpoints of any size in the released layout, for tests, benchmarks and the demo.

Every tensor is drawn on its own from a counter-based generator keyed by (seed, name), so its values
depend on neither order, sharding nor the other tensors, and only a block of one is held in memory.
Scales keep activations near one, and the audio head near the level of speech.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from export.families import family_of
from export.parameters import Layout
from export.sizes import ModelSizes
from export.speaker_encoder import CAMPPLUS
from export.tokenizer import added_token, byte_level_bpe
from export.weight_files import INDEX, SINGLE
from export.whole_file import whole_file, write_json
from trt_runtime.errors import UserError
from trt_runtime.manifest import TOKENIZER

#: The control tokens of the dense family, which the released vocabulary ends with, in their order.
CONTROL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<text_eos>",
    "<text>",
    "<end_of_chunk>",
    "<end_of_audio>",
    "<audioPatch>",
    "<audio>",
    "</audio>",
    "<spk>",
    "</spk>",
)

_DTYPES = {"bfloat16": (ml_dtypes.bfloat16, "BF16"), "float16": (np.float16, "F16")} | {
    "float32": (np.float32, "F32")
}
_BLOCK = 2 << 20  # elements; even, since one draw of the generator gives two

#: Root mean square of the audio: speech at a peak of about 0.3.
_AUDIO_LEVEL = 0.08
_LOG_MAGNITUDE_GAIN = 0.5
_STOP_GAIN = 0.5
#: Of layers that add to a residual stream, so that a deep stack does not outgrow its input.
_RESIDUAL_GAIN = 0.5
_RESIDUAL = ("o_proj.weight", "down_proj.weight", "to_out.0.weight", "mlp.ff.2.weight")
_EMBEDDINGS = ("embed_tokens.weight", "word_embedder.weight", "cls_embed")


@dataclass(frozen=True)
class _Stored:
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(_DTYPES[self.dtype][0]).itemsize


def write_random_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    *,
    seed: int = 0,
    dtype: str = "bfloat16",
    shard_bytes: int | None = None,
    layout: Layout | None = None,
    tokenizer: bool = True,
    speaker_encoder: bool = True,
    stop_bias: float = 0.0,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Writes a checkpoint of `config` with every tensor that its family's table names, used or not.

    One model.safetensors, or with `shard_bytes` shards of at most that many bytes (a larger tensor
    has a shard of its own) and an index. `layout` is one of the family's, by default the released.
    Parameters are stored in `dtype` (bfloat16, float16 or float32), the buffers inv_freq and window
    exactly, in float32. `stop_bias` is added to the
    logit of stopping: below zero speech is longer. `on_progress(done, total)` counts bytes.
    `tokenizer` writes a byte-level tokenizer.json with the released control tokens at the end of
    the vocabulary, `speaker_encoder` a small campplus.onnx.

    Raises UserError for a config that cannot be used, and where the disk fills.
    """
    if dtype not in _DTYPES:
        raise UserError(
            f"No such dtype: {dtype}",
            expected=", ".join(_DTYPES),
            found=repr(dtype),
            do="choose one of those",
        )
    family = family_of(config)
    sizes = family.sizes(config)
    shapes = {
        name: shape
        for parameter in (layout or family.layouts[0]).components(sizes)
        for name, shape in zip(parameter.sources, parameter.source_shapes, strict=True)
    } | {tensor.name: tensor.shape for tensor in family.unused(sizes)}
    tensors = [
        _Stored(name, shape, "float32" if _is_buffer(name) else dtype)
        for name, shape in sorted(shapes.items())
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    if tokenizer:
        write_byte_tokenizer(folder, sizes.talker.vocab_size, family.control_tokens)
    if speaker_encoder:
        from export.synthetic_speaker_encoder import random_speaker_encoder

        content = random_speaker_encoder(
            lambda name, count: _whole(f"{CAMPPLUS}/{name}", seed, count)
        )
        with whole_file(folder / CAMPPLUS, len(content)) as file:
            file.write(content)
    shards = _split(tensors, shard_bytes)
    files = [
        SINGLE if shard_bytes is None else f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        for i in range(1, len(shards) + 1)
    ]
    total, done = sum(tensor.bytes for tensor in tensors), 0
    for name, shard in zip(files, shards, strict=True):
        for written in _write_shard(folder / name, shard, sizes, seed, stop_bias):
            done += written
            if on_progress is not None:
                on_progress(done, total)
    if shard_bytes is not None:
        weight_map = {t.name: f for f, s in zip(files, shards, strict=True) for t in s}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_json(folder / INDEX, index)


def _split(tensors: Sequence[_Stored], shard_bytes: int | None) -> list[list[_Stored]]:
    shards: list[list[_Stored]] = [[]]
    filled = 0
    for tensor in tensors:
        if shard_bytes is not None and shards[-1] and filled + tensor.bytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.bytes
    return shards


def _write_shard(
    path: Path, tensors: Sequence[_Stored], sizes: ModelSizes, seed: int, stop_bias: float
) -> Iterator[int]:
    """Streams a safetensors file, yielding the bytes of each block as it is written."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for tensor in tensors:
        end = position + tensor.bytes
        header[tensor.name] = {
            "dtype": _DTYPES[tensor.dtype][1],
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)  # the format's way to align what follows
    with whole_file(path, 8 + len(text) + position) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            for block in _values(tensor.name, tensor.shape, sizes, seed, stop_bias):
                stored = block.astype(_DTYPES[tensor.dtype][0]).view(np.uint8)
                file.write(stored.data)
                yield stored.nbytes


def _is_buffer(name: str) -> bool:
    return name.endswith((".inv_freq", ".istft.window"))


def _values(
    name: str, shape: tuple[int, ...], sizes: ModelSizes, seed: int, stop_bias: float
) -> Iterator[np.ndarray]:
    """The values of a tensor in order, as flat float32 blocks."""
    count = math.prod(shape)
    if name.endswith(".inv_freq"):
        yield (10000.0 ** -(np.arange(count) / count)).astype(np.float32)
    elif name.endswith(".istft.window"):
        yield (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(count) / count)).astype(np.float32)
    elif name.endswith("head.out.bias"):
        yield _audio_bias(sizes, _whole(name, seed, count))
    elif name.endswith("head.out.weight"):
        gains = np.where(np.arange(shape[0]) < shape[0] // 2, _LOG_MAGNITUDE_GAIN, 1.0)
        drawn = _whole(name, seed, count).reshape(shape)
        yield (drawn * (gains / math.sqrt(shape[1]))[:, None]).astype(np.float32).reshape(-1)
    elif name.endswith("stop_head.bias"):
        yield np.array([0.0, stop_bias], np.float32)
    else:
        mean, deviation = _distribution(name, shape)
        for block in _uniform(name, seed, count):
            yield np.float32(mean) + np.float32(deviation) * block


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of a tensor's values."""
    if name.endswith(_EMBEDDINGS):
        return 0.0, 1.0
    if name.endswith(".bias"):
        return 0.0, 0.02
    if len(shape) == 1:
        return 1.0, 0.05  # the weight of a norm
    gain = _RESIDUAL_GAIN if name.endswith(_RESIDUAL) else 1.0
    if name.endswith("stop_head.weight"):
        gain = _STOP_GAIN
    return 0.0, gain / math.sqrt(shape[-1])


def _uniform(name: str, seed: int, count: int) -> Iterator[np.ndarray]:
    """Blocks of float32 with mean 0 and deviation 1, `count` in all, from Philox4x64.

    Uniform, and made of the generator's raw bits: those are the same in every version of NumPy,
    which its normal distribution need not be.
    """
    key = hashlib.sha256(f"{seed}\0{name}".encode()).digest()[:16]
    generator = np.random.Philox(key=int.from_bytes(key, "little"))
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        raw = generator.random_raw(-(-size // 2)).astype("<u8", copy=False).view("<u4")[:size]
        # 24 bits are what a float32 holds exactly; the half centres them about zero.
        units = (raw >> np.uint32(8)).astype(np.float32) + np.float32(0.5)
        yield (units * np.float32(2.0**-24) - np.float32(0.5)) * np.float32(math.sqrt(12.0))


def _whole(name: str, seed: int, count: int) -> np.ndarray:
    """All blocks of a tensor that is known to be small."""
    return np.concatenate(list(_uniform(name, seed, count)))


def _audio_bias(sizes: ModelSizes, drawn: np.ndarray) -> np.ndarray:
    """Log-magnitudes with a speech-like spectrum, then phases spread over the circle.

    With equal phases every frame would be one click; with these its energy is spread over time.
    """
    bins, n_fft = drawn.size // 2, sizes.audio.n_fft
    frequency = np.arange(bins) * sizes.audio.sample_rate / n_fft
    shape = (frequency / 150 + 1e-3) / (1 + (frequency / 500) ** 2)
    # Parseval: the mean square of a frame is 2 / n_fft^2 times its power; overlap-add of Hann
    # windows by a quarter leaves 1 / 1.5 of that; the random part has E[exp(2 x)] = exp(2 s^2).
    power = np.sum(shape**2) * 2 / n_fft**2 / 1.5 * math.exp(2 * _LOG_MAGNITUDE_GAIN**2)
    level = math.log(_AUDIO_LEVEL / math.sqrt(power))
    phase = drawn[bins:] * np.float32(math.pi / math.sqrt(3.0))
    return np.concatenate((np.log(shape) + level, phase)).astype(np.float32)


def write_byte_tokenizer(
    folder: Path, vocab_size: int, control_tokens: Sequence[str] = CONTROL_TOKENS
) -> None:
    """Every byte is a token of its own; the released control tokens have the last ids.

    Those of `control_tokens` that the released dense vocabulary lacks come behind its own.
    """
    control = (*CONTROL_TOKENS, *(text for text in control_tokens if text not in CONTROL_TOKENS))
    first = vocab_size - len(control)
    if first < 256:
        raise UserError(
            "config.json: llm_config.vocab_size is too small for a byte-level tokenizer",
            expected=f"at least {256 + len(control)}",
            found=str(vocab_size),
            do="enlarge it, or write the checkpoint with tokenizer=False",
        )
    added = [added_token(text, first + i) for i, text in enumerate(control)]
    vocabulary = {character: i for i, character in enumerate(_byte_characters())}
    text = byte_level_bpe(vocabulary, [], added).encode("utf-8")
    with whole_file(folder / TOKENIZER, len(text)) as file:
        file.write(text)
    config = {
        "added_tokens_decoder": {
            str(token["id"]): {k: v for k, v in token.items() if k != "id"} for token in added
        },
        "eos_token": CONTROL_TOKENS[0],
        "pad_token": CONTROL_TOKENS[0],
        "tokenizer_class": "Qwen2Tokenizer",
    }
    write_json(folder / "tokenizer_config.json", config)


def _byte_characters() -> list[str]:
    """The characters that stand for bytes in a byte-level BPE, in GPT-2's order.

    Printable bytes stand for themselves; the others get the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = 256 - len(printable)
    return [chr(code) for code in printable] + [chr(0x100 + i) for i in range(others)]
