"""python -m fuzz commands | files | kills | requests | threads | numbers ...

    python -m fuzz ATTACK [--count N] [--seed 0] [--processes 1] [--only CASE] [--json PATH]
    python -m fuzz numbers [--minutes 10] [--device cpu | cuda] [--of attentions | models]

    commands   random command lines: each does its work, or says in one sentence why not
    files      files of every kind that Telescope reads, corrupted: each opens, or is refused in one
               sentence
    kills      kill -9 while something is written: nothing is lost, and the next run finishes as if
               undisturbed
    threads    one model that six threads edit, watch and run: each gets the numbers that it gets
               alone
    requests   requests on every route of the explorer, changed: each is answered, or refused in one
               sentence
    numbers    random attentions on every engine against float64, and whole models against the same
               numbers found another way

Exits with 1 if anything went wrong.
"""

import json
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from importlib import import_module
from pathlib import Path
from time import perf_counter

from .supervisor import supervise, work

ATTACKS = ("commands", "files", "kills", "requests", "threads")

parser = ArgumentParser(
    prog="python -m fuzz", description=__doc__, formatter_class=RawDescriptionHelpFormatter
)
parser.add_argument("attack", choices=(*ATTACKS, "numbers"))
parser.add_argument("--count", type=int, default=2000, help="cases")
parser.add_argument("--seed", type=int, default=0, help="another seed draws other cases")
parser.add_argument(
    "--processes", type=int, help="workers at a time; 1 unless given, for numbers as many as cores"
)
parser.add_argument(
    "--only", type=int, metavar="CASE", help="run this case alone, and show where it fails"
)
parser.add_argument("--json", type=Path, metavar="PATH", help="write the report here")
parser.add_argument("--minutes", type=float, default=10.0, help="of numbers: how long to go on")
parser.add_argument("--device", help="of numbers: cpu or cuda")
parser.add_argument(
    "--of", choices=("attentions", "models"), help="of numbers: this kind of case alone"
)
parser.add_argument("--work", metavar="FROM,TO", help="what a worker is started with")


def main() -> int:
    given = parser.parse_args()
    if given.attack == "numbers":
        return compare_numbers(given)
    if given.work:
        first, past = map(int, given.work.split(","))
        work(given.attack, first, past, given.seed)
        return 0
    return attack(given)


def attack(given: Namespace) -> int:
    began = perf_counter()
    first = given.only or 0
    count = given.count if given.only is None else 1
    report = supervise(given.attack, count, given.seed, first=first, processes=given.processes or 1)
    if given.only is not None:
        print(*(failed["where"] for failed in report.wrong), sep="\n")
    unit = import_module(f"fuzz.{given.attack}").UNIT
    for kind, number in sorted(report.counts.items()):
        print(f"{kind:<24} {number:>8,} {unit}, {report.accepted[kind]:,} accepted")
    slowest = ", ".join(
        f"case {case} {seconds:.1f} s" for seconds, case in reversed(report.slowest)
    )
    total = report.counts.total()
    print(
        f"{total:,} {unit} in {perf_counter() - began:.0f} s, {len(report.wrong)} wrong; slowest: "
        f"{slowest}"
    )
    if given.json:
        given.json.write_text(json.dumps(vars(report), ensure_ascii=False, indent=1))
    return 1 if report.wrong else 0


def compare_numbers(given: Namespace) -> int:
    import torch
    from benchmarks.measure import machine

    from . import numbers

    device = torch.device(given.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    header = machine(device)
    print(*(f"{name + ':':<11}{value}" for name, value in header.items()), "", sep="\n")
    return numbers.main(
        device, given.minutes, given.seed, given.json, header, given.of, given.processes
    )


if __name__ == "__main__":  # processes that an attack starts import this module again
    sys.exit(main())
