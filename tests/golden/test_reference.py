"""The reference is whole: every public name, and every class that one hands out, says what it takes, what it returns,
and shows a call that runs (test_docstrings.py runs them).
"""

import ast
import inspect
import re
from textwrap import dedent

import pytest
from support import public

FUNCTIONS = public.functions()
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
            for field, text in zip(body, body[1:], strict=False):
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
