"""Audio while it is made, and leaving before the end.

python examples/stream_chunks.py ["A long story." [ENGINES]]
"""

import sys
import time

import trt_runtime

text = sys.argv[1] if len(sys.argv) > 1 else "A story, and it is not a short one."
with trt_runtime.load(*sys.argv[2:3]) as speaker:
    speaker.warmup()
    start = time.perf_counter()
    for chunk in speaker.stream(text, chunk_patches=2):
        at = time.perf_counter() - start
        seconds = len(chunk.audio) / chunk.sample_rate
        print(f"{at:6.3f} s  chunk {chunk.index}: {seconds:.3f} s of audio from {chunk.start}")
        if chunk.index == 9:
            print("enough: leaving the loop frees the request")
            break
