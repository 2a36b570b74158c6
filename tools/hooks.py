"""Hooks of mkdocs: results below the code of every page, the reference from docstrings, the help of
every command, and the page's eight lessons as files.

DOCS_WITHOUT_RESULTS=1  runs nothing: a quick look at the text
DOCS_COMPLETE=1         makes it an error if a page cannot be run because a package is absent;
                        `make docs` sets it
"""

import os
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
NEEDS = "the site needs the library and the extra docs: pip install -e '.[docs]' ({})"
try:
    import blocks
    import charts
    import pages
    import reference

    import telescope  # noqa: F401  the reference is made from it
except ImportError as problem:
    raise SystemExit(NEEDS.format(problem)) from None

KEYWORDS = tomllib.loads((Path(__file__).parent / "keywords.toml").read_text(encoding="utf-8"))
# What the extra docs brings for the code of pages, beside the library itself.
MODULES = ("matplotlib", "transformers", "accelerate", "pandas", "duckdb")
RESULTS = {}  # by page, as docs/ names it
ABSENT = {}  # the packages that are missing, by the page that needs them


def on_config(config):
    """Leave out the links to the repository where nobody says where it is."""
    if not config["repo_url"]:
        config["repo_url"] = config["edit_uri"] = None
    return config


def on_files(files, *, config):
    """Run every page with code before the first is rendered."""
    RESULTS.clear()
    ABSENT.clear()
    if "DOCS_WITHOUT_RESULTS" in os.environ:
        return
    if absent := [name for name in MODULES if find_spec(name) is None]:
        raise SystemExit(NEEDS.format(f"{absent[0]} is not installed"))
    found = {Path(file.abs_src_path): file.src_uri for file in files.documentation_pages()}
    texts = {path: path.read_text(encoding="utf-8") for path in found}
    for path in [path for path, text in texts.items() if pages.runs(text)]:
        if absent := blocks.missing(texts[path]):
            ABSENT[found[path]] = absent
    tell_absent()
    run = [path for path in found if pages.runs(texts[path]) and found[path] not in ABSENT]
    try:
        for path, results in pages.all_results(run).items():
            RESULTS[found[path]] = results
    except pages.PageError as problem:
        raise SystemExit(str(problem)) from None


def tell_absent():
    """Say which pages are built without results; with DOCS_COMPLETE, that is an error."""
    for name, packages in ABSENT.items():
        line = f"{name} is built without results: {', '.join(packages)} not installed"
        print(line, file=sys.stderr)
    if ABSENT and "DOCS_COMPLETE" in os.environ:
        raise SystemExit("DOCS_COMPLETE is set, and pages cannot be run; `make docs` installs all")


def on_page_markdown(markdown, *, page, config, files):
    """Complete a page before it is rendered, and add the words that others search it by."""
    page.meta["tags"] = [*page.meta.get("tags", ()), *KEYWORDS.get(page.file.src_uri, ())]
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
    """Return the text of a page with what it is to show: results, the reference, or the help of
    commands.
    """
    if name in ABSENT:
        markdown = blocks.without_results(markdown, ABSENT[name])
    else:
        markdown = blocks.with_results(markdown, RESULTS.get(name, []))
    markdown = charts.with_charts(markdown)
    if name.startswith("reference/"):
        made = {"{{ commands }}": commands, "{{ names }}": reference.index}
        for place, make in made.items():
            markdown = markdown.replace(place, make()) if place in markdown else markdown
        return markdown
    if name.startswith("lessons/") and not name.endswith("index.md"):
        there = f"As a notebook: `lessons/{Path(name).stem}.ipynb`.\n\n## The question"
        return markdown.replace("## The question", there, 1)
    return markdown


def commands():
    """Return a section with the help of each command."""
    import typer

    from telescope.cli import app

    group = typer.main.get_command(app)
    parts = []
    for path, command in _commands(group, ("telescope",)):
        context = typer.Context(command, info_name=" ".join(path), terminal_width=80)
        parts.append(f"## {' '.join(path)}\n\n```text\n{command.get_help(context)}\n```")
    return "\n\n".join(parts)


def _commands(group, path):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command
