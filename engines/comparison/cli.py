"""`ming-trt compare A B`: is B what A is? Imports nothing heavy until it runs."""

from __future__ import annotations

import argparse

from engines.comparison.packages import TO_COMPARE, require_packages
from trt_runtime.cli import Command, at_least_one, standard_output
from trt_runtime.errors import UserError
from trt_runtime.exit_status import tell

EXCEEDED = 1


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, what in (("a", "the reference"), ("b", "what is judged")):
        parser.add_argument(
            name, metavar=name.upper(), help=f"{what}: a checkpoint, a bundle or engines"
        )
    parser.add_argument("--inputs", metavar="FILE.npz", help="recorded inputs (default: seeded)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default: 0)")
    parser.add_argument(
        "--steps", type=at_least_one, default=50, metavar="N", help="of the loop (default: 50)"
    )
    parser.add_argument(
        "--budget", action="append", default=[], metavar="NAME=VALUE",
        help="another limit; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--isolate", action="store_true", help="find the first node that leaves its budget"
    )
    parser.add_argument("--json", metavar="FILE", help="write all that was found")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the drift and spectrograms")
    parser.add_argument("--threads", type=at_least_one, metavar="N", help="(default: every core)")
    parser.add_argument("--quiet", action="store_true", help="print the report only")


def _run(arguments: argparse.Namespace) -> int:
    require_packages("Comparing", TO_COMPARE)

    from engines.comparison.compare import compare

    report = compare(
        arguments.a,
        arguments.b,
        inputs=arguments.inputs,
        seed=arguments.seed,
        steps=arguments.steps,
        budgets=_budgets(arguments.budget),
        isolate=arguments.isolate,
        json=arguments.json,
        plot=arguments.plot,
        threads=arguments.threads,
        progress=(lambda line: None) if arguments.quiet else tell,
    )
    for line in report.lines():
        standard_output.print_line(line)
    return 0 if report.passed else EXCEEDED


def _budgets(given: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in given:
        name, sign, value = text.partition("=")
        try:
            if not sign or name in found:
                raise ValueError
            found[name] = float(value)
        except ValueError:
            raise UserError(
                "--budget cannot be used",
                expected="NAME=VALUE with a number, each name once",
                found=text,
                do="write for instance --budget flow=1e-4",
            ) from None
    return found


command = Command(
    "compare", "judge engines or a bundle by a reference, component by component", _add_arguments,
    _run,
)  # fmt: skip
