"""How far a recording makes an engine folder speak in its voice: similarity, and words.

    python -m benchmarks.cloning --source-program ./flite_speech --out cloning.json

Twenty sentences are said by each source voice itself, by the engines without a recording, and by
the engines with a recording of each source voice: by its speaker embedding, by embedding and
latents with its words, and by its latents alone. Each is compared with the source voices saying the
same. A voice that talker and codec were not trained on (`--unheard`) shows where cloning ends.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.held_out import VOICES
from benchmarks.listening import Listener, Utterance, read_sentences
from benchmarks.provenance import check_result, provenance, write_result
from benchmarks.recognition import Recogniser
from benchmarks.source_voice import Wave, spoken_by_program
from benchmarks.speaker_similarity import ENCODERS, Embed, unit
from training.speech import VOICES as TRAINED_VOICES
from training.voices import SENTENCE
from trt_runtime.cli import add_engine_arguments
from trt_runtime.exit_status import exit_status
from trt_runtime.folder import open_folder
from trt_runtime.spread import spread
from trt_runtime.synthesizer import Synthesizer

#: The row of a source voice's own waves.
SOURCE = "the source itself"
#: How a recording is used, as `docs/speaking.md` names it: options of the request beside it.
WAYS: dict[str, dict[str, Any]] = {
    "embedding": {},
    "embedding and latents": {"reference_text": SENTENCE},
    "latents": {"reference_text": SENTENCE, "speaker_embedding": None},
}


def mean_embedding(embed: Embed, waves: Sequence[Wave]) -> NDArray[np.float64]:
    """The direction of the mean of unit embeddings, (size,)."""
    return unit(np.mean([unit(embed(wave)) for wave in waves], axis=0))


def measure(options: argparse.Namespace, synthesizer: Synthesizer, embed: Embed) -> dict[str, Any]:
    """The rows of the result: of each way to speak, the words and the similarities."""
    listener = Listener(Recogniser(), read_sentences(options.sentences))
    names = list(dict.fromkeys((*TRAINED_VOICES, *options.unheard)))
    unheard = names[len(TRAINED_VOICES) :]
    program = options.source_program.resolve()
    recordings = {name: spoken_by_program(program, name, [SENTENCE])[0] for name in names}
    sources = {name: spoken_by_program(program, name, listener.texts) for name in names}
    centres = {name: mean_embedding(embed, waves) for name, waves in sources.items()}
    rows = [
        {"recording": name, "way": SOURCE, **_figures(listener, embed, centres, waves)}
        for name, waves in sources.items()
    ]
    jobs: list[tuple[str | None, str | None, dict[str, Any]]] = [(None, None, {})]
    for name in names:
        wave = recordings[name]
        for way, extra in WAYS.items():
            jobs.append((name, way, {"reference": (wave.audio, wave.sample_rate), **extra}))
    for name, way, request in tqdm(jobs, desc="cloning", disable=None):
        spoken = [
            synthesizer.synthesize(text, seed=options.seed, **request) for text in listener.texts
        ]
        waves = [Wave(speech.audio, speech.sample_rate) for speech in spoken]
        stopped = sum(speech.finish_reason == "stop" for speech in spoken)
        figures = _figures(listener, embed, centres, waves)
        rows.append({"recording": name, "way": way, "stopped": stopped, **figures})
    return {"unheard": unheard, "rows": rows}


def _figures(
    listener: Listener,
    embed: Embed,
    centres: Mapping[str, NDArray[np.float64]],
    waves: Sequence[Wave],
) -> dict[str, Any]:
    """What was heard of a row's waves, and how like each source voice they are."""
    vectors = np.stack([unit(embed(wave)) for wave in waves])
    heard = listener.row(Utterance(i, wave) for i, wave in enumerate(waves))
    return {
        "sentences": len(waves),
        "word_error_rate": heard["word_error_rate"],
        "similarity": {
            other: spread((vectors @ centre).tolist()) for other, centre in centres.items()
        },
    }


def summary(result: dict[str, Any]) -> str:
    """The result in a line a row, for a terminal."""
    lines = []
    for row in result["rows"]:
        likeness = ", ".join(
            f"{name} {s['median']:.2f} ({s['min']:.2f} to {s['max']:.2f})"
            for name, s in row["similarity"].items()
        )
        said = f"{row['recording']}, {row['way']}" if row["recording"] else "no recording"
        lines.append(
            f"{said:<28} word error rate {row['word_error_rate']['rate']:.3f}, "
            + (f"stopped {row['stopped']}/{row['sentences']}, " if "stopped" in row else "")
            + f"similarity to {likeness}"
        )
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.cloning", description=__doc__.splitlines()[0]
    )
    add_engine_arguments(made)
    made.add_argument(
        "--source-program", type=Path, required=True, metavar="PATH",
        help="what training/flite_speech.c makes",
    )  # fmt: skip
    made.add_argument("--sentences", type=Path, default=VOICES, metavar="FILE")
    made.add_argument(
        "--unheard", nargs="*", default=["awb"], metavar="NAME",
        help="source voices that talker and codec were not trained on (default: awb)",
    )  # fmt: skip
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--speaker-encoder", choices=ENCODERS, default="folder")
    made.add_argument("--out", type=Path, metavar="FILE", help="JSON to write")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)

    def run() -> int:
        check_result(options.out)
        opened = open_folder(options.engines, threads=options.threads)
        judge = ENCODERS[options.speaker_encoder]
        embed = judge.make(opened)
        result = {
            **measure(options, Synthesizer(opened, None), embed),
            "encoder": options.speaker_encoder,
            "encoder_is": judge.remark,
            "engines": {"folder": opened.path.name, "target": opened.manifest.target or "bundle"},
            **provenance("numpy", "onnxruntime", "pocketsphinx", *judge.packages),
        }
        print(summary(result))
        write_result(options.out, result, printed=False)
        return 0

    return exit_status(run, "benchmarks.cloning", interrupted="benchmarks.cloning: interrupted")


if __name__ == "__main__":
    sys.exit(main())
