"""A voice from a recording, three ways: all of it, its embedding alone, its latents alone.

python examples/clone_voice.py [REF.wav "Its words." [ENGINES]]
"""

import sys

import numpy as np

import trt_runtime


def buzz(pitch: int) -> tuple[np.ndarray, int]:
    """Stands for a recording: (samples,) float32 and samples a second."""
    t = np.arange(4 * 16_000) / 16_000
    voice = sum(np.sin(2 * np.pi * n * pitch * t) / n for n in range(1, 20))
    return (0.1 * voice * np.sin(3 * np.pi * t) ** 2).astype(np.float32), 16_000


reference, words = sys.argv[1:3] if len(sys.argv) > 2 else (buzz(120), "Words of a buzz.")
WAYS = {
    "all": {"reference_text": words},
    "embedding": {},
    "latents": {"reference_text": words, "speaker_embedding": None},
}
with trt_runtime.load(*sys.argv[3:4]) as speaker:
    for way, options in WAYS.items():
        speech = speaker.synthesize("Hello, it is me.", reference=reference, seed=7, **options)
        speech.save(f"clone-{way}.wav")
        print(f"clone-{way}.wav: {speech.duration:.2f} s")
        for warning in speech.warnings:
            print(f"  warning: {warning}")
