"""Makes the voices that ship with the demonstration, one of each flite voice it was trained on.

python -m training.voices --program P --bundle BUNDLE --out trt_runtime/data/voices
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from training.folders import made_folder
from training.speech import SAMPLE_RATE, VOICES, find_program, spoken
from trt_runtime import VoiceStore, load
from trt_runtime.exit_status import exit_status

#: Some 5 s in either voice. Its words are kept nowhere: the voices hold a speaker embedding alone.
SENTENCE = "the committee discussed the proposal for several hours, but no one agreed."


def make_voices(program: Path, bundle: Path, out: Path) -> list[Path]:
    """The files of the voices in `out`, written anew, the same bytes for the same bundle.

    bundle: the demonstration's, which the voices will belong to. Files of voices that are no longer
    in VOICES are left there.
    """
    store = VoiceStore(out)
    written = []
    # One thread, so that the sums of the speaker encoder are those of every other machine.
    with load(bundle, threads=1) as synthesizer:
        made_folder(out)
        for name, _, audio, _ in spoken(program, [(name, SENTENCE) for name in VOICES]):
            voice = synthesizer.encode_voice((audio, SAMPLE_RATE))
            written.append(store.add(name, voice, replace=True))
            print(f"{written[-1]}: {voice.duration:.1f} s", *voice.warnings, sep="\n")
    return written


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m training.voices", description=(__doc__ or "").splitlines()[0]
    )
    result.add_argument(
        "--program", type=Path, required=True, help="training/flite_speech.c, built"
    )
    result.add_argument("--bundle", type=Path, required=True, help="of the demonstration voice")
    result.add_argument("--out", type=Path, required=True, help="trt_runtime/data/voices")
    return result


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status: 2 for a user's mistake, 128 + N for signal N."""
    options = parser().parse_args(arguments)
    return exit_status(
        lambda: _run(options), "error", interrupted="interrupted; run it again to have all voices"
    )


def _run(options: argparse.Namespace) -> int:
    make_voices(find_program(options.program), options.bundle, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
