"""Every public name has a docstring, and every example in a docstring prints what it shows."""

import ast
from doctest import ELLIPSIS, DocTestParser, DocTestRunner
from importlib import import_module
from inspect import getdoc, isclass, isroutine
from pathlib import Path

import pytest

import telescope

ROOT = Path(telescope.__file__).parent
ROOMS = ("", "layers", "models", "decoding", "training", "plot", "lessons", "explorer", "health", "callbacks")
KERNELS = ("surveys/kernels/", "models/loss_kernel.py")  # Triton's language: nothing there runs from a prompt


def public_names(room):
    """Return what `__all__` of a room holds that is a class or a function, by its dotted name."""
    module = import_module(f"telescope.{room}".rstrip("."))
    values = {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
    return {name: value for name, value in values.items() if isclass(value) or isroutine(value)}


PUBLIC = {name: value for room in ROOMS for name, value in public_names(room).items()}


def written_docstring(value):
    """Return the docstring that an object has of its own. A dataclass without one gets its signature from Python."""
    text = (value.__doc__ if isclass(value) else getdoc(value)) or ""
    return "" if isclass(value) and text.startswith(f"{value.__name__}(") else text


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_has_a_docstring(name):
    first, *_ = written_docstring(PUBLIC[name]).strip().splitlines() or [""]
    assert len(first) > 10, f"{name} has no docstring"


@pytest.mark.parametrize("name", public_names(""))
def test_name_of_the_package_has_an_example(name):
    assert ">>>" in written_docstring(PUBLIC[name]), f"{name} has no example"


def examples():
    """Yield every docstring with a `>>>` in it, as a doctest.

    The files are parsed instead of imported: functions that are decorated, compiled or checked while testing hide their
    docstrings from doctest.DocTestFinder.
    """
    for path in sorted(ROOT.rglob("*.py")):
        place, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if ">>>" not in text or place.startswith(KERNELS):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node)
                if docstring and ">>>" in docstring:
                    line = node.body[0].lineno - 1  # counted from zero
                    name = f"{place}:{getattr(node, 'name', 'module')}"
                    yield DocTestParser().get_doctest(docstring, {}, name, str(path), line)


@pytest.mark.parametrize("example", [*examples()], ids=lambda example: example.name)
def test_example_prints_what_it_shows(example, tmp_path, monkeypatch):
    """Run in an empty namespace and an empty folder: an example imports what it uses."""
    monkeypatch.chdir(tmp_path)
    report = []
    DocTestRunner(optionflags=ELLIPSIS).run(example, out=report.append)
    assert not report, "".join(report)
