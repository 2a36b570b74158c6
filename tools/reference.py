"""Prepare docstrings for the reference of the site: an extension of griffe, which mkdocstrings
reads the package with.

The pages in docs/reference name what they show by lines `::: telescope.attend`. This extension
turns objects that are called, such as `ts.mute`, into functions; leaves out the signatures of
classes that no user makes; and lists the fields of a class in one table.
"""

import re
from copy import copy
from pathlib import Path
from textwrap import indent

import griffe

HOME = Path(__file__).parents[1]
SHAPED = ("Float", "Int", "Bool", "Shaped", "Integer")
SECTION = re.compile(r"^(?:Example|Examples|Raises|Args|Returns|Yields):$", re.M)


class Reference(griffe.Extension):
    """Prepare the package once it is read."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: object) -> None:
        """Prepare every module of the package."""
        if pkg.name == "telescope":
            modules = _modules(pkg)
            for module in modules:
                _make_functions(module)
                _make_classes(module)
                _prepare(module)
            for module in modules:
                _uncover(module)
            _point_anew(modules)


def _modules(module: griffe.Module) -> list[griffe.Module]:
    own = [part for part in module.members.values() if not part.is_alias and part.is_module]
    return [module, *(inner for part in own for inner in _modules(part))]


def _make_functions(module: griffe.Module) -> None:
    """Replace each object of a class that defines `__call__` by a function with the other methods
    of the class as members.

    So `mute = MuteEdits()` becomes the function mute, with mute.each.
    """
    for name, value in list(module.members.items()):
        if value.is_alias or not value.is_attribute or not isinstance(value.value, griffe.ExprCall):
            continue
        kind = module.members.get(str(value.value.function))
        is_class = kind is not None and not kind.is_alias and kind.is_class
        called = kind.members.get("__call__") if is_class else None
        # A value with fields of its own, such as `causal`, is shown as a value.
        if called is None or value.value.arguments or value.docstring:
            continue
        function = _function(name, called)
        for inner in kind.members.values():
            if inner.is_function and not inner.name.startswith("_"):
                function.set_member(inner.name, _function(inner.name, inner))
        module.set_member(name, function)


def _make_classes(module: griffe.Module) -> None:
    """Replace each other name of a class, such as `window = Window`, by the class of that name."""
    for name, value in list(module.members.items()):
        if value.is_alias or not value.is_attribute or not isinstance(value.value, griffe.ExprName):
            continue
        kind = module.members.get(str(value.value))
        if kind is not None and not kind.is_alias and kind.is_class:
            named = copy(kind)
            named.name = name
            module.members[name] = named


def _uncover(package: griffe.Module) -> None:
    """Put a function or class in the place of the module of the same name that hides it: griffe
    takes `telescope.editing.edit` for the file edit.py, Python for the function.
    """
    for name, hiding in list(package.members.items()):
        path = package.imports.get(name, "")
        if hiding.is_alias or not hiding.is_module or not path.startswith(f"{package.path}."):
            continue
        meant = package.modules_collection[path]
        if meant is hiding or meant.is_alias:
            continue
        named = copy(meant)
        named.parent = package
        # Everything in the file is found through it, by the same path as before.
        named.members = {**hiding.members, **meant.members}
        package.members[name] = named


def _point_anew(modules: list[griffe.Module]) -> None:
    """Let imported names that were looked up already point to what now stands in their place."""
    for module in modules:
        for alias in module.members.values():
            if alias.is_alias and alias.resolved and not alias.wildcard:
                try:
                    alias.target = alias.modules_collection[alias.target_path]
                except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
                    continue  # of another library


def _function(name: str, method: griffe.Function) -> griffe.Function:
    """Return a method as a function, without `self`."""
    parameters = [one for one in method.parameters if one.name != "self"]
    return griffe.Function(
        name,
        lineno=method.lineno,
        endlineno=method.endlineno,
        parameters=griffe.Parameters(*parameters),
        returns=method.returns,
        docstring=method.docstring,
        parent=method.parent,
    )


def _prepare(whole: griffe.Object) -> None:
    """Prepare the docstring of everything in a module or class."""
    for part in list(whole.members.values()):
        if part.is_alias or part.is_module:
            continue
        if part.is_class:
            _list_fields(part)
            if part.docstring and "Args:" not in part.docstring.value.splitlines():
                # Users get this object from a function, and do not make it.
                part.members.pop("__init__", None)
        if part.is_class or part.is_function:
            _show_shapes(part)
            _prepare(part)
        if part.docstring:
            # griffe knows the section by its plural.
            text = re.sub(r"^Example:$", "Examples:", part.docstring.value, flags=re.M)
            part.docstring.value = _split_items(text)


def _split_items(text: str) -> str:
    """Give each of several parameters that share a description, such as "d_k, d_v:", its own."""
    items = re.compile(r"^    (\w+(?:, \w+)+):((?:.*\n?)(?:^     +.*\n?)*)", re.M)
    parts = re.split(r"^(?=\S.*:$)", text, flags=re.M)
    for number, part in enumerate(parts):
        if part.startswith(("Args:", "Attributes:")):
            part = items.sub(_one_item_each, part)
        if part.startswith(("Args:", "Attributes:", "Raises:")):
            # In a table every cell begins with a capital letter.
            begin = re.compile(r"^(    [\w*, ]+:\s+)([a-z])(?=[a-z]*[ ,;.:])", re.M)
            parts[number] = begin.sub(lambda found: found[1] + found[2].upper(), part)
    return "".join(parts)


def _one_item_each(found: re.Match[str]) -> str:
    text = found[2] if found[2].endswith("\n") else found[2] + "\n"
    return "".join(f"    {name}:{text}" for name in found[1].split(", "))


def _list_fields(kind: griffe.Class) -> None:
    """Move the docstrings of fields into a table in the docstring of their class."""
    fields = [
        part
        for name, part in kind.members.items()
        if part.is_attribute
        and not part.is_alias
        and part.docstring
        and "property" not in part.labels
        and not name.startswith("_")
    ]
    if not fields or kind.docstring is None:
        return
    rows = ""
    text = kind.docstring.value
    for part in fields:
        # The docstring of the class may have said it already.
        if not re.search(rf"^    (?:\w+, )*{part.name}(?:, \w+)*:", text, re.M):
            rows += f"{part.name}:\n" + indent(part.docstring.value, "    ") + "\n"
        part.docstring = None
    if not rows:
        return
    if re.search(r"^Attributes:$", text, re.M):
        kind.docstring.value = re.sub(
            r"^Attributes:\n", lambda _: "Attributes:\n" + indent(rows, "    "), text, flags=re.M
        )
        return
    # Before the first other section, or at the end.
    found = SECTION.search(text)
    at = found.start() if found else len(text)
    section = "Attributes:\n" + indent(rows, "    ")
    kind.docstring.value = f"{text[:at].rstrip()}\n\n{section}\n{text[at:]}".rstrip()


def _show_shapes(function: griffe.Object) -> None:
    """Replace names such as `Queries` by the type with its shape that they stand for."""
    if not function.is_function:
        return
    for one in function.parameters:
        one.annotation = _shaped(one.annotation)
    function.returns = _shaped(function.returns)


def _shaped(annotation: object) -> object:
    if not isinstance(annotation, griffe.ExprName):
        return annotation
    try:
        named = annotation.parent.modules_collection[annotation.canonical_path]
        named = named.final_target if named.is_alias else named
    except (KeyError, AttributeError, griffe.AliasResolutionError):
        return annotation
    value = getattr(named, "value", None)
    is_shape = isinstance(value, griffe.ExprSubscript) and str(value.left) in SHAPED
    return value if is_shape else annotation


def index() -> str:
    """Return a table for each page of the reference: every name that the page shows, with the first
    sentence of its docstring.
    """
    package = griffe.load(
        "telescope", search_paths=[str(HOME / "src")], extensions=griffe.load_extensions(__file__)
    )
    parts = []
    for page in nav_pages():
        text = page.read_text(encoding="utf-8")
        names = re.findall(r"^::: telescope\.([\w.]+)$", text, re.M)
        if names:
            rows = [
                f"| [`{_short(name)}`][telescope.{name}] | {_first(package[name])} |"
                for name in names
            ]
            title = text.partition("\n")[0].removeprefix("# ")
            head = f"## [{title}]({page.name})\n\n| name | what it is for |\n|---|---|"
            parts.append("\n".join([head, *rows]))
    return "\n\n".join(parts)


def nav_pages() -> list[Path]:
    """Return the pages of the reference in the order of the navigation."""
    lines = (HOME / "mkdocs.yml").read_text(encoding="utf-8")
    return [HOME / "docs" / name for name in re.findall(r"- (reference/\w+\.md)$", lines, re.M)]


def _short(name: str) -> str:
    """Return the last part of a name; that of a function's function, `mute.each`, with its own."""
    return name if name.endswith(".each") else name.rpartition(".")[2]


def _first(named: griffe.Object | griffe.Alias) -> str:
    """Return the first sentence of a docstring, for a cell of a table."""
    text = named.docstring.value.partition("\n\n")[0] if named.docstring else ""
    sentence = re.split(r"(?<=\.)\s(?=[A-Z`])", " ".join(text.split()), maxsplit=1)[0]
    return sentence.rstrip(".").replace("|", r"\|").replace("<", "&lt;")
