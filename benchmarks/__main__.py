"""python -m benchmarks attend | survey | watch | train_step | decode | explore

    [--quick] [--json PATH] [--device cpu | cuda]

A benchmark is a module here with `about(device, quick)`, its sizes in one line, and `run(device, quick)`,
which yields Rows.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from importlib import import_module
from pathlib import Path

import torch

from .measure import Row, machine, save

parser = ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
parser.add_argument("benchmark", choices=["attend", "survey", "watch", "train_step", "decode", "explore"])
parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
parser.add_argument("--json", type=Path, metavar="PATH", help="every figure with all its digits")
parser.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu")
asked = parser.parse_args()

benchmark = import_module(f".{asked.benchmark}", __package__)
header = machine(asked.device)
about = benchmark.about(asked.device, asked.quick)
print(*(f"{name + ':':<11}{value}" for name, value in header.items()), "", about, "", Row.heads, sep="\n")

rows: list[Row] = []
for row in benchmark.run(asked.device, asked.quick):
    if rows and rows[-1].case != row.case:
        print()
    print(row, flush=True)
    rows.append(row)
if asked.json:
    save(asked.json, {"benchmark": asked.benchmark, "about": about, "machine": header}, rows)
