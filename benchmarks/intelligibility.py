"""Word error rates of an engine folder's speech under a speech recogniser, beside its source's.

    python -m benchmarks.intelligibility --engines ENGINES --source-program flite_speech \\
        --out benchmarks/results/intelligibility.json

Says every sentence of a list that no voice here is trained on, and lets the recogniser of
`benchmarks/recognition.py` write down what it hears: of the voice that the model was trained on, of
that voice through the audio codec alone (the folder's audio encoder and decoder), and of the
engines' speech. The source's own rate is what the recogniser gets wrong by itself.
`--source-program` is made of training/flite_speech.c; `--source-folder` takes the waves that
`--keep` wrote before. With `--compare-voices` it also tells how alike two voices are, within and
between them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.held_out import HELD_OUT, VOICES
from benchmarks.listening import LENGTH_TOLERANCE, Listener, Utterance, read_sentences
from benchmarks.provenance import check_result, provenance, write_result
from benchmarks.recognition import Recogniser
from benchmarks.saying import (
    DEFAULT_VOICE,
    kept,
    reconstructed,
    speech,
    voice_of,
    voices_of,
)
from benchmarks.source_voice import Wave, spoken_by_program, spoken_in_folder
from benchmarks.speaker_similarity import ENCODERS, similarity
from training.folders import made_folder
from training.speech import VOICES as TRAINED_VOICES
from trt_runtime.cli import add_engine_arguments, add_voices_argument
from trt_runtime.errors import FolderError, UserError
from trt_runtime.exit_status import exit_status
from trt_runtime.folder import OpenFolder, open_folder
from trt_runtime.noise import check_seed
from trt_runtime.synthesizer import Synthesizer
from trt_runtime.voice import Voice
from trt_runtime.voice_store import VoiceStore

PROGRAM = "python -m benchmarks.intelligibility"


def source_waves(
    options: argparse.Namespace, texts: Sequence[str]
) -> tuple[dict[str, list[Wave]], str | None]:
    """Of each source voice, a wave a sentence; without one, why not."""
    if options.source_program is not None:
        names = options.source_voice
        return {v: spoken_by_program(options.source_program, v, texts) for v in names}, None
    if options.source_folder is not None:
        folders = dict.fromkeys(options.source_voice, options.source_folder)
        if len(folders) > 1:
            folders = {voice: folder / f"source-{voice}" for voice, folder in folders.items()}
        return {v: spoken_in_folder(folder, len(texts)) for v, folder in folders.items()}, None
    return {}, "no --source-program or --source-folder was given"


def measure(opened: OpenFolder, options: argparse.Namespace) -> dict[str, Any]:
    """Every row of the result, and what was left out with the reason.

    All input is read before anything is spoken, so that a mistake in it costs no minutes.
    """
    listener = Listener(Recogniser(), read_sentences(options.sentences))
    texts = listener.texts
    if unknown := listener.unknown_words:
        _tell(f"warning: {len(unknown)} words are not in the dictionary: {', '.join(unknown)}")
    seeds = [check_seed(seed) for seed in dict.fromkeys(options.seeds)]
    if options.keep is not None:
        made_folder(options.keep, f"Waves cannot be kept in {options.keep}", "--keep")
    synthesizer = Synthesizer(opened, options.voices)
    voices = voices_of(synthesizer, VoiceStore(options.voices), (DEFAULT_VOICE, *options.voice))
    compared = comparison(opened, synthesizer, options)
    sources, missing = source_waves(options, texts)
    rows: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}

    def skip(row: str, reason: str) -> None:
        skipped[row] = reason
        _tell(f"no {row} row: {reason}")

    def add(row: str, voice: str, utterances: Iterator[Utterance], source: str | None) -> None:
        heard = kept(options.keep, f"{row}-{voice}", utterances)
        figures = listener.row(heard, None if source is None else sources[source])
        rows.append({"row": row, "voice": voice, "source_voice": source, **figures})

    if missing is not None:
        skip("source", missing)
        skip("codec", missing)
    for voice, waves in sources.items():
        add("source", voice, (Utterance(i, wave) for i, wave in enumerate(waves)), voice)
    for voice, waves in sources.items():
        try:
            codec = [reconstructed(opened, wave) for wave in tqdm(waves, "codec", disable=None)]
        except FolderError as error:
            skip("codec", str(error))
            break
        add("codec", voice, (Utterance(i, wave) for i, wave in enumerate(codec)), voice)
    synthesizer.warmup()
    for name, voice_or_none in voices:
        source = name if name in sources else next(iter(sources), None)
        add("speech", name, speech(synthesizer, voice_or_none, texts, seeds), source)
    return {
        "sentences": {
            "file": options.sentences.name,
            "count": len(texts),
            "not_in_dictionary": unknown,
        },
        "seeds": seeds,
        "length_tolerance": LENGTH_TOLERANCE,
        "rows": rows,
        "skipped": skipped,
        "voices": compared(),
    }


def comparison(
    opened: OpenFolder, synthesizer: Synthesizer, options: argparse.Namespace
) -> Callable[[], dict[str, Any] | None]:
    """What tells how alike two voices are that say the same sentences, all its input read."""
    if not options.compare_voices:
        return lambda: None
    texts = read_sentences(options.voice_sentences)
    if len(texts) < 2:
        raise UserError(
            f"{options.voice_sentences} has one sentence, and a voice is compared with itself",
            expected="two or more",
            do="give others with --voice-sentences",
        )
    store = VoiceStore(options.voices)
    voices = [voice_of(synthesizer, store, given) for given in options.compare_voices]
    judge = ENCODERS[options.speaker_encoder]
    embed = judge.make(opened)

    def waves(name: str, voice: Voice | None) -> list[Wave]:
        spoken = speech(synthesizer, voice, texts, options.seeds[:1])
        return [item.wave for item in kept(options.keep, f"compared-{name}", spoken)]

    def compare() -> dict[str, Any]:
        return {
            "names": [name for name, _ in voices],
            "sentences": {"file": options.voice_sentences.name, "count": len(texts)},
            "encoder": options.speaker_encoder,
            "encoder_is": judge.remark,
            **similarity(embed, *(waves(*voice) for voice in voices)),
        }

    return compare


def summary(result: Mapping[str, Any]) -> str:
    """The result in a few lines, for a terminal."""
    lines = []
    for row in result["rows"]:
        rate, count = row["word_error_rate"], row["utterances"]
        line = (
            f"{row['row']:<7}{row['voice']:<10} word error rate {rate['rate']:.3f} "
            f"({rate['low']:.3f} to {rate['high']:.3f}) of {row['words']} words, "
            f"exact {row['exact']}/{count}"
        )
        if row["row"] == "speech":
            speed, first, ratio = (
                row[name] for name in ("real_time_factor", "first_audio_seconds", "length_ratio")
            )
            line += f", stopped {row['stopped']}/{count}"
            if ratio is not None:
                line += (
                    f", length within {LENGTH_TOLERANCE:.0%} of {row['source_voice']} "
                    f"{ratio['near']}/{count} ({ratio['min']:.2f} to {ratio['max']:.2f}, "
                    f"median {ratio['median']:.2f})"
                )
            line += (
                f", real-time factor {speed['median']:.2f} ({speed['min']:.2f} to "
                f"{speed['max']:.2f}), first audio {first['median']:.3f} s"
            )
        lines.append(line)
    lines += [f"no {row} row: {reason}" for row, reason in result["skipped"].items()]
    if voices := result["voices"]:
        within, between = voices["within"], voices["between"]
        lines.append(
            f"{' and '.join(voices['names'])}: cosine within a voice {within['min']:.3f} to "
            f"{within['max']:.3f}, between them {between['min']:.3f} to {between['max']:.3f}: "
            + ("separated" if voices["separated"] else "not separated")
            + f"; told apart in {voices['pairs_told_apart']} of {voices['sentence_pairs']} pairs "
            "of sentences" + f" ({voices['encoder_is']})"
        )
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.splitlines()[0])
    add_engine_arguments(made)
    add_voices_argument(made)
    made.add_argument(
        "--sentences", type=Path, default=HELD_OUT, metavar="FILE",
        help="a sentence a line (default: the 60 that ship)",
    )  # fmt: skip
    source = made.add_mutually_exclusive_group()
    source.add_argument(
        "--source-program", type=Path, metavar="PATH", help="what training/flite_speech.c makes"
    )
    source.add_argument(
        "--source-folder", type=Path, metavar="DIR",
        help="waves 000.wav, 001.wav, …; of several source voices in source-NAME each, as "
        "--keep writes them",
    )  # fmt: skip
    made.add_argument(
        "--source-voice", action="append", metavar="NAME",
        help=f"may be repeated (default: {TRAINED_VOICES[0]}); the lengths of a voice are compared "
        "with those of the source of its name, or of the first",
    )  # fmt: skip
    made.add_argument(
        "--voice", action="append", default=[], metavar="NAME_OR_FILE",
        help="another voice than the default one, too; may be repeated",
    )  # fmt: skip
    made.add_argument(
        "--seeds", type=int, nargs="+", default=[0], metavar="N",
        help="each sentence is said with each (default: 0)",
    )  # fmt: skip
    made.add_argument(
        "--compare-voices", nargs=2, metavar="NAME_OR_FILE",
        help=f"also how alike two voices are; {DEFAULT_VOICE!r} is the default one",
    )  # fmt: skip
    made.add_argument(
        "--voice-sentences", type=Path, default=VOICES, metavar="FILE",
        help="what they say (default: 20 others)",
    )  # fmt: skip
    made.add_argument(
        "--speaker-encoder", choices=ENCODERS, default="folder",
        help="who compares them (default: the folder's own encoder)",
    )  # fmt: skip
    made.add_argument("--keep", type=Path, metavar="DIR", help="write every wave, a folder a row")
    made.add_argument("--out", type=Path, metavar="FILE", help="JSON to write")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    options.source_voice = options.source_voice or [TRAINED_VOICES[0]]

    def run() -> int:
        check_result(options.out)
        opened = open_folder(options.engines, threads=options.threads)
        manifest = opened.manifest
        packages = ["numpy", "onnxruntime", "pocketsphinx"]
        if options.compare_voices:
            packages += ENCODERS[options.speaker_encoder].packages
        result = {
            **measure(opened, options),
            "engines": {
                "folder": opened.path.name,
                "family": manifest.family,
                "target": manifest.target or "bundle",
                "precision": dict(manifest.precision),
                "source": dict(manifest.source),
                "sample_rate": manifest.geometry.sample_rate,
                "threads": options.threads or "every core",
            },
            "recogniser": "pocketsphinx, its en-us model",
        }
        print(summary(result))
        write_result(options.out, {**provenance(*packages), **result}, printed=False)
        return 0

    return exit_status(run, PROGRAM, interrupted=f"{PROGRAM}: interrupted")


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
