"""A voice from a recording, three ways: all of it, its embedding alone, its latents alone.

python examples/clone_voice.py [REF.wav "Its words." [ENGINES]]
"""

import sys

from buzz import buzz

import trt_runtime

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
        print(f"clone-{way}.wav: {speech.duration:.2f} s, ended by {speech.finish_reason}")
        for warning in speech.warnings:
            print(f"  warning: {warning}")
