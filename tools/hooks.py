"""Hooks of mkdocs: results below the code of lessons, the reference from docstrings, the help of
every command, and the page's eight lessons as files.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
NEEDS = "the site needs the library and the extra docs: pip install -e '.[docs]' ({})"
try:
    import blocks
    import names

    import telescope  # noqa: F401  the reference is made from it
except ImportError as problem:
    raise SystemExit(NEEDS.format(problem)) from None


def on_page_markdown(markdown, *, page, config, files):
    """Complete a page before it is rendered."""
    try:
        return complete(markdown, page.file.src_uri)
    except ImportError as problem:  # of a block that is run, or of the command line
        raise SystemExit(NEEDS.format(problem)) from None


def on_post_build(*, config):
    """Write the eight lessons of the page beside try.md, which shows them."""
    write_handouts(Path(config["site_dir"]) / "handouts")


def write_handouts(folder):
    """Write each lesson as one file, with answers of the models that ship."""
    from telescope.explorer.api import Api
    from telescope.explorer.handouts import HANDOUTS
    from telescope.explorer.library import Library

    api = Api(Library())
    folder.mkdir(parents=True, exist_ok=True)
    for lesson in HANDOUTS:
        answer = api.answer("GET", f"/handouts/{lesson}", {})
        if answer.status != 200:
            raise SystemExit(f"the lesson {lesson} cannot be written: {answer.body.decode()}")
        (folder / f"{lesson}.html").write_bytes(answer.body)


def complete(markdown, name):
    """Return the text of a page with what it is to show: the reference, the help of commands, or
    results.
    """
    if name.startswith("reference/"):
        return names.expand(markdown).replace(
            "{{ commands }}", commands() if "{{ commands }}" in markdown else ""
        )
    if (
        name.startswith("lessons/")
        and not name.endswith("index.md")
        and "DOCS_WITHOUT_RESULTS" not in os.environ
    ):
        there = f"As a notebook: `lessons/{Path(name).stem}.ipynb`.\n\n## The question"
        return blocks.with_results(markdown, name).replace("## The question", there, 1)
    return markdown


def commands():
    """Return a section with the help of each command."""
    import typer

    from telescope.cli import app

    group = typer.main.get_command(app)
    parts = []
    for path, command in _commands(group, ("telescope",)):
        context = typer.Context(command, info_name=" ".join(path), terminal_width=96)
        parts.append(f"## {' '.join(path)}\n\n```text\n{command.get_help(context)}\n```")
    return "\n\n".join(parts)


def _commands(group, path):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command
