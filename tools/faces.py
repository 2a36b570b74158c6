"""Import from a room's face what the face exports: `python tools/faces.py`, then `make format`.

Rewrites `from telescope.recording.recording import Recording` in tests, fuzz, benchmarks and tools
to `from telescope.recording import Recording` wherever both are the same object, so that a file
can be moved inside of its room without touching them.
"""

import ast
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("tests", "fuzz", "benchmarks", "tools")


def face_of(node: ast.AST) -> str | None:
    """Return the room from whose face everything that a statement imports can be had."""
    if not isinstance(node, ast.ImportFrom) or node.level:
        return None
    parts = (node.module or "").split(".")
    if parts[0] != "telescope" or len(parts) < 3:
        return None
    room = ".".join(parts[:2])
    face = import_module(room)
    module = import_module(node.module or "")
    for alias in node.names:
        wanted = getattr(module, alias.name, None)
        if wanted is None or getattr(face, alias.name, None) is not wanted:
            return None
    return room


def rewritten(text: str) -> str:
    """Return a file's text with the imports that a face can serve."""
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        room = face_of(node)
        if room is not None:
            first = node.lineno - 1  # type: ignore[attr-defined]
            lines[first] = lines[first].replace(node.module, room, 1)  # type: ignore[attr-defined]
    return "\n".join(lines)


def main() -> None:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            before = path.read_text(encoding="utf-8")
            after = rewritten(before)
            if after != before:
                path.write_text(after, encoding="utf-8")
                print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
