"""The pages of the site: each is in the navigation, links lead on. test_pages.py runs their code, test_reference.py
looks for every public name."""

import re
from importlib import import_module

import pytest

pytest.importorskip("matplotlib", reason="the plot extra is not installed")
from support import public
from support.repository import HOME, blocks

DOCS = HOME / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page.parent.name not in ("lessons", "decisions")]
every_page = pytest.mark.parametrize(
    "page", sorted(DOCS.rglob("*.md")), ids=lambda path: path.relative_to(DOCS).as_posix()
)
NAV = (HOME / "mkdocs.yml").read_text(encoding="utf-8")


@every_page
def test_every_page_is_in_the_navigation(page):
    assert re.search(rf"[-:] {page.relative_to(DOCS).as_posix()}$", NAV, flags=re.M)


@every_page
def test_links_lead_to_pages(page):
    for target in re.findall(r"\]\(([^)#]+?\.(?:md|png|svg))(?:#[\w-]+)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).resolve().is_file(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [HOME / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda path: path.stem)
def test_lines_are_short(page):
    """But for tables, links and code."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for line in prose.splitlines():
        if not line.startswith(("|", ":::", "<img", "- [", "<!--")) and "](" not in line:
            assert len(line) <= 130, line


def test_the_stable_modules_are_those_of_the_reference():
    """Each module of the list has an `__all__`, and test_reference.py looks for all of its names."""
    listed = set(re.findall(r"`(telescope(?:\.\w+)?)`", (DOCS / "reference/stability.md").read_text(encoding="utf-8")))
    assert all(import_module(name).__all__ for name in listed)
    assert listed == {f"telescope.{name}".rstrip(".") for name in public.ROOMS}


@every_page
def test_lines_of_code_fit_their_column(page):
    """On a screen of 1280 pixels, without a scroll bar. Write 88 characters at most; 96 fit."""
    most, _ = blocks.WIDTHS[0]
    for block in blocks.blocks(page.read_text(encoding="utf-8")):
        shown = block.code.splitlines() if block.language == "python" else []
        shown += [line for line in block.code.splitlines() if block.language == "console" and line.startswith("$ ")]
        for line in shown:
            assert len(line) <= most, line
