"""`ming-trt normalize TEXT`: numbers, dates, units and addresses spelled out, as text."""

from __future__ import annotations

import argparse

from trt_runtime.cli import Command, add_engine_arguments, at_least_one, inputs, standard_output
from trt_runtime.errors import UserError

#: Options that only the model's own mode has, by argument.
_OF_THE_MODEL = {"engines": "--engines", "max_tokens": "--max-tokens", "threads": "--threads"}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text", metavar="TEXT", help="what to spell out; - reads it from standard input"
    )
    parser.add_argument(
        "--model", action="store_true",
        help="let the model write it (the dense family), in place of a library",
    )  # fmt: skip
    model = parser.add_argument_group("with --model")
    add_engine_arguments(model)
    model.add_argument(
        "--max-tokens", type=at_least_one, metavar="N",
        help="tokens within which it must end (default: 200)",
    )  # fmt: skip


def _run(arguments: argparse.Namespace) -> int:
    from trt_runtime.spoken_text import check_text

    given = [label for name, label in _OF_THE_MODEL.items() if getattr(arguments, name) is not None]
    if given and not arguments.model:
        raise UserError(
            f"{' and '.join(given)} without --model",
            found="the library, which needs no engines",
            do="give --model too, or leave this out",
        )
    standard_output.check_there()  # before gigabytes are loaded
    text = check_text(inputs.text_or_standard_input(arguments.text))
    standard_output.print_text(
        _written_by_model(text, arguments) if arguments.model else _spelled(text)
    )
    return 0


def _spelled(text: str) -> str:
    from trt_runtime.text_normalization import spell_out

    return spell_out(text)


def _written_by_model(text: str, arguments: argparse.Namespace) -> str:
    from trt_runtime.synthesizer import load

    limit = {} if arguments.max_tokens is None else {"max_tokens": arguments.max_tokens}
    with load(arguments.engines, threads=arguments.threads) as synthesizer:
        return synthesizer.normalize_text(text, **limit)


command = Command("normalize", "spell out the numbers and signs of a text", _add_arguments, _run)
