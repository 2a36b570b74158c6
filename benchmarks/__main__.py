"""python -m benchmarks attend | survey | watch | own_model | edit | estimate | sources | atlas | health | train_step
    | decode | explore | drag | classroom | fixed_costs

    [--quick] [--json PATH] [--device cpu | cuda]

A benchmark is a module here with `about(device, quick)`, its sizes in one line, and `run(device,
quick)`, which yields Rows.
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from importlib import import_module
from pathlib import Path

import torch

from .measure import Row, machine, save

parser = ArgumentParser(
    prog="python -m benchmarks", description=__doc__, formatter_class=RawDescriptionHelpFormatter
)
NAMES = (
    "attend", "survey", "watch", "own_model", "edit", "estimate", "sources", "atlas", "health", "train_step", "decode",
    "explore", "drag", "classroom", "fixed_costs",
)  # fmt: skip
parser.add_argument("benchmark", choices=NAMES)
parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
parser.add_argument("--json", type=Path, metavar="PATH", help="every figure with all its digits")
parser.add_argument(
    "--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu"
)


def main() -> int:
    arguments = parser.parse_args()
    benchmark = import_module(f".{arguments.benchmark}", __package__)
    header = machine(arguments.device)
    print(*(f"{name + ':':<11}{value}" for name, value in header.items()), "", sep="\n")
    about = benchmark.about(arguments.device, arguments.quick)
    print(about, "", Row.heads, sep="\n")
    rows: list[Row] = []
    for row in benchmark.run(arguments.device, arguments.quick):
        if rows and rows[-1].case != row.case:
            print()
        print(row, flush=True)
        rows.append(row)
    if arguments.json:
        save(
            arguments.json,
            {"benchmark": arguments.benchmark, "about": about, "machine": header},
            rows,
        )
    return 0


if __name__ == "__main__":  # processes that a benchmark starts import this module again
    sys.exit(main())
