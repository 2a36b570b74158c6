"""Write the explorer's types for the page and its API reference: `python tools/api_types.py`.

Both come from the route table of telescope.explorer.api and from the dataclasses that its functions
return: web/types.d.ts and docs/reference/explorer_api.md. With `--check` nothing is written, and
the exit status is 1 if a file is not current.
"""

import inspect
import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from textwrap import fill
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from telescope.explorer import answers
from telescope.explorer.api import RUN_ROUTES, Route, library_routes
from telescope.explorer.library import Library
from telescope.explorer.maps import Picture

ROOT = Path(__file__).parents[1]
# What the page calls a few classes, whose own names stand for other things in Python
NAMES = {"RunFacts": "Run", "AttentionFacts": "Attention", "TraceAnswer": "Trace"}
WRITTEN_BY = "Written by tools/api_types.py from the dataclasses of telescope.explorer"
PLAIN = {
    int: "number",
    float: "number",
    str: "string",
    bool: "boolean",
    NoneType: "null",
    Any: "any",
    answers.Vector: "number[]",
    answers.Matrix: "number[][]",
    answers.Scores: "JsonNumber[]",
    answers.Weights: "JsonNumber[][]",
}

INTRODUCTION = f"""# The explorer's API

<!-- {WRITTEN_BY}. -->

`telescope serve` answers these requests under `/api/v1`; a notebook and an exported file hold the
same answers. Version 1 is stable: keys may be added, and none is renamed.

Numbers that JSON lacks are the strings `"-inf"`, `"inf"` and `"nan"`. Answers marked *all digits*
are computed in float64 from the recorded tensors and sent whole, since the page computes with them.
All others are in the model's precision, and are sent with the seven digits of float32. Tiles and
tracks are binary and have fewer digits.

| parameter | meaning |
|---|---|
| `l` | index of an attention in the run's list `attentions` |
| `h` | number of a head in the model |
| `b` | sequence of the batch, 0 by default |
| `i`, `j` | query and key, from 0 |

Every answer over HTTP has the header `X-Request-Id`, which the log of `telescope serve --log`
repeats. An error is `{{"error": {{"code": "unknown-run", "message": "one sentence", "request": "its id,
over HTTP"}}}}`:

| status | codes |
|---|---|
| 400 | `bad-parameter`, `bad-json`, `bad-name` |
| 401 | `no-token` |
| 403 | `bad-host`, `bad-origin` |
| 404 | `unknown-run`, `unknown`, `no-tile` |
| 405 | `method` |
| 408 | `slow` |
| 409 | `not-kept`, `too-long`, `damaged`, `other-shape`, `zero-sum`, `no-model` |
| 413 | `too-large` |
| 415 | `not-json` |
| 422 | `text` |
| 429 | `wrong-token`, with Retry-After |
| 503 | `busy`, with Retry-After |

## Requests

### POST /runs

Makes a run, and answers 201 with a [Run](#run). The body is one of:

- `{{"text": "…", "model": "…", "target": "…"}}`: `target` is the translation that the decoder is
  forced to write; without it the model decodes its own. `model` and `target` may be left out.
- `{{"example": "bank", "inputs": {{"x": [[…]]}}, "normalize": "softmax"}}`: a worked example, computed
  from these numbers; `inputs` and `normalize`, which may be `"by_sum"`, may be left out.
- `{{"atlas": "…", "l": 0, "h": 1, "habit": "previous", "rank": 0}}`: one of the texts in which a habit
  is strongest, with `opened`.

### GET /runs/{{run}}/export

`?l&h&i&b&start&format=html|json`

One file of at most 4 MB with the answers about an attention of a short run, those about the shown
head first; it opens at the address `start`, `/s/{{run}}/…`. Its [Run](#run) has `held` and, in its
notice, what was left out. As JSON: `{{"version": 1, "start": "/s/r1/walk?…", "answers": {{"/runs/r1":
…}}}}`, by paths without /api/v1, with sorted parameters, b=0 and fmt=f16 left out. Tokens and geometry
are complete, without start and stop. Traces and weights are packed; explorer/export.py says how,
and web/transport/inline.js unpacks them. The HTML file has the same in `<script
type="application/json" id="telescope-answers">`.

### GET /handouts/{{lesson}}

One HTML file of at most 400 KB with one lesson: journey, qkv, scale, mask, bank, heads, translate
or next. It opens from disk: worked examples are computed by the page, and what the lesson asks of a
model is recorded for a few sentences. 409 `no-model` without such a model.
"""


# ------------------------------------------------------------------------------ routes and classes


def routes() -> dict[str, Route]:
    """Return all routes, by path."""
    about_runs = {f"runs/{{run}}/{path}".rstrip("/"): route for path, route in RUN_ROUTES.items()}
    return {f"/{path}": route for path, route in (library_routes(Library({})) | about_runs).items()}


