"""The pages of the site: every public name is in the reference, links lead on. test_pages.py runs their code."""

import re
from importlib import import_module

import pytest

pytest.importorskip("matplotlib", reason="the plot extra is not installed")
import telescope as ts
from support.repository import HOME, names

DOCS = HOME / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page.parent.name not in ("lessons", "decisions")]
every_page = pytest.mark.parametrize(
    "page", sorted(DOCS.rglob("*.md")), ids=lambda path: path.relative_to(DOCS).as_posix()
)
NAV = (HOME / "mkdocs.yml").read_text(encoding="utf-8")
ROOMS = ("", "layers", "models", "decoding", "training", "plot", "explorer", "health", "callbacks")


def test_every_public_name_is_in_the_reference():
    text = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    shown = names.mentioned(text)
    for room in ROOMS:
        module = getattr(ts, room) if room else ts
        public = {f"ts.{room}.{name}".replace("..", ".") for name in module.__all__}
        rooms = {f"ts.{name}" for name in ("decoding", "layers", "models")}
        elsewhere = {"ts.LoadError", "ts.export", "ts.load"}  # ts.models has them
        elsewhere |= {"ts.health.Health", "ts.health.HealthReport", "ts.health.qk_clip"}  # these are public names
        assert public - rooms - elsewhere <= shown, sorted(public - rooms - elsewhere - shown)


def test_docstrings_become_markdown():
    page = names.expand("::: telescope: attend, Survey")
    assert "## `ts.attend`" in page
    assert "| `heads` |" in names.expand("::: telescope.layers: MultiHeadAttention")
    assert "```pycon\n>>> " in page
    assert "- `.rows(i)` Return the weights of these queries" in page
    assert "0x" not in page


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
        if not line.startswith(("|", ":::", "<img", "- [")) and "](" not in line:
            assert len(line) <= 130, line


def test_the_stable_modules_are_those_of_the_reference():
    """Each module of the list has an `__all__`, and each that the reference shows is in the list."""
    listed = re.findall(r"`(telescope(?:\.\w+)?)`", (DOCS / "reference/stability.md").read_text())
    assert all(import_module(name).__all__ for name in listed)
    shown = {
        found[1] for page in (DOCS / "reference").glob("*.md") for found in names.DIRECTIVE.finditer(page.read_text())
    }
    assert shown == set(listed)
