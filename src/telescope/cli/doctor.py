"""telescope doctor"""

from dataclasses import asdict
from typing import Annotated

import typer

from .options import AsJson, Plain
from .out import print_all, print_json


def doctor(
    every: Annotated[bool, typer.Option("--all", help="also what compiles for half a minute first")] = False,
    as_json: AsJson = False,
    plain: Plain = False,
) -> None:
    """Check every engine on this machine: right, how fast, and what is missing. Exit code 1 if one is wrong."""
    from ..tasks.doctor import doctor as examine
    from ..tasks.doctor import draw

    report = examine(every=every)
    if as_json:
        print_json(asdict(report), indent=1)
    else:
        print_all([draw(report)], plain)
    raise typer.Exit(0 if report.healthy else 1)
