"""Copy the few recorded cases that the repository keeps from the full set of goldens.

    python tests/data/copy_goldens.py ../shared/goldens

Keeps the set's layout under tests/data/goldens, so that the tests read either.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np

OUT = Path(__file__).resolve().parent / "goldens" / "ming-omni-tts"

#: File → the cases kept; None keeps every array.
KEPT: dict[str, tuple[str, ...] | None] = {
    "dense_dit": None,
    "dense_cfm": ("cfg2_s025_t08", "cfg1plus", "n4", "n16", "tta"),
    "dense_heads": None,
    "dense_talker": ("plain_en", "bgm"),
    "dense_vae": ("dec1", "dec4", "dec7", "upsample", "istft", "sliding", "enc0", "enc1", "enc2"),
    "dense_e2e": (
        "plain_tts", "tta", "one_step", "clone", "podcast", "emotion_spk", "zero_spk_style", "bgm",
    ),
    "fbank": None,
    "moe_talker": ("plain_en", "spk1"),
    "moe_e2e": ("plain_tts", "clone", "bgm"),
}  # fmt: skip
CHECKPOINTS = ("tiny-dense", "tiny-moe")
WAVES = ("a_24k.wav", "b_16k.wav")


def main() -> None:
    source = Path(sys.argv[1]) / "ming-omni-tts"
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "goldens").mkdir(parents=True)
    for folder in CHECKPOINTS:
        (OUT / folder).mkdir()
        for file in ("config.json", "model.safetensors", "tokenizer.json", "campplus.onnx"):
            shutil.copyfile(source / folder / file, OUT / folder / file)
    (OUT / "wavs").mkdir()
    for file in WAVES:
        shutil.copyfile(source / "wavs" / file, OUT / "wavs" / file)
    for name, kept in KEPT.items():
        side = json.loads((source / "goldens" / f"{name}.json").read_text(encoding="utf-8"))

        def keeps(key: str, kept: tuple[str, ...] | None = kept) -> bool:
            return kept is None or key.split("/")[0] in kept

        with np.load(source / "goldens" / f"{name}.npz", allow_pickle=False) as arrays:
            np.savez_compressed(
                OUT / "goldens" / f"{name}.npz", **{k: arrays[k] for k in arrays.files if keeps(k)}
            )
        meta = {k: v for k, v in side["meta"].items() if not isinstance(v, dict) or keeps(k)}
        text = json.dumps({"about": side["about"], "meta": meta}, indent=1, ensure_ascii=False)
        (OUT / "goldens" / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
