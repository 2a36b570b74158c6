"""Imports go one way: a room imports rooms below it alone, and no two files import each other. Imports inside of
functions and for type checkers count like any others."""

import ast
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

import telescope

ROOT = Path(telescope.__file__).parent

# From the ground up. A room may import what stands in the lines above its own, not what stands beside it.
HOUSE = [
    ["words", "printed"],
    ["guesses"],
    ["field_words"],
    ["attention", "token_kinds"],
    ["engines", "files"],
    ["layers", "traces", "surveys"],
    ["models", "tiles", "anatomy", "measures"],
    ["authors"],
    ["recording", "decoding", "text"],
    ["interception"],
    ["editing"],
    ["atlases", "health", "circuitry"],
    ["callbacks"],
    ["training"],
    ["tasks", "plot", "lessons"],
    ["explorer"],
    ["cli"],
    ["public"],  # the public names
    ["__init__"],  # what `import telescope` gives
]
EXCEPTIONS = {
    ("cli/__init__.py", "__init__"),  # telescope.__version__
    ("tasks/doctor.py", "__init__"),  # likewise
    ("files/errors.py", "__init__"),  # imports by a name that it is given: packages of all extras
}
FLOOR = {room: floor for floor, rooms in enumerate(HOUSE) for room in rooms}


def modules_named(text, package):
    """Yield the full name of everything that a file of this package imports, wherever in the file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{source}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            name = node.args[0].value if isinstance(node.args[0], ast.Constant) else "telescope"  # could be anything
            yield resolve_name(name, package) if name.startswith(".") else name


def room_of(name):
    """Return the room that a name of telescope is in; `__init__` for what the package itself holds."""
    first = name.split(".")[1] if "." in name else "__init__"
    return first if first in FLOOR else "__init__"


def upward(place, text):
    """Return what a file imports from rooms that are not below its own, as (file, room)."""
    own, package = place.parts[0].removesuffix(".py"), ".".join(("telescope", *place.parent.parts))
    named = {room_of(name) for name in modules_named(text, package) if name.partition(".")[0] == "telescope"}
    return {(place.as_posix(), room) for room in named - {own} if FLOOR[room] >= FLOOR[own]}


def describe(found):
    return "; ".join(f"{file} is in {file.partition('/')[0]}, which may not import {room}" for file, room in found)


FILES = {path.relative_to(ROOT): path.read_text() for path in ROOT.rglob("*.py")}


def test_every_room_has_its_floor():
    assert {place.parts[0].removesuffix(".py") for place in FILES} == set(FLOOR)


def test_rooms_import_what_is_below_them():
    assert len(FILES) > 100
    found = set().union(*(upward(place, text) for place, text in FILES.items()))
    assert found == EXCEPTIONS, describe(sorted(found ^ EXCEPTIONS))


def test_the_error_names_both_rooms():
    found = upward(Path("surveys/chunked.py"), "from ..interception import watch")
    assert describe(found) == "surveys/chunked.py is in surveys, which may not import interception"


@pytest.mark.parametrize(
    "text",
    [
        "from ..models import gpt",
        "from .. import models",
        "import telescope.models.gpt",
        "from telescope import Recording",
        "def later():\n    from ..recording import Recording",
        "if TYPE_CHECKING:\n    from ..cli import main",
        "import_module('..explorer', __package__)",
    ],
)
def test_an_import_upward_is_found(text):
    assert upward(Path("layers/attend.py"), text)
    assert not upward(Path("layers/attend.py"), "from ..attention import Attention\nfrom .check import one_of")


def dotted(place):
    return ".".join(("telescope", *place.with_suffix("").parts)).removesuffix(".__init__")


def test_no_two_files_import_each_other():
    """Not indirectly either: every file can be read after those that it imports."""
    texts = {dotted(place): (place, text) for place, text in FILES.items()}
    graph = {}
    for module, (place, text) in texts.items():
        package = ".".join(("telescope", *place.parent.parts))
        named = {_file_of(name, texts) for name in modules_named(text, package) if name.startswith("telescope")}
        graph[module] = named - {module, None}
    assert sum(map(len, graph.values())) > 500
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as problem:
        raise AssertionError(" ← ".join(problem.args[1])) from None


def _file_of(name, texts):
    """Return the file that a dotted name is in: the name itself, or the longest part of it that is a file."""
    while name not in texts and "." in name:
        name = name.rpartition(".")[0]
    return name if name != "telescope" else None  # `telescope` itself is what is above all rooms