def members(hint: Any) -> Sequence[Any]:
    """Return the members of a union, or the one type."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]


def classes_in(hint: Any) -> Iterator[type[answers.Answer]]:
    """Yield the answers that a type is made of, each before those inside of it."""
    for member in members(hint):
        if isinstance(member, type) and issubclass(member, answers.Answer):
            yield member
            for part in get_type_hints(member).values():
                yield from classes_in(part)
        elif get_origin(member) is not None:
            for part in get_args(member):
                yield from classes_in(part)


def all_classes() -> dict[str, type[answers.Answer]]:
    """Return every answer and part of one, by its name in TypeScript, in the order of the
    routes.
    """
    returned = [get_type_hints(route.answer)["return"] for route in routes().values()]
    return {name_of(one): one for hint in returned for one in classes_in(hint)}


def name_of(one: type) -> str:
    return NAMES.get(one.__name__, one.__name__)


def typescript(hint: Any) -> str:
    """Return a type of Python as one of TypeScript; a key that may be absent is told elsewhere."""
    parts = [one for one in members(hint) if one is not answers.Absent]
    if float in parts and str in parts:
        parts = [one for one in parts if one not in (float, str)]
        return " | ".join(["JsonNumber", *map(typescript, parts)])
    if len(parts) > 1:
        return " | ".join(map(typescript, parts))
    (one,) = parts
    if one in PLAIN:
        return PLAIN[one]
    inner = [typescript(part) for part in get_args(one)]
    if get_origin(one) is tuple:
        return f"[{', '.join(inner)}]"
    if get_origin(one) is dict:
        return f"Record<string, {inner[1]}>"
    if get_origin(one) is not None:
        return f"({inner[0]})[]" if "|" in inner[0] else f"{inner[0]}[]"
    return name_of(one)


def described(one: type) -> tuple[str, dict[str, str]]:
    """Return what a docstring says of a class, and of each field that it explains: "name  text" in
    lines of its own.
    """
    known = {field.name.removesuffix("_") for field in fields(one)}
    about: list[str] = []
    explained: dict[str, str] = {}
    name = None
    for line in (inspect.getdoc(one) or "").splitlines():
        begins = re.match(r"(\w+) {2,}(\S.*)", line)
        if begins and begins[1] in known:
            name = begins[1]
            explained[name] = begins[2]
        elif name is not None and line.startswith("  "):
            explained[name] += f" {line.strip()}"
        else:
            about.append(line)
    return " ".join(" ".join(about).split()), explained


def keys_of(one: type) -> Iterator[tuple[str, str]]:
    """Yield the name of each key, with "?" where it may be absent, and its type."""
    for field in fields(one):
        hint = get_type_hints(one)[field.name]
        if hint is answers.Columns:
            yield "[column: string]", "any"
        else:
            mark = "?" if answers.Absent in members(hint) else ""
            yield field.name.removesuffix("_") + mark, typescript(hint)


# ------------------------------------------------------------------------------------------- files


def types_of_page() -> str:
    """Return web/types.d.ts."""
    parts = [
        f"/** {WRITTEN_BY}: the answers of the API,\n"
        " * for the type checker alone. Nothing of this file is in the bundle. */\n",
        '/** JSON has no infinities: the API sends "-inf", "inf" and "nan" as strings. */\n'
        "type JsonNumber = number | string | null | undefined;\n",
    ]
    for name, one in all_classes().items():
        about, explained = described(one)
        lines = [_comment(about, ""), f"interface {name} {{"]
        for key, kind in keys_of(one):
            if key.removesuffix("?") in explained:
                lines.append(_comment(explained[key.removesuffix("?")], "  "))
            lines.append(f"  {key}: {kind};")
        parts.append("\n".join([*lines, "}\n"]))
    return "\n".join(parts)


def _comment(text: str, indent: str) -> str:
    """Return a comment of lines of at most 120 characters, as prettier leaves it."""
    one_line = f"{indent}/** {text} */"
    if len(one_line) <= 120:
        return one_line
    lines = [f"{indent}/**"]
    for word in text.split():
        if lines[-1] != f"{indent}/**" and len(f"{lines[-1]} {word}") <= 120:
            lines[-1] += f" {word}"
        else:
            lines.append(f"{indent} * {word}")
    return "\n".join([*lines, f"{indent} */"])


def _prose(text: str) -> str:
    """Return paragraphs in lines of at most 120 characters."""
    return "\n\n".join(fill(one, 120, break_long_words=False) for one in text.split("\n\n"))


def reference() -> str:
    """Return docs/reference/explorer_api.md."""
    parts = [INTRODUCTION]
    for path, route in routes().items():
        about = (inspect.getdoc(route.answer) or "").removeprefix("Answer ")
        query = f"```text\n?{route.parameters}\n```\n\n" if route.parameters else ""
        returned = members(get_type_hints(route.answer)["return"])
        links = " or ".join(
            "binary" if one is Picture else f"[{name_of(one)}](#{name_of(one).lower()})"
            for one in returned
        )
        parts.append(
            f"### GET {path}\n\n{query}{_prose(about[0].upper() + about[1:])}\n\n"
            f"The answer is {links}.\n"
        )
    parts.append("## Answers\n")
    for name, one in all_classes().items():
        about, explained = described(one)
        digits = " *All digits.*" if one.exact else ""
        rows = []
        for key, kind in keys_of(one):
            meaning = explained.get(key.removesuffix("?"), "")
            escaped = kind.replace("|", "\\|")  # which would begin a new cell of the table
            rows.append(f"| `{key}` | `{escaped}` | {meaning} |")
        table = "\n".join(["| key | type | meaning |", "|---|---|---|", *rows])
        parts.append(f"### {name}\n\n{_prose(about + digits)}\n\n{table}\n")
    return "\n".join(parts)


FILES = {
    ROOT / "web" / "types.d.ts": types_of_page,
    ROOT / "docs" / "reference" / "explorer_api.md": reference,
}


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if not current")
    given = parser.parse_args()
    for path, make in FILES.items():
        if path.exists() and path.read_text(encoding="utf-8") == make():
            continue
        if given.check:
            sys.exit(
                f"{path.relative_to(ROOT)} is not current: python tools/api_types.py writes it"
            )
        path.write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
