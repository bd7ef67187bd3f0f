"""Two speakers in one go: turns, or a script of them, and a voice for each.

python examples/dialogue.py [SCRIPT.txt [ENGINES]]
"""

import sys

import numpy as np

import trt_runtime


def buzz(pitch: int) -> tuple[np.ndarray, int]:
    """Stands for a recording: (samples,) float32 and samples a second."""
    t = np.arange(4 * 16_000) / 16_000
    voice = sum(np.sin(2 * np.pi * n * pitch * t) / n for n in range(1, 20))
    return (0.1 * voice * np.sin(3 * np.pi * t) ** 2).astype(np.float32), 16_000


turns = [("anna", "Shall we begin?"), ("ben", "Let us."), ("anna", "After you, then.")]
dialogue = trt_runtime.Dialogue.from_any(turns)
if len(sys.argv) > 1:
    dialogue = trt_runtime.read_script(sys.argv[1])  # a line a turn: "anna: Shall we begin?"
# A stored voice's name, a voice file or a path would do as well as (recording, its words).
voices = {
    name: (buzz(90 + 60 * number), f"Words of {name}.")
    for number, name in enumerate(dialogue.speakers)
}
with trt_runtime.load(*sys.argv[2:3]) as speaker:
    speech = speaker.synthesize(dialogue, voice=voices, seed=7, max_steps=30)
speech.save("dialogue.wav")
print(f"dialogue.wav: {speech.duration:.2f} s of {', '.join(dialogue.speakers)}")
print(speech.sentences[0].text)
