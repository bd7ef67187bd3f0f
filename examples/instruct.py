"""How it is said: emotion, rate and dialect of a voice, a described voice, music underneath.

python examples/instruct.py [REF.wav [ENGINES]]
"""

import sys

from buzz import buzz

import trt_runtime
from trt_runtime import Background, Instruction

# An instruction goes with the embedding of a recording, without its words; a described voice and a
# built-in one go with the zero speaker. So the reference does it.
ANYBODY = {"reference": sys.argv[1] if len(sys.argv) > 1 else buzz(120)}
NOBODY = {"speaker_embedding": "zero"}
MANNERS = {
    "happy": (Instruction(emotion="happy", rate="fast"), ANYBODY),
    "cantonese": (Instruction(dialect="cantonese", volume="low"), ANYBODY),
    "rain": (Instruction(background=Background(environment="Rainfall", snr=10)), ANYBODY),
    "described": (Instruction(style="一位温柔的年轻女性，语速缓慢"), NOBODY),
    "built-in": (Instruction(ip="灵小甄"), NOBODY),
    "unchecked": ({"情感": "惊讶"}, ANYBODY),  # the model's own keys, any values
}
with trt_runtime.load(*sys.argv[2:3]) as speaker:
    for name, (instruction, voice) in MANNERS.items():
        # Few steps: the demonstration voice that ships knows neither Chinese nor instructions.
        speech = speaker.synthesize(
            "今天天气很好。", instruction=instruction, seed=7, max_steps=12, **voice
        )
        speech.save(f"instruct-{name}.wav")
        print(f"instruct-{name}.wav: {speech.duration:.2f} s, ended by {speech.finish_reason}")
