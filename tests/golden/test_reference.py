"""The reference is whole: every public name, and every class that one hands out, says what it takes and what it
holds, and shows a call that runs (test_docstrings.py runs them); and a page of the site shows it.
"""

import ast
import inspect
import re
from importlib import import_module
from itertools import pairwise
from textwrap import dedent

import pytest

from support import public
from support.repository import HOME

FUNCTIONS = public.functions()
VALUES = {name: value for name, value in public.named().items() if public.is_value(value)}
CLASSES = {f"{value.__module__}.{value.__qualname__}": value for value in public.classes()}


def docstring(value):
    """Return the docstring that was written for a value; a dataclass without one gets its signature from Python."""
    text = (value.__doc__ if inspect.isclass(value) else inspect.getdoc(value)) or ""
    text = inspect.cleandoc(text)
    return "" if inspect.isclass(value) and text.startswith(f"{value.__name__}(") else text


def listed(text, *sections):
    """Return the names that the sections of a docstring list: "    layers, heads: which ..."."""
    found = set()
    for section in sections:
        for block in re.findall(rf"^{section}:\n((?:(?: .*)?\n)+)", text + "\n", re.M):
            for names in re.findall(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \(.*?\))?:", block, re.M):
                found |= {name.strip(" *") for name in names.split(",")}
    return found


def parameters(function):
    names = list(inspect.signature(public.function_of(function)).parameters)
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def undocumented_of_function(function):
    """Yield what the docstring of a function or method lacks."""
    text = docstring(public.function_of(function)) or docstring(function)
    if len(text) < 10:
        yield "no docstring"
    for name in parameters(function):
        if name not in listed(text, "Args"):
            yield f"Args has no {name}"


def documented_fields(value):
    """Return the fields of a class that have a docstring below them."""
    found = set()
    for base in inspect.getmro(value):
        if public.is_ours(base):
            body = ast.parse(dedent(inspect.getsource(base))).body[0].body
            for field, text in pairwise(body):
                is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
                if isinstance(field, ast.AnnAssign) and is_text and isinstance(text.value.value, str):
                    found.add(field.target.id)
    return found


def undocumented_of_class(value):
    """Yield what a class lacks: a docstring, an example, a field, a parameter, or one of these of a method."""
    text = docstring(value)
    if len(text) < 10:
        yield "no docstring"
    if ">>>" not in text:
        yield "no example"
    known = listed(text, "Args", "Attributes") | documented_fields(value)
    for name in public.fields_of(value):
        if name not in known:
            yield f"nothing about the field {name}"
    # Who makes one knows every parameter; what a function returns has none that concerns a user.
    if listed(text, "Args"):
        for name in list(inspect.signature(value).parameters):
            if name not in listed(text, "Args") | {"args", "kwargs"}:
                yield f"Args has no {name}"
    examples = "\n".join(docstring(base) for base in inspect.getmro(value) if public.is_ours(base))
    for name, part in public.members(value).items():
        own = docstring(getattr(value, name)) if inspect.isfunction(part) else docstring(part)
        if len(own) < 10:
            yield f".{name} has no docstring"
        if not isinstance(part, property | public.cached_property):
            yield from (f".{name}: Args has no {one}" for one in parameters(part) if one not in listed(own, "Args"))
        lines = "\n".join(line for line in (examples + "\n" + own).splitlines() if re.match(r"\s+(>>>|\.\.\.)", line))
        if not re.search(rf"(\.|def ){name}\b", lines) and not (name == "forward" and ">>>" in lines):
            yield f".{name} is in no example"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_is_documented(name):
    text = docstring(public.function_of(FUNCTIONS[name]))
    assert not [*undocumented_of_function(FUNCTIONS[name])]
    assert ">>>" in text, f"{name} has no example"


@pytest.mark.parametrize("name", CLASSES)
def test_class_is_documented(name):
    assert not [*undocumented_of_class(CLASSES[name])]


@pytest.mark.parametrize("name", VALUES)
def test_value_is_documented(name):
    """By a docstring below the line that assigns it."""
    shown = []
    for path in public.sources():
        for line, text in pairwise(ast.parse(path.read_text(encoding="utf-8")).body):
            is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if isinstance(line, ast.Assign) and is_text and ast.unparse(line.targets[0]) == name.rpartition(".")[2]:
                shown.append(text.value.value)
    assert len(shown) == 1
    assert len(shown[0]) > 10


def directives():
    """Return the names that the pages of the reference show."""
    pages = (HOME / "docs/reference").glob("*.md")
    return [name for page in pages for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.M)]


def named_by(name):
    """Return what a dotted name stands for."""
    place, _, last = name.rpartition(".")
    if not place:
        return public.room("")
    try:
        return getattr(named_by(place), last)
    except AttributeError:  # a function hides the file of its name
        return getattr(import_module(place), last)


def test_every_public_name_is_on_one_page():
    shown = directives()
    assert len(set(shown)) == len(shown)
    values = [named_by(name) for name in shown]
    rooms = {"telescope.decoding", "telescope.layers", "telescope.models", "telescope.lessons.check"}
    for name, value in public.named().items():
        if inspect.isclass(value) or inspect.isroutine(value) or public.is_function_object(value):
            assert any(value is one for one in values), f"no page shows {name}"
        else:
            assert name in {*shown, *rooms}, f"no page shows {name}"


def test_every_class_that_is_handed_out_is_on_a_page():
    values = [named_by(name) for name in directives()]
    # The base of several is shown with each of them.
    hidden = [value for value in CLASSES.values() if value not in values]
    assert all(any(issubclass(one, value) for one in values if inspect.isclass(one)) for value in hidden), hidden


def test_methods_of_functions_are_on_a_page():
    assert {name for name in FUNCTIONS if name.count(".") == 2 and name.endswith(".each")} <= {*directives()}


def test_lines_of_examples_fit_the_page():
    """At 1280 pixels a block of code has room for 80 characters beside both menus."""
    for path in public.sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                for line in text.partition("Example:\n")[2].splitlines():
                    assert len(line) <= 84, f"{path.name}, {node.name}: {line}"


def test_the_site_shows_what_python_has():
    """A file, an alias or an object of the same name would be shown without its parameters."""
    griffe = pytest.importorskip("griffe", reason="the docs extra is not installed")
    extension = griffe.load_extensions(HOME / "tools/reference.py")
    package = griffe.load("telescope", search_paths=[str(HOME / "src")], extensions=extension)
    for name in directives():
        shown, value = package[name.removeprefix("telescope.")], named_by(name)
        called = inspect.isroutine(value) or public.is_function_object(value)
        kind = "class" if inspect.isclass(value) else "function" if called else "attribute"
        assert (name, shown.kind.value) == (name, kind)
        assert shown.docstring is not None, name
        assert " at 0x" not in shown.docstring.value
