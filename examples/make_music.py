"""Music from a description, with its progress, stopped where it goes on far too long.

python examples/make_music.py [SECONDS [ENGINES]]
"""

import sys

import trt_runtime

music = trt_runtime.Music(
    genre="电子舞曲",
    mood="快乐",
    instrument="架子鼓",
    theme="节日",
    duration=float(sys.argv[1]) if len(sys.argv) > 1 else 5,
)
print(music.text())
with trt_runtime.load(*sys.argv[2:3]) as speaker:
    speech = speaker.synthesize(
        music,
        seed=7,
        on_runaway="stop",
        on_progress=lambda p: print(f"\rstep {p.step} of {p.max_steps}", end="", file=sys.stderr),
    )
speech.save("music.flac")
print(f"music.flac: {speech.duration:.2f} s, ended by {speech.finish_reason}")
