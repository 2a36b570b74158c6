"""Write the worked examples for the page: `python tools/worked_examples.py`.

web/engine/examples.json holds what telescope.tasks.explaining.worked defines, from which Python and
the page compute the same numbers. With `--check` nothing is written, and the exit status is 1 if
the file is not current.
"""

import json
import sys
from argparse import ArgumentParser
from pathlib import Path

from telescope.explorer.heads import distance_meanings, habit_meanings
from telescope.measures import CLEAR
from telescope.tasks.explaining.worked import WORKED, to_json

FILE = Path(__file__).parents[1] / "web" / "engine" / "examples.json"


def contents() -> str:
    """Return the file: a line for each input and each scene, so that a change is a line."""
    parts = []
    for example in to_json(WORKED):
        lists = {name: example.pop(name) for name in ("inputs", "scenes")}
        lines = [f"      {_json(name)}: {_json(value)}," for name, value in example.items()]
        for name, members in lists.items():
            inner = ",\n".join(f"        {_json(one)}" for one in members)
            lines.append(
                f"      {_json(name)}: [\n{inner}\n      ]{',' if name == 'inputs' else ''}"
            )
        parts.append("\n".join(["    {", *lines, "    }"]))
    # What the page calls the habits of heads, beside the examples.
    named = {"habit_keys": habit_meanings(), "distances": distance_meanings(), "clear": CLEAR}
    lines = [f"  {_json(name)}: {_json(value)}," for name, value in named.items()]
    return "\n".join(["{", *lines, '  "examples": [', ",\n".join(parts), "  ]", "}", ""])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if not current")
    given = parser.parse_args()
    if FILE.exists() and FILE.read_text(encoding="utf-8") == contents():
        return
    if given.check:
        sys.exit(
            "web/engine/examples.json is not current: python tools/worked_examples.py writes it"
        )
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(contents(), encoding="utf-8")


if __name__ == "__main__":
    main()
