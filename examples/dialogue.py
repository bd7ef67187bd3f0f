"""Two speakers in one go: turns, or a script of them, and a voice for each.

python examples/dialogue.py [SCRIPT.txt [ENGINES]]
"""

import sys

from buzz import buzz

import trt_runtime

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
    speech = speaker.synthesize(dialogue, voice=voices, seed=7)
speech.save("dialogue.wav")
ended = f"{speech.duration:.2f} s, ended by {speech.finish_reason}"
print(f"dialogue.wav: {ended}, of {', '.join(dialogue.speakers)}")
print(speech.sentences[0].text)
