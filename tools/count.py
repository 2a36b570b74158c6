"""Count what makes a code base heavy to read: `python tools/count.py [--run | --check]`.

Tokens, files and lines; assignments that pack unrelated values; comments; long lines; imports past
a room's face. With `--run` also how many files of the package a few calls enter, which is how many
a reader opens to follow them. `--check`, which `make test` runs, names the package's packed
assignments, long lines and long files, and exits with 1 if there are more than today.
"""

import ast
import io
import sys
import tokenize
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "telescope"
LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
LONG = 100  # characters of a line
LONG_FILE = 450  # lines, without the sections of docstrings that the reference shows
SECTIONS = ("Args:", "Attributes:", "Returns:", "Yields:", "Raises:", "Example:", "Examples:")
# What --check still accepts. These numbers only go down: whoever removes one lowers the number.
PACKED_TODAY = 3
LONG_LINES_TODAY = 13
LONG_FILES_TODAY = {
    "models/model.py",
    "recording/recorded_call.py",
}


@dataclass
class Counts:
    """Totals over Python files. A line of code holds at least one token that is neither comment nor
    docstring.
    """

    files: int = 0
    lines: int = 0
    lines_of_code: int = 0
    long_lines: int = 0
    tokens: int = 0
    comments: int = 0
    assignments: int = 0
    packed: int = 0

    def add(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        prose = set(_lines_of_docstrings(tree))
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                self.comments += not token.string.startswith(("# fmt:", "# noqa", "# type:"))
            elif token.type not in LAYOUT and token.start[0] not in prose:
                self.tokens += 1
                lines.update(range(token.start[0], token.end[0] + 1))
        self.files += 1
        self.lines += text.count("\n")
        self.lines_of_code += len(lines)
        self.long_lines += sum(len(line) > LONG for line in text.splitlines())
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                self.assignments += 1
                self.packed += is_packed(node)


def is_packed(node: ast.AST) -> bool:
    """Return whether an assignment packs values that could have a line each: `a, b = x, y`, unless
    it is a swap.
    """
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    target = node.targets[0]
    if not isinstance(target, ast.Tuple | ast.List):
        return False
    if any(isinstance(part, ast.Starred) for part in (*target.elts, *node.value.elts)):
        return False
    assigned = {ast.unparse(part) for part in target.elts}
    return assigned != {ast.unparse(part) for part in node.value.elts}


def lines_of_sections(lines: list[str]) -> int:
    """Return how many lines are sections of docstrings, such as "Args:" and what is indented below
    it.
    """
    count = 0
    indent = -1  # of the section's title; -1 outside of sections
    for line in lines:
        text = line.lstrip()
        depth = len(line) - len(text)
        if text in SECTIONS:
            indent = depth
        elif text and depth <= indent:
            indent = -1
        count += indent >= 0
    return count


def check() -> list[str]:
    """Return a line for each packed assignment, long line and long file of the package, where these
    are more than today.
    """
    packed: list[str] = []
    long_lines: list[str] = []
    long_files: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(text)):
            if is_packed(node):
                packed.append(f"{name}:{node.lineno}: packs unrelated values; give each a line")
        lines = text.splitlines()
        for number, line in enumerate(lines, start=1):
            if len(line) > LONG:
                long_lines.append(f"{name}:{number}: {len(line)} characters; at most {LONG}")
        length = len(lines) - lines_of_sections(lines)
        if length > LONG_FILE and name not in LONG_FILES_TODAY:
            long_files.append(f"{name}: {length} lines; at most {LONG_FILE}")
    found = long_files
    if len(packed) > PACKED_TODAY:
        found += packed
    if len(long_lines) > LONG_LINES_TODAY:
        found += long_lines
    return found


def deep_imports(paths: list[Path]) -> tuple[int, int]:
    """Return how many imports from another room name a module inside of it, and how many its
    face.
    """
    deep = 0
    face = 0
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = _imported_room(node, path)
            if parts:
                deep += len(parts) > 1
                face += len(parts) == 1
    return deep, face


