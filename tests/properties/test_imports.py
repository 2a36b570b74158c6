"""No two files of the explorer name each other, not by way of others either, nor inside of a function."""

import ast
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

from telescope import explorer

FILES = {f"telescope.explorer.{path.stem}": path for path in Path(explorer.__file__).parent.glob("*.py")}


def named(module):
    """The modules that a file imports from."""
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), "telescope.explorer")
            yield from (source, *(f"{source}.{name.name}" for name in node.names))
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def test_imports_go_one_way():
    graph = {module: {name for name in named(module) if name in FILES} for module in FILES}
    assert sum(map(len, graph.values())) > 50
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as problem:
        raise AssertionError(" ← ".join(problem.args[1])) from None
