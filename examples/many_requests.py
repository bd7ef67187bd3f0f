"""Several requests at once over one loaded folder: they share each step, each as if it were alone.

python examples/many_requests.py [ENGINES]
"""

import asyncio
import sys

import trt_runtime

TEXTS = ["One.", "Two, a little longer.", "Three, and the last but one.", "Four."]

with trt_runtime.load(*sys.argv[1:2]) as speaker:
    submitted = [speaker.submit(text, seed=1) for text in TEXTS]
    for text, submission in zip(TEXTS, submitted, strict=True):
        speech = submission.result()
        alone = speaker.synthesize(text, seed=1)
        ended = f"{speech.duration:.2f} s, ended by {speech.finish_reason}"
        same = len(speech.audio) == len(alone.audio)
        off = abs(speech.audio - alone.audio).max() / abs(alone.audio).max() if same else 1.0
        print(f"{text!r}: {ended}, as long alone: {same}, off by {off:.0e} of the loudest sample")

    async def listen(text: str) -> float:
        """Seconds of audio, as it comes."""
        chunks = [chunk.audio async for chunk in speaker.submit(text, seed=2)]
        return sum(map(len, chunks)) / speaker.sample_rate

    async def listen_to_all() -> list[float]:
        return await asyncio.gather(*map(listen, TEXTS))

    print("in one event loop:", [f"{seconds:.2f} s" for seconds in asyncio.run(listen_to_all())])
