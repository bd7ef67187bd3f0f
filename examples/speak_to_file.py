"""Text to a file, and what the result tells.

python examples/speak_to_file.py ["Hello." [hello.flac [ENGINES]]]
"""

import sys

import trt_runtime

text = sys.argv[1] if len(sys.argv) > 1 else "Hello."
path = sys.argv[2] if len(sys.argv) > 2 else "hello.flac"
engines = sys.argv[3] if len(sys.argv) > 3 else None  # the demonstration voice that ships
speech = trt_runtime.synthesize(text, engines=engines, seed=7)
speech.save(path)
print(f"{path}: {speech.duration:.2f} s, ended by {speech.finish_reason}, seed {speech.seed}")
print(f"real-time factor {speech.timings.real_time_factor:.2f}, seconds by component:")
for name, seconds in speech.timings.components.items():
    print(f"  {name:18} {seconds:.3f}")
