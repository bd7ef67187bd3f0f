"""Text to a file, and what the result tells.

python examples/speak_to_file.py "Hello." hello.flac [ENGINES]
"""

import sys

import trt_runtime

text, path, *engines = sys.argv[1:]
speech = trt_runtime.synthesize(text, engines=engines[0] if engines else None, seed=7)
speech.save(path)
print(f"{path}: {speech.duration:.2f} s, ended by {speech.finish_reason}, seed {speech.seed}")
print(f"real-time factor {speech.timings.real_time_factor:.2f}, seconds by component:")
for name, seconds in speech.timings.components.items():
    print(f"  {name:18} {seconds:.3f}")
