"""python -m benchmarks attend | survey | watch | edit | sources | atlas | health | train_step | decode | explore
    | fixed_costs | fuzz

    [--quick] [--json PATH] [--device cpu | cuda]
    fuzz: [--minutes 10] [--seed 0] [--only attentions | models] [--processes N]

A benchmark is a module here with `about(device, quick)`, its sizes in one line, and `run(device, quick)`,
which yields Rows. `fuzz` measures nothing: it compares random attentions with float64 and
whole models with the same numbers found another way, and exits with 1 if one is wrong.
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from importlib import import_module
from pathlib import Path

import torch

from .measure import Row, machine, save

parser = ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
NAMES = (
    "attend", "survey", "watch", "edit", "sources", "atlas", "health", "train_step", "decode", "explore", "fixed_costs",
    "fuzz",
)  # fmt: skip
parser.add_argument("benchmark", choices=NAMES)
parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
parser.add_argument("--json", type=Path, metavar="PATH", help="every figure with all its digits")
parser.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--minutes", type=float, default=10.0, help="of fuzz: how long it hunts")
parser.add_argument("--seed", type=int, default=0, help="of fuzz: another seed draws other cases")
parser.add_argument("--only", choices=("attentions", "models"), help="of fuzz: this kind of case alone")
parser.add_argument("--processes", type=int, help="of fuzz: how many; as many as cores unless given")


def main() -> int:
    arguments = parser.parse_args()
    benchmark = import_module(f".{arguments.benchmark}", __package__)
    header = machine(arguments.device)
    print(*(f"{name + ':':<11}{value}" for name, value in header.items()), "", sep="\n")
    if arguments.benchmark == "fuzz":
        options = (arguments.json, header, arguments.only, arguments.processes)
        found: int = benchmark.main(arguments.device, arguments.minutes, arguments.seed, *options)
        return found
    about = benchmark.about(arguments.device, arguments.quick)
    print(about, "", Row.heads, sep="\n")
    rows: list[Row] = []
    for row in benchmark.run(arguments.device, arguments.quick):
        if rows and rows[-1].case != row.case:
            print()
        print(row, flush=True)
        rows.append(row)
    if arguments.json:
        save(arguments.json, {"benchmark": arguments.benchmark, "about": about, "machine": header}, rows)
    return 0


if __name__ == "__main__":  # processes that a benchmark starts import this module again
    sys.exit(main())
