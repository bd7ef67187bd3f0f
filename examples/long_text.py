"""A long text sentence by sentence: where each lies, and what there is after Ctrl-C or a deadline.

python examples/long_text.py [TEXT.txt [SECONDS [ENGINES]]]
"""

import signal
import sys
import time
from pathlib import Path

import trt_runtime

TEXT = (
    "A long text is spoken sentence by sentence, all in one voice. Dr. Smith's is not the end of "
    "one. Short ones are joined. Like this. Each has its place in the text and in the sound, so "
    "that words can be shown as they are heard.\n\nA blank line begins a paragraph."
)
text = Path(sys.argv[1]).read_text(encoding="utf-8") if len(sys.argv) > 1 else TEXT
deadline = time.monotonic() + float(sys.argv[2] if len(sys.argv) > 2 else 60)
interrupted: list[int] = []
signal.signal(signal.SIGINT, lambda number, frame: interrupted.append(number))

with trt_runtime.load(*sys.argv[3:4]) as speaker:
    speech = speaker.synthesize(
        text,
        seed=7,
        max_steps=40,  # of each sentence
        on_progress=lambda progress: not interrupted and time.monotonic() < deadline,
    )
for sentence in speech.sentences:
    at = sentence.first_sample / speech.sample_rate
    print(f"{at:6.2f} s  characters {sentence.start} to {sentence.end}: {sentence.text!r}")
speech.save("long.wav")
print(f"long.wav: {speech.duration:.2f} s, ended by {speech.finish_reason}")
