"""Numbers and signs as words: by a library, which `normalize=True` asks, and by the model itself.

python examples/normalize_text.py ["It costs $3,000." [ENGINES]]

Needs the extra `text`: pip install "ming-trt[text]".
"""

import sys

import trt_runtime

text = sys.argv[1] if len(sys.argv) > 1 else "Dr. Smith paid $3,000 on 5/1/2024."
try:
    print("library:", trt_runtime.spell_out(text))
except trt_runtime.UserError as error:  # where the extra is not installed: what to do about it
    print(error, file=sys.stderr)
    sys.exit(2)
with trt_runtime.load(*sys.argv[2:3]) as speaker:
    try:
        print("model:", speaker.normalize_text(text))
    except trt_runtime.UserError as error:  # the voice that ships learned to speak, not to write
        print("model:", error.what)
    speech = speaker.synthesize(text, normalize=True, seed=7)
print("spoken:", speech.sentences[0].text)
