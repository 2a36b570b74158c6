"""The reference of the site, from the docstrings: a line `::: telescope.layers` becomes a section
for each public name.

`::: telescope: Attention, Mask` names some of a module, `::: telescope: telescope.editing` those
that a room defines. Docstrings are written for a terminal; here
their columns become tables, and their examples code blocks.
"""

import inspect
import re
from importlib import import_module
from textwrap import dedent

DIRECTIVE = re.compile(r"^::: ([\w.]+)(?:: (.+))?$", re.M)
COLUMNS = re.compile(r"^(\S+(?:,? \S+)*?) {2,}(\S.*)$")


def expand(page):
    """Return the page with every directive replaced by the sections of its names."""
    return DIRECTIVE.sub(
        lambda found: "\n\n".join(section(*pair) for pair in named(found[1], found[2])), page
    )


def named(module, names):
    """Return pairs of a dotted name and what it names, in the order given, or in that of
    `__all__`.

    A room among the names, such as telescope.editing, stands for all public names that it defines
    and that are not given.
    """
    room = import_module(module)
    given = [name.strip() for name in names.split(",")] if names else list(room.__all__)
    chosen = []
    for name in given:
        defined = [one for one in room.__all__ if _module_of(room, one).startswith(f"{name}.")]
        chosen += [one for one in defined if one not in given] if "." in name else [name]
    return [
        (f"{module.replace('telescope', 'ts', 1)}.{name}", getattr(room, name)) for name in chosen
    ]


def _module_of(room, name):
    return getattr(getattr(room, name), "__module__", "")


def mentioned(page):
    """Return the dotted names that a page has sections for."""
    return {name for found in DIRECTIVE.finditer(page) for name, _ in named(found[1], found[2])}


def section(name, value):
    """Return the section of one name: its signature, its docstring, and the members of a class."""
    lines = [f"## `{name}`"]
    if callable(value):
        lines += [f"```python\n{name}{signature(value)}\n```"]
    if is_function(value):
        # A function that is an object has further functions: each in full.
        lines += [markdown(inspect.getdoc(value.__call__))]
        for key, part in vars(type(value)).items():
            if inspect.isfunction(part) and not key.startswith("_"):
                lines += [section(f"{name}.{key}", getattr(value, key))]
        return "\n\n".join(filter(None, lines))
    lines += [markdown(own_docstring(value))]
    if inspect.isclass(value):
        members = [
            member(key, part) for key, part in parts_of(value).items() if not key.startswith("_")
        ]
        lines += ["\n".join(filter(None, members))]
    return "\n\n".join(filter(None, lines))


def is_function(value):
    """Return whether a value is an object that stands for a function, as `ts.hide` does: the
    docstring of its class begins with that function.
    """
    return (inspect.getdoc(type(value)) or "").startswith("`ts.") and callable(value)


def parts_of(value):
    """Return what a class has by name: its own, and that of base classes which no room exports."""
    found = {}
    for base in reversed(inspect.getmro(value)):
        room = ".".join(base.__module__.split(".")[:2])
        is_ours = room.startswith("telescope.")
        is_hidden = is_ours and base.__name__ not in getattr(import_module(room), "__all__", ())
        found |= vars(base) if base is value or is_hidden else {}
    return found


def own_docstring(value):
    """Return the docstring that a value has of its own; a plain value's type has none to show."""
    if not (inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)):
        return f"A value: `{value!r}`."
    text = inspect.cleandoc(value.__doc__ or "")
    return "" if inspect.isclass(value) and text.startswith(f"{value.__name__}(") else text


def signature(value):
    """Return the parameters of a function or class, on several lines where there are many."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [
        part.replace(annotation=part.empty)
        for part in found.parameters.values()
        if part.name not in ("self", "cls")
    ]
    text = str(found.replace(parameters=parameters, return_annotation=found.empty))
    text = re.sub(r"<function (\w+) at 0x\w+>", r"\1", text)
    text = re.sub(r"<class '(?:[\w.]+\.)?(\w+)'>", r"\1", text)
    if len(text) <= 90:
        return text
    return "(\n    " + ",\n    ".join(_split(text[1:-1])) + ",\n)"


def _split(text):
    """Split parameters at the commas that are in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def member(name, part):
    """Return a line about a method or property of a class."""
    if isinstance(part, property):
        text, shown = part.__doc__, f".{name}"
    elif isinstance(part, classmethod | staticmethod):
        text, shown = part.__func__.__doc__, f".{name}()"
    elif inspect.isfunction(part):
        text, shown = (
            part.__doc__,
            f".{name}{signature(part) if len(signature(part)) < 60 else '(...)'}",
        )
    else:
        return ""
    first = inspect.cleandoc(text or "").partition("\n\n")[0]
    return f"- `{shown}` {escape(' '.join(first.split()))}" if first else ""


def markdown(text):
    """Return a docstring as Markdown."""
    return "\n\n".join(
        _paragraph(part) for part in re.split(r"\n\s*\n(?!    \s*>>>)", text) if part.strip()
    )


def _paragraph(part):
    lines = part.splitlines()
    if lines[0] in ("Example:", "Examples:"):
        return "```pycon\n" + dedent("\n".join(lines[1:])) + "\n```"
    if lines[0] == "Returns:":
        return f"**Returns** {escape(dedent(chr(10).join(lines[1:])))}"
    if lines[0] in ("Args:", "Raises:"):
        return f"**{lines[0]}**\n\n" + _items(dedent("\n".join(lines[1:])).splitlines())
    if (
        len(lines) > 1
        and all(COLUMNS.match(line) or line.startswith("   ") for line in lines)
        and COLUMNS.match(lines[0])
    ):
        return _table(lines)
    if any(line.startswith("    ") for line in lines):
        return "```text\n" + part + "\n```"
    return escape(part)


def _table(lines):
    rows = []
    for line in lines:
        found = COLUMNS.match(line)
        if found and not line.startswith(" "):
            rows.append([found[1], found[2]])
        else:
            rows[-1][1] += f" {line.strip()}"
    body = "\n".join(
        f"| `{name}` | {escape(text).replace('|', chr(92) + '|')} |" for name, text in rows
    )
    return f"| | |\n|---|---|\n{body}"


def _items(lines):
    items = []
    for line in lines:
        if line.startswith(" ") and items:
            items[-1] += f" {line.strip()}"
        else:
            items.append(line)
    return "\n".join(f"- {escape(item)}" for item in items)


def escape(text):
    """Return text in which no character outside of code is markup."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([<>*\[\]_])", r"\\\1", parts[i]) if len(parts) % 2 else parts[i]
    return "`".join(parts)
