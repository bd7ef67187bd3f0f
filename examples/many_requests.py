"""Several requests at once over one loaded folder: each as if it were alone.

python examples/many_requests.py [ENGINES]
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import trt_runtime

TEXTS = ["One.", "Two, a little longer.", "Three, and the last but one.", "Four."]

with trt_runtime.load(*sys.argv[1:2]) as speaker, ThreadPoolExecutor(4) as pool:
    speeches = pool.map(lambda text: speaker.synthesize(text, seed=1), TEXTS)
    for text, speech in zip(TEXTS, speeches, strict=True):
        alone = speaker.synthesize(text, seed=1)
        same = (speech.audio == alone.audio).all()
        ended = f"{speech.duration:.2f} s, ended by {speech.finish_reason}"
        print(f"{text!r}: {ended}, the same alone: {same}")
