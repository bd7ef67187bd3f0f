"""A sound from a description: every seed is another one to choose from.

python examples/sound_event.py ["Thunder and a gentle rain" [ENGINES]]
"""

import sys

import trt_runtime

event = trt_runtime.SoundEvent(sys.argv[1] if len(sys.argv) > 1 else "Thunder and a gentle rain")
with trt_runtime.load(*sys.argv[2:3]) as speaker:
    for seed in range(3):
        speech = speaker.synthesize(event, seed=seed, max_steps=30)  # 9.6 s at the released sizes
        speech.save(f"sound-{seed}.wav")
        print(f"sound-{seed}.wav: {speech.duration:.2f} s, ended by {speech.finish_reason}")
