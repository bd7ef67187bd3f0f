"""A voice made once, kept by name, shared as a file, and spoken with at no further cost.

python examples/stored_voice.py [REF.wav "Its words." [ENGINES]]
"""

import sys

from buzz import buzz

import trt_runtime

reference, words = sys.argv[1:3] if len(sys.argv) > 2 else (buzz(120), "Words of a buzz.")
store = trt_runtime.VoiceStore("voices")  # a folder; without an argument it is the user's
with trt_runtime.load(*sys.argv[3:4], voices=store.folder) as speaker:
    voice = speaker.encode_voice(reference, words)
    print("kept in", store.add("anna", voice, replace=True))
    exported = store.export("anna", "anna.safetensors", replace=True)
    print("shared as", exported)
    store.import_(exported, "friend", replace=True)
    print("voices:", ", ".join(store.names()))
    spoken = speaker.synthesize("Hello.", voice="friend", seed=7)
    cloned = speaker.synthesize("Hello.", reference=reference, reference_text=words, seed=7)
    print("the same samples as its recording:", (spoken.audio == cloned.audio).all())
    store.remove("friend")
