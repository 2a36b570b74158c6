"""A real server and a real browser. Whatever the page complains about, or asks of another machine, fails the test."""

import pytest

import writers

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytest.importorskip("uvicorn", reason="the serve extra is not installed")
from browsing import CHROMIUM, SENTENCES, Page, Served  # noqa: E402
from exploring import recorded  # noqa: E402


def pytest_collection_modifyitems(items):
    if CHROMIUM is None:
        for item in items:
            if "tests/browser" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason="there is no chromium here: apt-get install chromium"))


@pytest.fixture(scope="session")
def served():
    from telescope.explorer.library import Library

    library = Library({"translator": writers.learnt()})
    served = Served(library)
    served.long = library.add(recorded(1100), "long", "1").name  # more than a tile, and ragged
    served.runs = {text: library.read(text) for text in SENTENCES}
    served.run = library.read(writers.NOTES).name
    yield served
    served.stop()


@pytest.fixture(scope="session")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, chromium_sandbox=False, args=["--disable-gpu", "--no-first-run"]
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, served):
    """open_page("walk", l=0, h=1): a tab. What it complained about comes up at the end."""
    pages = []

    def opened(screen, run=None, *, how=None, **query):
        page = Page(browser, served, **(how or {}))
        pages.append(page)
        tab = page.open(screen, run, **query)
        tab.page = page
        return tab

    yield opened
    for page in pages:
        page.close()
