"""What commands print: texts, pictures and JSON."""

import json
import sys
from collections.abc import Iterable

from rich.console import Console, RenderableType


def print_all(drawn: Iterable[RenderableType], plain: bool) -> None:
    """Texts as they are, for a pipe takes them line by line; pictures as wide as a page."""
    from ..trace.terminal import text

    for one in drawn:
        if isinstance(one, str):
            print(one)
        elif plain or not sys.stdout.isatty():
            print(text(one, width=120))
        else:
            Console(highlight=False).print(one)
    sys.stdout.flush()


def print_json(contents: object, indent: int | None = None) -> None:
    print(json.dumps(contents, ensure_ascii=False, allow_nan=False, indent=indent), flush=True)