def _imported_room(node: ast.AST, path: Path) -> list[str]:
    """Return the path below the package of what an import names; [] if it is of this room or of
    another package.
    """
    if not isinstance(node, ast.ImportFrom):
        return []
    inside = PACKAGE in path.parents
    if node.level and inside:
        base = list(path.relative_to(PACKAGE).parts[:-1])
        parts = base[: len(base) - node.level + 1] + (node.module or "").split(".")
    elif (node.module or "").startswith("telescope."):
        parts = node.module.split(".")[1:]  # type: ignore[union-attr]
    else:
        return []
    parts = [part for part in parts if part]
    own = path.relative_to(PACKAGE).parts[0] if inside else None
    return [] if not parts or parts[0] == own else parts


def _lines_of_docstrings(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
        ):
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def counted(folder: Path) -> Counts:
    counts = Counts()
    for path in sorted(folder.rglob("*.py")):
        counts.add(path)
    return counts


def files_entered(call: Callable[[], object]) -> set[str]:
    """Return the package's files in which a function ran during the call; running a module's body
    does not count.
    """
    entered: set[str] = set()

    def note(frame: object, event: str, _: object) -> None:
        code = frame.f_code  # type: ignore[attr-defined]
        if (
            event == "call"
            and code.co_filename.startswith(str(PACKAGE))
            and code.co_name != "<module>"
        ):
            entered.add(code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


def journeys() -> dict[str, Callable[[], object]]:
    """Return the calls whose ways through the package are counted."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import telescope as ts
    from telescope.cli import app

    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    llama = LlamaForCausalLM(
        LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    ).eval()
    ids = torch.arange(12)[None]
    gpt = ts.load("shakespeare")

    def heads() -> None:
        with ts.watch(llama) as recording, torch.no_grad():
            llama(ids)
        recording.heads()

    def mute() -> None:
        with ts.edit(gpt, ts.mute("blocks.0.self", heads=[0])), torch.no_grad():
            gpt(ids)

    return {
        "explain SENTENCE": lambda: app(
            ["explain", "The man saw the astronomer", "--plain"], standalone_mode=False
        ),
        "watch a Llama, heads()": heads,
        "edit(mute)": mute,
        "atlas of three texts": lambda: ts.atlas(
            gpt, ["ROMEO: O!", "JULIET: Ay me.", "To be"], batch=2
        ),
    }


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--run", action="store_true", help="count the files that a few calls enter, too"
    )
    parser.add_argument(
        "--check", action="store_true", help="only name what is packed or too long; exit with 1"
    )
    given = parser.parse_args()
    if given.check:
        problems = check()
        print(*problems, sep="\n", end="\n" if problems else "")
        sys.exit(bool(problems))
    if given.run:
        for name, call in journeys().items():
            print(f"{name:<24} enters {len(files_entered(call))} files", file=sys.stderr)
    for folder in (PACKAGE, ROOT / "tests"):
        counts = counted(folder)
        print(f"{folder.relative_to(ROOT)}")
        code = counts.lines_of_code
        print(
            f"  {counts.files:,} files, {counts.lines:,} lines, {code:,} of code, "
            f"{counts.tokens:,} tokens"
        )
        print(
            f"  {counts.tokens / code:.1f} tokens in a line of code, {counts.long_lines:,} lines "
            f"over {LONG}"
        )
        print(
            f"  {100 * counts.packed / counts.assignments:.1f} % of {counts.assignments:,} "
            "assignments are packed"
        )
        print(f"  {100 * counts.comments / code:.1f} comments on 100 lines of code")
        deep, face = deep_imports(sorted(folder.rglob("*.py")))
        print(f"  imports of a room: {face:,} of its face, {deep:,} of a module inside")


if __name__ == "__main__":
    main()
